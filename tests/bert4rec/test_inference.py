# SPDX-License-Identifier: Apache-2.0
"""The measured inference, traced or not, recommends the same items."""

import pytest
import torch

from bert4rec.config import Bert4RecConfig
from bert4rec.recipe import Bert4RecRecipe
from recsys.errors import UserError
from recsys.train.optimizers.precision import Precision
from recsys.train.processes import ALONE
from recsys.train.recipe import Machine


def best_items(dataset, objective, *, traced, dtype=None, **settings):
    config = Bert4RecConfig.from_dict(
        {
            **{"dataset_path": str(dataset), "objective": objective, "use_torch_jit_trace": traced},
            **{"max_len": 24, "emb_dim": 16, "mode": "inference_benchmark", "top_k": 5},
            **settings,
        }
    )
    torch.manual_seed(1)
    precision = Precision(device_type="cpu", dtype=dtype)
    machine = Machine(torch.device("cpu"), precision, ALONE, print)
    recipe = Bert4RecRecipe.open(config, machine)
    recipe.model.reset_parameters(0.5)
    with torch.inference_mode():
        return [call() for call in recipe.inferences(7)[:3]]


@pytest.mark.parametrize("head_transform", [False, True])
@pytest.mark.parametrize("objective", ["causal", "cloze"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(None, 1e-4), (torch.bfloat16, 0.05)])
def test_the_traced_network_recommends_what_the_other_does(
    dataset, objective, dtype, tolerance, head_transform
):
    settings = {"dtype": dtype, "head_transform": head_transform}
    plain = best_items(dataset, objective, traced=False, **settings)
    traced = best_items(dataset, objective, traced=True, **settings)
    assert len(plain) == len(traced) == 3
    for (items, scores), (traced_items, traced_scores) in zip(plain, traced, strict=True):
        scale = scores.abs().max()
        assert torch.allclose(scores, traced_scores.float(), rtol=0, atol=tolerance * scale)
        if dtype is None:
            assert torch.equal(items, traced_items)
    assert scale > 1  # scores that differ between items


def test_a_training_ends_with_the_benchmark_of_the_traced_network(program, dataset, capsys):
    sizes = "--inference_benchmark_batch_sizes=1,3"
    common = (f"--dataset_path={dataset}", "--use_torch_jit_trace", sizes)
    for mode in (("--max_steps=1",), ("--mode=inference_benchmark",)):
        records = program(*common, *mode)
        assert program.exit_code == 0
        assert "items, traced by torch.jit" in capsys.readouterr().out
        latencies = [k for k in records[-1]["data"] if k.startswith("p50_inference_latency_batch")]
        assert len(latencies) == 2


@pytest.mark.parametrize("given", [{"mode": "test"}, {"mode": "train", "parallelism": "dmp"}])
def test_what_cannot_be_traced_is_refused(given):
    with pytest.raises(UserError, match="`use_torch_jit_trace`"):
        Bert4RecConfig.from_dict({"use_torch_jit_trace": True, "loss": "sampled", **given})
