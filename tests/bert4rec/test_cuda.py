# SPDX-License-Identifier: Apache-2.0
"""The training step on a CUDA device: captured in graphs, compiled, and against the CPU."""

import pytest
import torch

from bert4rec.data.batches import TrainBatches
from bert4rec.train.step import build_step
from recsys.train.optimizers.precision import Precision
from tests.bert4rec.steps import CPU, config, make_model, sequences
from tests.tools import needs

pytestmark = [pytest.mark.gpu, needs("CUDA device")]

CUDA = torch.device("cuda")


def train(device=CUDA, dtype=None, **settings):
    """Trains for some epochs, so that all sizes are captured; returns losses and weights."""
    settings = config(**settings)
    model = make_model(settings).to(device)
    precision = Precision(device_type=device.type, dtype=dtype)
    step = build_step(settings, sequences(), model, precision)
    source = TrainBatches(settings, sequences(), device, rounds=True)
    batches = (batch for epoch in range(8) for batch in source.batches(epoch, 0))
    losses = torch.stack([step(batch, 0.01).detach() for batch in batches])
    return losses.cpu(), [parameter.detach().cpu() for parameter in model.parameters()]


STEPS = [
    {"objective": "cloze"},
    {"objective": "causal", "clip_norm": 1.0},
    {"objective": "hybrid", "dropout": 0.2, "attention_dropout": 0.1},
    {"objective": "causal", "accumulation_steps": 2, "train_batch_size": 3},
    {"loss": "sampled", "clip_norm": 0.1},
    {"loss": "gbce", "head": "tied"},
]


@pytest.mark.parametrize("settings", STEPS, ids=str)
@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_captured_steps_train_as_eager_ones(settings, dtype):
    eager, graphed = (
        train(dtype=dtype, cuda_graphs=graphs, **settings) for graphs in (False, True)
    )
    torch.testing.assert_close(graphed[0], eager[0], rtol=1e-4, atol=1e-4)
    for one, other in zip(graphed[1], eager[1], strict=True):
        assert torch.isclose(one, other, rtol=1e-2, atol=1e-3).float().mean() > 0.99


def test_compiled_steps_are_captured_too():
    eager = train(objective="causal")
    compiled = train(objective="causal", torch_compile=True, cuda_graphs=True)
    torch.testing.assert_close(compiled[0], eager[0], rtol=1e-3, atol=1e-3)


def test_the_first_step_is_that_of_the_cpu():
    settings = {"objective": "causal"}
    losses, _ = train(**settings)
    on_cpu, _ = train(CPU, **settings)
    torch.testing.assert_close(losses[:3], on_cpu[:3], rtol=1e-3, atol=1e-3)
