# SPDX-License-Identifier: Apache-2.0
"""dlrm.scripts.main end to end: modes, dataset types, log, checkpoints."""

import itertools
import re
import shutil

import numpy as np
import pytest
import torch

from cuda_ext.row_rules import ROW_RULES
from dlrm.model.weights import DlrmCheckpoint
from preproc import movielens
from preproc.clicks import __main__ as clicks_program
from preproc.clicks.rules import ClicksSemantics
from recsys.data.click_columns import ClickColumns
from recsys.data.feature_spec import FeatureSpec
from recsys.data.split_binary import SplitBinaryWriter
from recsys.train.checkpoint import read_checkpoint
from tests.checkpoints import assert_same, latest, tensors
from tests.dlrm.conftest import CARDINALITIES, ROWS, SMALL_MODEL, final, losses
from tests.dlrm.nvidia_folder import write_nvidia_folder
from tests.harness import assert_tells
from tests.preproc.clicks.rows import good_text, run
from tests.recsys.train.shown import Page


def test_embeddings_are_drawn_anew_before_each_epoch(program, dataset, tmp_path):
    """Tables and the states of their rows, which would else be those of two epochs."""
    runs = []
    flags = ("--optimizer=rowwise_adagrad", "--lr=1e-9", "--reset_embeddings")
    for epochs in (1, 2):
        program.train(dataset, tmp_path / str(epochs), f"--epochs={epochs}", *flags)
        runs.append(tensors(tmp_path / str(epochs)))
    once, twice = (run["embedding_2.weight"] for run in runs)
    assert not torch.allclose(once, twice, atol=1e-3)
    bound = CARDINALITIES[2] ** -0.5
    assert all(0.99 * bound < table.abs().max() <= bound + 1e-6 for table in (once, twice))
    once, twice = (float(run["embedding_0.sum_of_squares"].sum()) for run in runs)
    assert once == pytest.approx(twice, rel=0.3)


def test_patience_does_not_end_a_run_at_new_embeddings(program, dataset):
    program(
        f"--dataset={dataset}",
        *("--optimizer=rowwise_adagrad", "--lr=0.02", "--reset_embeddings", "--epochs=2"),
        *("--test_freq=5", "--patience=1"),
    )
    pattern = re.compile(r"^Epoch (\d) step (\d+)\. auc (0\.\d{6})$", re.MULTILINE)
    aucs = {(int(e), int(step)): float(auc) for e, step, auc in pattern.findall(program.stdout)}
    assert aucs[1, 3] < aucs[0, 47] < aucs[1, 47]
    assert_tells(program.stdout.splitlines()[-1], 94, f"{aucs[1, 47]:.6f}")


def test_a_checkpoint_is_explained_and_scored_within_groups(program, dataset, trained, tmp_path):
    page = tmp_path / "page.html"
    values = program.test(dataset, trained, "--gauc_by=cat_0", f"--report={page}")
    output = program.stdout
    assert values["gauc_groups"] == CARDINALITIES[0]
    assert values["gauc"] < values["auc"]  # which also knows the groups' means
    assert next(iter(values["feature_importance"])) in ("num_0", "cat_0")
    assert len(values["calibration_curve"]) == 10
    assert re.search(r"^  (num|cat)_0 +0\.\d+ \(\w+ 0\.\d+, \w+ 0\.\d+\)$", output, re.MULTILINE)
    titles = {"test/calibration curve", "test/feature importance"}
    assert Page(page).pictures.keys() == titles
    assert "id 0" not in output  # a dataset without a manifest, where 0 is an id as any other
    flags = ("--mode=test", f"--dataset={dataset}", f"--load_checkpoint_path={trained}")
    assert_tells(program.refused(*flags, "--gauc_by=user"), "--gauc_by user", "cat_0")


def test_a_training_explains_the_model_that_a_test_takes(program, dataset, tmp_path):
    run, report = tmp_path / "run", f"--report={tmp_path / 'page.html'}"
    worse_at_the_end = ("--optimizer=rowwise_adagrad", "--lr=0.02", "--reset_embeddings")
    length = ("--epochs=2", "--max_steps=50")
    compared = "--baselines=logistic_regression"
    records = program.train(dataset, run, *worse_at_the_end, *length, report, compared)
    explained = next(r["data"] for r in records if "explained_step" in r["data"])
    assert explained.pop("explained_step") == explained.pop("compared_step") == 47
    tested = program.test(dataset, run, report, compared)
    assert explained == {name: tested[name] for name in explained}
    assert len(explained["feature_importance"]) == 7


def test_the_id_of_missing_rare_and_unseen_values_is_no_group(program, tmp_path):
    (tmp_path / "log").write_bytes(good_text(900, seed=4, vocabulary=50))
    dataset, folder = tmp_path / "dataset", tmp_path / "run"
    rules = ClicksSemantics(frequency_limit=15, split_fractions=(0.7, 0.1, 0.2))
    run(tmp_path / "log", dataset, "reference", semantics=rules)
    program.train(dataset, folder, "--test_after=2")
    values = program.test(dataset, folder, "--gauc_by=cat_3")
    ids = np.fromfile(next(dataset.glob("**/test/cat_3.bin")), np.int8)
    zeros = int((ids == 0).sum())
    assert 0 < zeros < len(ids) == values["num_rows"]
    assert values["gauc_rows_left_out"] == zeros
    assert values["gauc_groups"] <= len(set(ids) - {0})
    assert_tells(program.stdout, "id 0", f"{zeros} rows", f"{zeros / len(ids):.1%}")


@pytest.mark.parametrize("dataset_type", ["split", "parquet"])
def test_sequences_are_for_bert4rec(program, tmp_path, dataset_type):
    ratings, sequences = tmp_path / "ratings.csv", tmp_path / "sequences"
    lines = [f"{user},{item},5,{item}" for user in range(4) for item in range(1, 7)]
    ratings.write_text("\n".join(["userId,movieId,rating,timestamp", *lines, ""]))
    assert movielens.main(["movielens", f"--input={ratings}", f"--output={sequences}"]) == 0
    error = program.refused(f"--dataset={sequences}", f"--dataset_type={dataset_type}")
    assert_tells(error, "--dataset", sequences, "train bert4rec")


def test_learning_is_reported(program, dataset):
    records = program(f"--dataset={dataset}", "--print_freq=10")
    assert final(records)["best_auc"] > 0.8
    assert "Epoch:[0/1] [10/47]" in program.stdout
    assert "Epoch 0 step 47. auc 0.8" in program.stdout


@pytest.mark.parametrize("dataset_type", ["memmap", "binary", "parquet", "npy"])
def test_every_dataset_type_gives_the_same_model(program, dataset, trained, tmp_path, dataset_type):
    program.train(dataset, tmp_path / "run", f"--dataset_type={dataset_type}")
    assert_same(tmp_path / "run", trained)
    tested = program.test(dataset, tmp_path / "run", f"--dataset_type={dataset_type}")
    assert tested["auc"] == latest(trained).state["best_metric"]


def test_formats_of_one_preparation_differ_by_the_rounding_of_split_alone(program, tmp_path):
    """Its numbers are float16, those of the others float32, as docs/training_input.md says."""
    (tmp_path / "log").write_bytes(good_text(2000, seed=4, vocabulary=50))
    rules = ClicksSemantics(frequency_limit=2, split_fractions=(0.8, 0.1, 0.1))
    dataset, formats = tmp_path / "dataset", ("split", "parquet", "npy")
    run(tmp_path / "log", dataset, "reference", semantics=rules, format=formats)
    curves = {}
    for name in formats:
        flags = (f"--dataset={dataset}", f"--dataset_type={name}", "--print_freq=1", "--lr=0.05")
        curves[name] = losses(program(*flags))
    assert len(curves["npy"]) == 13
    assert curves["npy"] == curves["parquet"]
    assert curves["split"] != curves["parquet"]
    assert curves["split"] == pytest.approx(curves["parquet"], rel=1e-3)


def test_parquet_and_split_of_a_schema_with_float32_give_the_same_model(program, tmp_path):
    columns = "[{name: x, role: numerical, type: float}, {name: c, role: categorical, type: int}]"
    (tmp_path / "schema.yaml").write_text(
        f"label: {{column: y}}\ncolumns: {columns}\nsplit: {{fractions: [0.8, 0.1, 0.1]}}\n"
    )
    rng = np.random.default_rng(2)
    rows = (f"{int(rng.random() < 0.5)},{rng.random():.7f},{rng.integers(9)}" for _ in range(1500))
    (tmp_path / "log.csv").write_text("\n".join(["y,x,c", *rows, ""]))
    words = (f"--input={tmp_path / 'log.csv'}", f"--output={tmp_path / 'dataset'}")
    schema = f"--schema={tmp_path / 'schema.yaml'}"
    assert clicks_program.main(["clicks", *words, schema, "--format=split,parquet"]) == 0
    for name in ("split", "parquet"):
        program.train(tmp_path / "dataset", tmp_path / name, f"--dataset_type={name}")
    assert_same(tmp_path / "split", tmp_path / "parquet")


@pytest.mark.parametrize("dataset_type", ["synthetic_gpu", "synthetic_disk"])
@pytest.mark.parametrize(
    ("mode", "wanted"),
    [
        (["train"], "best_auc"),
        (
            [
                "inference_benchmark",
                "--inference_benchmark_batch_sizes=1,64",
                "--inference_benchmark_steps=5",
            ],
            "mean_inference_latency_batch_64",
        ),
    ],
)
def test_synthetic_data_needs_no_dataset(program, tmp_path, dataset_type, mode, wanted):
    folder = f"--synthetic_dataset_dir={tmp_path / 'made'}"
    records = program(
        f"--dataset_type={dataset_type}",
        *([folder] if dataset_type == "synthetic_disk" else []),
        "--mode",
        *mode,
        "--synthetic_dataset_num_entries=1600",
        "--synthetic_dataset_table_sizes=10,200,3000",
        "--synthetic_distribution=zipf",
        "--num_numerical_features=5",
    )
    assert wanted in final(records)


@pytest.mark.parametrize("loaded_as", ["joint", "joint_sparse", "multi_table"])
def test_checkpoint_does_not_depend_on_the_embedding_type(program, dataset, trained, loaded_as):
    """Nor on flags of the model's shape, which comes from the checkpoint."""
    tested = program.test(dataset, trained, f"--embedding_type={loaded_as}", model=())
    expected = latest(trained).state["best_metric"]
    assert tested["auc"] == pytest.approx(expected, abs=1e-9)
    assert set(tested) >= {"auc", "avg_inference_latency", "average_test_throughput", "log_loss"}


@pytest.mark.parametrize(
    ("optimizer", "embedding_type", "seeds"),
    [("sgd", "multi_table", 1), ("rowwise_adagrad", "joint_fused", 2), ("adam", "multi_table", 3)],
)
def test_resumed_run_equals_the_uninterrupted_one(
    program, dataset, tmp_path, optimizer, embedding_type, seeds
):
    common = (
        *("--epochs=2", "--shuffle_batch_order", "--test_freq=20", "--dropout=0.2", "--batch_norm"),
        *("--plateau_factor=0.5", f"--optimizer={optimizer}", f"--embedding_type={embedding_type}"),
        *("--lr=0.02", "--amp", f"--seeds={seeds}"),
        *(("--embedding_l2=0.01",) if optimizer == "adam" else ()),
    )
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    program.train(dataset, whole, *common)
    for stop in (["--max_steps=13"], ["--max_steps=47"], ["--max_steps=60"], []):
        program.train(dataset, parts, *common, *stop, "--resume")
    assert_same(parts, whole)
    assert latest(whole).state["step"] == 94


def test_the_command_line_of_nvidias_script_is_taken(program, dataset, tmp_path):
    run, folder, parametric = tmp_path / "run", tmp_path / "nvidia", "--dataset_type=parametric"
    records = program.train(dataset, run, parametric, "--embedding_type=custom_cuda")
    assert records[0]["data"]["embedding_type"] == "joint_fused"
    assert records[0]["data"]["dataset_type"] == "split"
    opened = DlrmCheckpoint.open(run)
    write_nvidia_folder(folder, opened.load(), **opened.settings)
    assert DlrmCheckpoint.open(folder).table_sizes == CARDINALITIES
    tested = program.test(dataset, folder, parametric, model=SMALL_MODEL[3:])
    assert tested["auc"] == final(records)["best_auc"]


def test_auc_threshold_stops_and_saves(program, dataset, tmp_path):
    flags = ("--epochs=5", "--auc_threshold=0.75", "--test_freq=10")
    records = program.train(dataset, tmp_path / "run", *flags)
    assert latest(tmp_path / "run").state["ended"] == "threshold"
    assert final(records)["best_auc"] >= 0.75
    assert latest(tmp_path / "run").state["step"] < 47 * 5


def test_the_best_by_log_loss_is_kept_and_counted(program, dataset, tmp_path):
    flags = ("--optimizer=adam", "--lr=0.05", "--epochs=9", "--test_freq=20", "--patience=2")
    best = {}
    for best_by, sign in (("auc", 1), ("log_loss", -1)):
        run = tmp_path / best_by
        records = program.train(dataset, run, f"--best_by={best_by}", *flags)
        values = [sign * r["data"][best_by] for r in records if "log_loss" in r["data"]]
        best[best_by] = values.index(max(values))
        assert len(values) == best[best_by] + 3
        assert sign * program.test(dataset, run)[best_by] == max(values)
    assert best["log_loss"] < best["auc"]
    arguments = (f"--dataset={dataset}", f"--save_checkpoint_path={run}", "--resume", *flags)
    assert "--best_by" in program.refused(*arguments)


def test_dataset_subset_and_eval_split(program, dataset):
    flags = ("--batch_size=60", "--dataset_subset=.29", "--eval_split=validation")
    records = program(f"--dataset={dataset}", *flags)
    evaluation = next(r for r in records if "log_loss" in r["data"])
    assert evaluation["step"] == [0, 29]  # 0.29 * 100 is less
    assert evaluation["data"]["num_rows"] == ROWS["validation"]


def test_constant_labels_are_called_divergence(program, dataset, tmp_path):
    copy = shutil.copytree(dataset, tmp_path / "constant")
    for split in ("train", "test"):
        file = copy / split / "label.bin"
        file.write_bytes(bytes(file.stat().st_size))
    flags = ("--lr=100", "--epochs=50", "--print_freq=50", "--test_after=60")
    program(f"--dataset={copy}", *flags, status=4)
    assert_tells(program.stderr, "labels")


def test_shuffled_labels_are_called_guessing(program, tmp_path):
    generator = np.random.default_rng(0)
    spec = FeatureSpec.criteo((5,), 1)
    spec.save(tmp_path)
    for split, rows in (("train", 2000), ("test", 60_000)):
        columns = ClickColumns(
            generator.random(rows) < 0.5,
            generator.normal(size=(rows, 1)).astype(np.float16),
            (generator.integers(0, 5, rows).astype(np.int8),),
        )
        with SplitBinaryWriter(tmp_path / split, spec, rows) as writer:
            writer.write(0, columns)
    program(f"--dataset={tmp_path}", status=4)
    assert_tells(program.stderr, "guessing")


def test_a_diverged_model_is_not_saved(program, dataset, tmp_path):
    folder = tmp_path / "run"
    program.train(dataset, folder, "--lr=1e38", "--max_steps=1", status=4)
    assert_tells(program.stderr, "NaN")
    assert not [path for path in folder.rglob("*") if path.is_file()]


@pytest.mark.parametrize("seed", [20240101, 2**62])
def test_a_seed_of_any_size_draws_batches(program, dataset, seed):
    generated = ("--dataset_type=synthetic_gpu", "--synthetic_dataset_num_entries=1000")
    for data in (generated, (f"--dataset={dataset}", "--shuffle")):
        records = program(*data, f"--seed={seed}", "--max_steps=2", "--print_freq=1")
        assert len(losses(records)) == 2


def test_the_last_short_batch_trains(program, dataset):
    program(f"--dataset={dataset}", "--batch_size=5000", "--print_freq=1")
    assert_tells(program.stdout, 2, 5000, "[2/2]", "--save_checkpoint_path")


def test_drop_last_says_what_it_leaves_out_and_is_kept_by_a_resumed_run(program, dataset, tmp_path):
    run = tmp_path / "run"
    program.train(dataset, run, "--batch_size=5000", "--drop_last", "--print_freq=1")
    assert_tells(program.stdout, 1, 5000, "--drop_last", 1000, "16.7%", "[1/1]")
    assert "--save_checkpoint_path" not in program.stdout
    more = ("--batch_size=5000", "--resume", "--epochs=2")
    program.train(dataset, run, *more, status=2)
    assert "--drop_last (was True, now False)" in program.stderr
    program.train(dataset, run, *more, "--drop_last")


def test_a_model_no_better_than_chance_is_named(program, dataset, caplog):
    program(f"--dataset={dataset}", "--lr=1e-9", "--eval_split=validation", "--seed=9")
    assert_tells(caplog.text, f"{ROWS['validation']} rows")


EMBEDDINGS = ("joint_fused", "joint", "joint_sparse", "multi_table")
INTERACTIONS = ("cuda_dot", "dot", "cat")
STORAGES = ("float32", "bfloat16")
PRECISIONS = {"float32": (), "bfloat16": ("--amp", "--amp_dtype=bfloat16")}
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
    best = max(within, key=lambda step: within[step]["auc"])
    assert read_checkpoint(folder).state["step"] == best  # a run is known by its best
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
    monkeypatch.setattr("recsys.train.optimizers.precision._cpu_gains_by_bfloat16", lambda: True)


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
