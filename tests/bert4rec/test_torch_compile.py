# SPDX-License-Identifier: Apache-2.0
"""The compiled step: the eager one's result, and no compiling after the first batches.

All but one test let PyTorch run what it captured without generating code, which takes most of the
time and changes neither shapes nor guards.
"""

import pytest
import torch

from recsys.train.optimizers.precision import Precision
from tests.bert4rec.steps import FLOAT32, config, train
from tests.harness import assert_tells
from tests.tools import needs

# PyTorch's tracer looks at the gradient of its inputs, and silences its own warning of it.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")

BFLOAT16 = Precision(device_type="cpu", dtype=torch.bfloat16)
FLOAT16 = Precision(device_type="cpu", dtype=torch.float16, loss_scale=1024.0)
SCHEMES = [
    ({"head": "tied", "activation": "swiglu", "temperature": 0.2}, FLOAT32),
    ({"objective": "causal", "norm": "post", "activation": "gelu"}, BFLOAT16),
    ({"objective": "hybrid", "loss": "sampled", "head": "tied", "accumulation_steps": 2}, FLOAT32),
    (
        {
            **{"objective": "cloze", "loss": "sampled", "clip_norm": 0.1, "mask_last_prob": 0.5},
            "activation_checkpointing": True,
        },
        FLOAT16,
    ),
]


@pytest.fixture(autouse=True)
def counters():
    """Counts of the compiler, which forgets what other tests compiled."""
    from torch._dynamo.utils import counters  # takes seconds

    torch._dynamo.reset()
    counters.clear()
    yield counters
    torch._dynamo.reset()


def losses_of(settings, precision):
    with torch.compiler.set_stance(force_backend="eager"):
        return train(settings, precision, epochs=3)[2]


@needs("Python headers")  # without them the program refuses, whatever the backend
@pytest.mark.parametrize(("settings", "precision"), SCHEMES)
def test_one_graph_serves_batches_of_all_sizes(settings, precision, counters):
    settings = settings | {"windows": "random", "dupe_factor": 2}
    eager = losses_of(config(**settings), precision)
    assert not counters["stats"]
    compiled = losses_of(config(**settings, torch_compile=True), precision)
    tolerance = 1e-5 if precision is FLOAT32 else 1e-2
    torch.testing.assert_close(compiled, eager, rtol=tolerance, atol=tolerance)
    objectives = 2 if settings.get("objective") == "hybrid" else 1
    assert counters["stats"]["unique_graphs"] == objectives


@needs("Python headers")
@pytest.mark.release
def test_the_program_trains_with_generated_code(program, dataset, counters):
    flags = (
        *(f"--dataset_path={dataset}", "--dropout=0", "--attention_dropout=0", "--print_freq=1"),
        *("--max_steps=14", "--windows=random", "--activation_checkpointing", "--clip_norm=1"),
    )
    losses = []
    for more in ((), ("--torch_compile",)):
        records = program(*flags, *more)
        losses.append([r["data"]["loss"] for r in records if "data_wait" in r["data"]])
    assert len(losses[0]) == 14
    assert losses[1] == pytest.approx(losses[0], rel=1e-3)
    assert counters["stats"]["unique_graphs"] == 1


def test_a_missing_compiler_is_named(refused, dataset, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    error = refused(f"--dataset_path={dataset}", "--torch_compile", "--max_steps=1")
    assert_tells(error, "--torch_compile", "no-such-compiler")
