# SPDX-License-Identifier: Apache-2.0
"""TorchRec's DistributedModelParallel on two gloo processes, against one process of ours.

TorchRec is that of `make torchrec`. On a CPU FBGEMM's rows move by row-wise Adagrad.
"""

import pytest

from tests.bert4rec.torchrun import assert_resumes, assert_trains_alike
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

    The other run is one process with our own shards, which take FBGEMM's rule here.
    """
    rule = lambda *_: "rowwise_adagrad"  # noqa: E731
    monkeypatch.setattr("bert4rec.train.step.item_rule", rule)
    flags = (*CASES[case], "--mode=dmp")
    assert_trains_alike(tmp_path, flags, (*flags, "--accumulation_steps=2"))


def test_a_resumed_run_ends_with_the_same_bits(tmp_path):
    tensors = assert_resumes(tmp_path, (*CASES["tied"], "--mode=dmp"), 2, 4)
    assert any(name.startswith("item_optimizer/") for name in tensors)
