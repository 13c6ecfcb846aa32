# SPDX-License-Identifier: Apache-2.0
"""Weight decay and rates by group of parameters, and checkpoints that know nothing of groups."""

import pytest
import torch

from recsys.train.optimizers.dense import Rates, build_adamw, build_dense_optimizer
from tests.bert4rec.test_large_catalogues import config, make_model, train
from tests.bert4rec.test_resume import assert_same, settings

SCHEMES = [
    {"loss": "full"},
    {"loss": "full", "item_update": "rows"},
    {"loss": "sampled", "head": "tied"},
    {"loss": "sampled", "head": "untied"},
]


def changes(**given):
    """Returns how far each parameter moved in the first step."""
    before = dict(make_model(config(**given)).named_parameters())
    after, _ = train(config(**given))
    return {name: (after[name] - before[name]).detach() for name in after}


@pytest.mark.parametrize("scheme", SCHEMES)
def test_biases_norms_and_positions_do_not_decay(scheme):
    plain = changes(**scheme)
    decayed = changes(**scheme, weight_decay=0.5, no_decay_bias_norm=True)
    differing = {name for name in plain if not torch.equal(plain[name], decayed[name])}
    exempt = {n for n in plain if n.endswith("bias") or "norm" in n or "positions" in n}
    assert differing == plain.keys() - exempt
    everything = changes(**scheme, weight_decay=0.5)
    assert not torch.equal(everything["final_norm.weight"], plain["final_norm.weight"])
    assert not torch.equal(everything["embedding.positions"], plain["embedding.positions"])


@pytest.mark.parametrize("scheme", SCHEMES)
def test_embeddings_move_at_a_rate_of_their_own(scheme):
    plain, halved = changes(**scheme), changes(**scheme, embedding_lr_factor=0.5)
    for name, change in plain.items():
        factor = 0.5 if name.startswith("embedding.") and "norm" not in name else 1.0
        torch.testing.assert_close(halved[name], change * factor, rtol=1e-3, atol=1e-8, msg=name)


def test_the_state_of_groups_is_named_as_that_of_one():
    torch.manual_seed(0)
    params = [torch.nn.Parameter(torch.randn(shape)) for shape in ((3, 4), (5,), (2, 2))]
    one = build_dense_optimizer("adam", params, 0.1)
    several = build_adamw(params, [Rates(0.1), Rates(0.0, 0.5), Rates(0.1)])
    for optimizer in (one, several):
        for parameter in params:
            parameter.grad = torch.ones_like(parameter)
        optimizer.step(torch.tensor(0.1), 1.0, None)
    layouts = [{n: t.shape for n, t in o.state().items()} for o in (one, several)]
    assert layouts[0] == layouts[1]
    assert list(layouts[0]) == list(layouts[1])


def test_a_run_with_groups_resumes_bit_for_bit(program, dataset, tmp_path):
    groups = ("--no_decay_bias_norm", "--embedding_lr_factor=0.5", "--lr_schedule=step")
    common = settings(dataset, *groups)
    whole, parts = (f"--export_root={tmp_path / name}" for name in ("whole", "parts"))
    program(*common, whole, "--max_steps=10")
    program(*common, parts, "--max_steps=4")
    program(*common, parts, "--max_steps=10", "--resume")
    assert program.exit_code == 0
    assert_same(tmp_path / "whole", tmp_path / "parts")
