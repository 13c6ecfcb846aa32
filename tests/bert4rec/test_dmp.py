# SPDX-License-Identifier: Apache-2.0
"""TorchRec's DistributedModelParallel on two gloo processes, against one process of ours.

TorchRec is that of `make torchrec`. On a CPU FBGEMM's rows move by row-wise Adagrad.
"""

import pytest
import torch

from tests.bert4rec.torchrun import assert_close_weights, assert_same_metrics, run, weights
from tests.tools import needs

pytestmark = [needs("TorchRec"), pytest.mark.multiprocess]

CASES = {
    "full": (),
    "tied": ("--loss=sampled", "--num_negatives=64", "--head=tied"),
    "untied": ("--loss=sampled", "--num_negatives=64"),
}


@pytest.mark.parametrize("case", CASES)
def test_sharded_tables_train_as_whole_ones(tmp_path, case, monkeypatch):
    """Same windows, masks, dropout and negatives; tolerances as in test_distributed.

    The other run is one process with our own shards and FBGEMM's rule.
    """
    folders = [tmp_path / name for name in ("two", "one")]
    for folder in folders:
        folder.mkdir()
    found = run(folders[0], 2, (*CASES[case], "--mode=dmp"))
    monkeypatch.setattr("bert4rec.train.step.item_rule", lambda *_: "rowwise_adagrad")
    expected = run(folders[1], 1, (*CASES[case], "--accumulation_steps=2", "--mode=dmp"))
    mine, other = weights(folders[0]), weights(folders[1])
    model = {name: tensor for name, tensor in other.items() if name.startswith("model/")}
    assert model.keys() == {name for name in mine if name.startswith("model/")}
    assert_same_metrics(found, expected, 0.02)
    assert_close_weights(mine, model)


def test_a_resumed_run_ends_with_the_same_bits(tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    for folder in (whole, parts):
        folder.mkdir()
    flags = (*CASES["tied"], "--mode=dmp")
    run(whole, 2, (*flags, "--max_steps=4"))
    run(parts, 2, (*flags, "--max_steps=2"))
    run(parts, 2, (*flags, "--max_steps=4", "--resume"))
    expected = weights(whole)
    assert any(name.startswith("item_optimizer/") for name in expected)
    for name, tensor in weights(parts).items():
        assert torch.equal(tensor, expected[name]), name
