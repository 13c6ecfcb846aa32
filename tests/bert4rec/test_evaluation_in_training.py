# SPDX-License-Identifier: Apache-2.0
"""An evaluation within training and one of the checkpoint saved there agree, bit for bit."""

import itertools

import pytest

from bert4rec.recipe import Bert4RecRecipe, join_run
from bert4rec.train.metrics import flat_metrics, metrics_of
from recsys.train.checkpoint import read_checkpoint
from recsys.train.run import Run
from recsys.train.saving.run_folder import CheckpointFolder
from tests.bert4rec.conftest import parse

OPTIMIZERS = {
    "all rows": (),
    "rows, sampled": ("--loss=sampled", "--num_negatives=20"),
    "rows, gbce": ("--loss=gbce", "--num_negatives=20"),
}
PRECISIONS = {"float32": (), "bfloat16": ("--amp",)}
STORAGES = {"two tables": ("--head=untied",), "one table": ("--head=tied",)}
FEW, MANY = 7, 128


def compare(program, dataset, folder, *settings):
    """Trains with evaluations; returns NDCG@10 within training and of the checkpoint."""
    common = (f"--dataset_path={dataset}", *settings)
    run = (f"--export_root={folder}", "--num_epochs=3", "--lr=0.02", "--test_freq=5")
    records = program(*common, *run)
    assert program.exit_code == 0
    within = {
        tuple(r["step"])[-1]: r["data"]
        for r in records
        if r["step"] and "full_ndcg@10" in r["data"]
    }
    for saved in sorted(folder.glob("step_*")):  # the latest, and the best if that is another
        found = validation(*common, *program.model, f"--load_checkpoint_path={saved}")
        step = read_checkpoint(saved).state["step"]
        assert within[step] == found
    best = CheckpointFolder(folder).best()
    tested = program(*common, "--mode=test", f"--load_checkpoint_path={best}")[-1]["data"]
    final = records[-1]["data"]
    names = [name for name in tested if "@" in name]
    assert len(names) > 20
    assert {name: final[name] for name in names} == {name: tested[name] for name in names}
    return within[step]["full_ndcg@10"], found["full_ndcg@10"]


def validation(*arguments):
    """Ranks the validation items with a loaded model; the program prints those of the test."""
    config = parse("--mode=test", "--num_threads=1", "--log_path=/dev/null", *arguments)
    with join_run(config) as processes:
        recipe = Run.start(Bert4RecRecipe.open, config, print, processes).recipe
        ranks = recipe.rank("validation").ranks
    return flat_metrics(metrics_of(ranks))


@pytest.fixture(autouse=True)
def bfloat16_products(monkeypatch):
    """Lets `--amp` compute in bfloat16 on processors on which that is slow, too."""
    monkeypatch.setattr("recsys.train.optimizers.precision._cpu_has_bfloat16", lambda: True)


def test_an_evaluation_in_training_is_that_of_the_checkpoint(program, dataset, tmp_path):
    settings = (*OPTIMIZERS["rows, sampled"], "--amp", f"--val_batch_size={FEW}")
    compare(program, dataset, tmp_path / "run", *settings)


@pytest.mark.release
def test_every_optimizer_precision_batch_size_and_storage(program, dataset, tmp_path, capsys):
    """The table of all; `-s` prints it."""
    lines = []
    for optimizer, storage, precision, size in itertools.product(
        OPTIMIZERS, STORAGES, PRECISIONS, (FEW, MANY)
    ):
        settings = (*OPTIMIZERS[optimizer], *STORAGES[storage], *PRECISIONS[precision])
        sizes = (f"--val_batch_size={size}", f"--test_batch_size={size}")
        values = compare(program, dataset, tmp_path / str(len(lines)), *settings, *sizes)
        described = f"{optimizer:22} {storage:10} {precision:9} {size:4}"
        lines.append(f"{described} {values[0]:.6f} {values[1]:.6f}")
    capsys.readouterr()
    print("\n".join(lines))
