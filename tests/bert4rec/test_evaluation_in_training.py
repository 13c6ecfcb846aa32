# SPDX-License-Identifier: Apache-2.0
"""An evaluation within training and one of the checkpoint saved there agree, bit for bit; and the
best of them is tested at the end, whether it was saved or not."""

import pytest

from recsys.ratings.ranking.metrics import flat_metrics, metrics_of
from recsys.train.checkpoint import read_checkpoint
from recsys.train.saving.run_folder import CheckpointFolder
from tests.bert4rec.conftest import open_recipe

SAMPLED = ("--loss=sampled", "--num_negatives=20")


def compare(program, dataset, folder, *settings):
    """Trains with evaluations, and compares them with those of the checkpoints."""
    common = (f"--dataset_path={dataset}", *settings)
    run = (f"--export_root={folder}", "--num_epochs=3", "--lr=0.02", "--test_freq=5")
    records = program(*common, *run)
    within = {
        tuple(r["step"])[-1]: r["data"]
        for r in records
        if r["step"] and "full_ndcg@10" in r["data"]
    }
    for saved in sorted(folder.glob("step_*")):  # the latest, and the best if that is another
        recipe = open_recipe(*common, *program.model, f"--load_checkpoint_path={saved}")
        found = flat_metrics(metrics_of(recipe.rank("validation").ranks))
        step = read_checkpoint(saved).state["step"]
        assert within[step] == found
    best = CheckpointFolder(folder).best()
    test = ("--mode=test", "--num_eval_negatives=5", f"--load_checkpoint_path={best}")
    # The model's shape comes from the checkpoint.
    tested = program(*common, *test, model=("--base_device=cpu",))[-1]["data"]
    assert read_checkpoint(best).state["best_metric"] == records[-2]["data"]["best_metric"]
    assert records[-2]["data"]["average_train_throughput"] > 0
    final = records[-1]["data"]
    names = [name for name in tested if "@" in name]
    assert len(names) > 20
    assert {name: final[name] for name in names} == {name: tested[name] for name in names}


@pytest.fixture(autouse=True)
def bfloat16_products(monkeypatch):
    """Lets `--amp` compute in bfloat16 on processors on which that is slow, too."""
    monkeypatch.setattr("recsys.train.optimizers.precision._cpu_gains_by_bfloat16", lambda: True)


def test_an_evaluation_in_training_is_that_of_the_checkpoint(program, dataset, tmp_path):
    compare(program, dataset, tmp_path / "run", *SAMPLED, "--amp", "--val_batch_size=7")


@pytest.mark.release
@pytest.mark.parametrize("size", [7, 128])
@pytest.mark.parametrize("precision", [(), ("--amp",)], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("head", ["untied", "tied"])
@pytest.mark.parametrize("loss", [(), SAMPLED, ("--loss=gbce", "--num_negatives=20")], ids=str)
def test_every_loss_precision_batch_size_and_head(
    program, dataset, tmp_path, loss, head, precision, size
):
    sizes = (f"--val_batch_size={size}", f"--test_batch_size={size}")
    compare(program, dataset, tmp_path / "run", *loss, f"--head={head}", *precision, *sizes)


OVERFITTED = ("--lr=0.1", "--num_epochs=6", "--test_freq=2")


@pytest.mark.parametrize(
    "settings",
    [
        ("--head=tied", "--objective=causal"),
        ("--head=untied", "--amp"),
        (*SAMPLED, "--head=tied", "--clip_norm=1"),
    ],
    ids=str,
)
def test_the_best_step_is_tested_without_a_folder_too(program, dataset, tmp_path, settings):
    flags = (f"--dataset_path={dataset}", *settings, *OVERFITTED, "--baselines=")
    saved = program(*flags, f"--export_root={tmp_path / 'run'}")
    unsaved = program(*flags)
    validated = {
        tuple(r["step"])[-1]: r["data"]["full_ndcg@10"]
        for r in unsaved
        if r["step"] and "full_ndcg@10" in r["data"]
    }
    best = max(validated, key=validated.get)
    assert best < max(validated)  # else the last step would do
    assert unsaved[-2]["data"]["tested_step"] == saved[-2]["data"]["tested_step"] == best
    assert unsaved[-1]["data"] == saved[-1]["data"]


def test_a_fine_tuned_model_is_tested_at_its_best_step(program, loaded, tmp_path):
    """The base of the adapters is kept with them."""
    flags = (*loaded, "--adapter=lora", *OVERFITTED, "--baselines=")
    saved = program(*flags, f"--export_root={tmp_path / 'run'}")
    unsaved = program(*flags)
    assert unsaved[-2]["data"]["tested_step"] < 126  # the last one
    assert unsaved[-1]["data"] == saved[-1]["data"]
