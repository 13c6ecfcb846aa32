# SPDX-License-Identifier: Apache-2.0
"""An evaluation within training and `--mode test` of the checkpoint saved there agree, bit for bit.

Evaluations choose the best checkpoint and end runs; what they keep from one to the next must not
outlive an optimizer step.
"""

import itertools

import pytest

from cuda_ext.row_rules import ROW_RULES
from recsys.train.checkpoint import read_checkpoint
from tests.dlrm.conftest import ROWS

EMBEDDINGS = ("joint_fused", "joint", "joint_sparse", "multi_table")
INTERACTIONS = ("cuda_dot", "dot", "cat")
STORAGES = ("float32", "bfloat16")
PRECISIONS = {"float32": (), "bfloat16": ("--amp", "--amp_dtype=bfloat16", "--loss_scale=1")}
FEW, ODD, MANY = 8, 63, 500  # 63 leaves 53 rows, 8 and 500 leave 2 and 250: kernels for all sizes
COMPARED = ("auc", "log_loss", "calibration", "normalised_entropy")


def compare(program, dataset, folder, settings, precision, test_batch_size):
    """Trains with three evaluations; compares those that were saved with `--mode test`."""
    common = (f"--test_batch_size={test_batch_size}", *settings, *precision)
    records = program.train(dataset, folder, *common, "--lr=0.05", "--test_freq=20")
    within = {tuple(r["step"])[-1]: r["data"] for r in records if r["step"] and "auc" in r["data"]}
    last = -(-ROWS["train"] // 128)
    assert list(within) == [20, 40, last]
    assert len({values["auc"] for values in within.values()}) == 3
    saved = sorted(folder.glob("step_*"))  # the latest, and the best if that is another
    for checkpoint in saved:
        tested = program.test(dataset, checkpoint, *common)
        expected = within[read_checkpoint(checkpoint).state["step"]]
        for name in COMPARED:
            assert tested[name] == expected[name], (checkpoint, name)
    assert saved[-1].name == f"step_{last:09}"


@pytest.fixture
def bfloat16_products(monkeypatch):
    """Lets `--amp` compute in bfloat16 on processors on which that is slow, too."""
    monkeypatch.setattr("recsys.train.optimizers.precision._cpu_has_bfloat16", lambda: True)


@pytest.mark.parametrize(
    ("optimizer", "precision", "batch_size"),
    [("sgd", "float32", FEW), ("adam", "float32", ODD), ("adam", "bfloat16", MANY)],
)
@pytest.mark.usefixtures("bfloat16_products")
def test_an_evaluation_in_training_is_that_of_the_checkpoint(
    program, dataset, tmp_path, optimizer, precision, batch_size
):
    settings = (f"--optimizer={optimizer}",)
    compare(program, dataset, tmp_path / "run", settings, PRECISIONS[precision], batch_size)


@pytest.mark.release
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.usefixtures("bfloat16_products")
def test_every_optimizer_batch_size_and_storage(program, dataset, tmp_path, precision):
    tables = [
        *(("joint_fused", storage) for storage in STORAGES),
        *((embeddings, "float32") for embeddings in EMBEDDINGS[1:]),
    ]
    for numbered in itertools.product(*map(enumerate, (ROW_RULES, tables, (FEW, ODD, MANY)))):
        numbers, (optimizer, (embeddings, storage), size) = zip(*numbered, strict=True)
        interaction = INTERACTIONS[sum(numbers) % len(INTERACTIONS)]
        settings = (
            *(f"--optimizer={optimizer}", f"--embedding_type={embeddings}"),
            *(f"--embedding_storage={storage}", f"--interaction_op={interaction}"),
        )
        folder = tmp_path / "-".join((optimizer, embeddings, storage, interaction, str(size)))
        compare(program, dataset, folder, settings, PRECISIONS[precision], size)
