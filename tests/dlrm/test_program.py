# SPDX-License-Identifier: Apache-2.0
"""dlrm.scripts.main end to end: modes, dataset types, log, checkpoints."""

import re

import numpy as np
import pytest
import torch

from dlrm.model.weights import OpenedCheckpoint
from preproc import movielens
from preproc.criteo.rules import CriteoSemantics
from recsys.train.checkpoint import read_checkpoint
from recsys.train.saving.run_folder import CheckpointFolder
from tests.dlrm.conftest import CARDINALITIES, ROWS, SMALL_MODEL
from tests.preproc.criteo.rows import good_text, run

DATASET_TYPES = ("split", "memmap", "binary", "parquet")


def final(records):
    assert records[-1]["step"] == []
    return records[-1]["data"]


def latest(folder):
    return read_checkpoint(CheckpointFolder(folder).latest())


def weights(folder):
    checkpoint = latest(folder)
    return {
        f"{group}.{name}": tensor
        for group in checkpoint.groups()
        for name, tensor in checkpoint.tensors(group).items()
    }


def test_embeddings_are_drawn_anew_before_each_epoch(program, dataset, tmp_path, capsys):
    """Tables and the states of their rows, which would else be those of two epochs."""
    runs = []
    flags = ("--optimizer=rowwise_adagrad", "--lr=1e-9", "--reset_embeddings")
    for epochs in (1, 2):
        folder = tmp_path / str(epochs)
        program(
            f"--dataset={dataset}", f"--save_checkpoint_path={folder}", f"--epochs={epochs}", *flags
        )
        assert program.exit_code == 0, capsys.readouterr().err
        runs.append(weights(folder))
    once, twice = (run["embedding_2.weight"] for run in runs)
    assert not torch.allclose(once, twice, atol=1e-3)
    bound = CARDINALITIES[2] ** -0.5
    assert all(0.99 * bound < table.abs().max() <= bound + 1e-6 for table in (once, twice))
    once, twice = (float(run["embedding_0.sum_of_squares"].sum()) for run in runs)
    assert once == pytest.approx(twice, rel=0.3)


def test_patience_does_not_end_a_run_at_new_embeddings(program, dataset, capsys):
    program(
        f"--dataset={dataset}",
        *("--optimizer=rowwise_adagrad", "--lr=0.02", "--reset_embeddings", "--epochs=2"),
        *("--test_freq=5", "--patience=1"),
    )
    output = capsys.readouterr().out
    assert program.exit_code == 0
    aucs = {
        (int(epoch), int(step)): float(auc)
        for epoch, step, auc in re.findall(
            r"^Epoch (\d) step (\d+)\. auc (0\.\d{6})$", output, re.MULTILINE
        )
    }
    assert aucs[1, 3] < aucs[0, 47] < aucs[1, 47]
    assert "negative" not in output
    assert "Finished after 94 steps: best auc 0." in output


def test_a_checkpoint_is_explained_and_scored_within_groups(program, dataset, tmp_path, capsys):
    folder, page = tmp_path / "run", tmp_path / "page.html"
    program(f"--dataset={dataset}", f"--save_checkpoint_path={folder}")
    tested = (f"--dataset={dataset}", "--mode=test", f"--load_checkpoint_path={folder}")
    values = final(program(*tested, "--gauc_by=cat_0", f"--report={page}"))
    output = capsys.readouterr().out
    assert program.exit_code == 0
    assert values["gauc_groups"] == CARDINALITIES[0]
    assert values["gauc"] < values["auc"]  # which also knows the groups' means
    assert next(iter(values["feature_importance"])) in ("num_0", "cat_0")
    assert len(values["calibration_curve"]) == 10
    assert "shuffled, the 7 largest: mean (least and most of 3 shuffles)\n" in output
    assert re.search(r"^  (num|cat)_0 +0\.\d+ \(least 0\.\d+, most 0\.\d+\)$", output, re.MULTILINE)
    assert "Calibration" in page.read_text()
    assert "the least and the most of them" in page.read_text()
    assert "id 0" not in output  # a dataset without a manifest, where 0 is an id as any other
    program(*tested, "--gauc_by=user")
    assert "--gauc_by user: no categorical feature" in capsys.readouterr().err


def test_the_id_of_missing_rare_and_unseen_values_is_no_group(program, tmp_path, capsys):
    (tmp_path / "log").write_bytes(good_text(900, seed=4, vocabulary=50))
    dataset, folder = tmp_path / "dataset", tmp_path / "run"
    rules = CriteoSemantics(frequency_limit=15, split_fractions=(0.7, 0.1, 0.2))
    run(tmp_path / "log", dataset, "reference", semantics=rules)
    program(f"--dataset={dataset}", f"--save_checkpoint_path={folder}", "--test_after=2")
    values = final(
        program(f"--dataset={dataset}", "--mode=test", f"--load_checkpoint_path={folder}",
                "--gauc_by=cat_3")
    )  # fmt: skip
    output = capsys.readouterr().out
    ids = np.fromfile(next(dataset.glob("**/test/cat_3.bin")), np.int8)
    zeros = int((ids == 0).sum())
    assert 0 < zeros < len(ids) == values["num_rows"]
    assert values["gauc_rows_left_out"] == zeros
    assert values["gauc_groups"] <= len(set(ids) - {0})
    line = (
        f"without id 0, the missing, rare and unseen values: {zeros} rows, {zeros / len(ids):.1%}"
    )
    assert line in output


@pytest.mark.parametrize("dataset_type", ["split", "parquet"])
def test_sequences_are_for_bert4rec(program, tmp_path, capsys, dataset_type):
    ratings, sequences = tmp_path / "ratings.csv", tmp_path / "sequences"
    lines = [f"{user},{item},5,{item}" for user in range(4) for item in range(1, 7)]
    ratings.write_text("\n".join(["userId,movieId,rating,timestamp", *lines, ""]))
    assert movielens.main(["movielens", f"--input={ratings}", f"--output={sequences}"]) == 0
    program(f"--dataset={sequences}", f"--dataset_type={dataset_type}")
    error = capsys.readouterr().err
    assert program.exit_code == 2
    assert f"--dataset: {sequences} is a dataset of sequences, for BERT4Rec: train it by" in error


def test_torchrecs_arrays_train_and_predict_as_parquet_does(program, tmp_path, capsys):
    (tmp_path / "log").write_bytes(good_text(900, seed=4, vocabulary=50))
    dataset = tmp_path / "dataset"
    rules = CriteoSemantics(frequency_limit=2, split_fractions=(0.7, 0.1, 0.2))
    run(tmp_path / "log", dataset, "reference", semantics=rules, format=("parquet", "npy"))
    runs = []
    for dataset_type in ("parquet", "npy"):
        folder = tmp_path / dataset_type
        of_dataset = (f"--dataset={dataset}", f"--dataset_type={dataset_type}")
        program(*of_dataset, f"--save_checkpoint_path={folder}", "--test_after=2")
        assert program.exit_code == 0, capsys.readouterr().err
        tested = program(*of_dataset, "--mode=test", f"--load_checkpoint_path={folder}")
        assert program.exit_code == 0, capsys.readouterr().err
        runs.append((weights(folder), final(tested)["log_loss"]))
    assert runs[0][1] == runs[1][1]
    assert all(torch.equal(runs[1][0][name], value) for name, value in runs[0][0].items())


@pytest.mark.parametrize("dataset_type", DATASET_TYPES)
def test_learns_from_every_dataset_type(program, dataset, dataset_type, capsys):
    records = program(f"--dataset={dataset}", f"--dataset_type={dataset_type}", "--print_freq=10")
    assert program.exit_code == 0, capsys.readouterr().err
    assert final(records)["best_auc"] > 0.8
    out = capsys.readouterr().out
    assert "Epoch:[0/1] [10/47]" in out
    assert "Epoch 0 step 47. auc 0.8" in out


def test_every_dataset_type_gives_the_same_model(program, dataset, tmp_path):
    found = []
    for dataset_type in DATASET_TYPES:
        folder = tmp_path / dataset_type
        program(
            f"--dataset={dataset}",
            f"--dataset_type={dataset_type}",
            "--max_steps=10",
            f"--save_checkpoint_path={folder}",
        )
        found.append(weights(folder))
    for other in found[1:]:
        assert all(torch.equal(other[k], v) for k, v in found[0].items())


@pytest.mark.parametrize("dataset_type", ["synthetic_gpu", "synthetic_disk"])
@pytest.mark.parametrize("mode", ["train", "inference_benchmark"])
def test_synthetic_data_needs_no_dataset(program, tmp_path, dataset_type, mode):
    records = program(
        f"--dataset_type={dataset_type}",
        f"--mode={mode}",
        f"--synthetic_dataset_dir={tmp_path / 'made'}",
        "--synthetic_dataset_num_entries=1600",
        "--synthetic_dataset_table_sizes=10,200,3000",
        "--synthetic_distribution=zipf",
        "--num_numerical_features=5",
        "--inference_benchmark_batch_sizes=1,64",
        "--inference_benchmark_steps=5",
    )
    assert program.exit_code == 0
    wanted = "best_auc" if mode == "train" else "mean_inference_latency_batch_64"
    assert wanted in final(records)


@pytest.mark.parametrize("interaction_op", ["cuda_dot", "dot", "cat", "dcnv2"])
@pytest.mark.parametrize("embedding_type", ["joint", "joint_fused", "joint_sparse", "multi_table"])
def test_every_embedding_and_interaction_learns(program, dataset, interaction_op, embedding_type):
    records = program(
        f"--dataset={dataset}",
        f"--interaction_op={interaction_op}",
        f"--embedding_type={embedding_type}",
        "--dcn_low_rank_dim=4",
        "--optimizer=rowwise_adagrad",
        "--lr=0.05",
    )
    assert final(records)["best_auc"] > 0.75


def test_checkpoint_scores_the_same_in_test_mode(program, dataset, tmp_path):
    folder = tmp_path / "run"
    trained = final(program(f"--dataset={dataset}", f"--save_checkpoint_path={folder}"))
    tested = final(
        program(
            "--mode=test",
            f"--dataset={dataset}",
            f"--load_checkpoint_path={folder}",
            "--base_device=cpu",
            model=(),  # the model's shape comes from the checkpoint
        )
    )
    assert tested["auc"] == trained["best_auc"]
    assert set(tested) >= {"auc", "avg_inference_latency", "average_test_throughput", "log_loss"}


@pytest.mark.parametrize("loaded_as", ["joint", "joint_sparse", "multi_table"])
def test_checkpoint_does_not_depend_on_the_embedding_type(program, dataset, tmp_path, loaded_as):
    folder = tmp_path / "run"
    trained = final(program(f"--dataset={dataset}", f"--save_checkpoint_path={folder}"))
    tested = program(
        "--mode=test",
        f"--dataset={dataset}",
        f"--load_checkpoint_path={folder}",
        f"--embedding_type={loaded_as}",
        model=(),
    )
    assert final(tested)["auc"] == pytest.approx(trained["best_auc"], abs=1e-9)


@pytest.mark.parametrize("optimizer", ["sgd", "rowwise_adagrad", "adam"])
@pytest.mark.parametrize("embedding_type", ["joint_fused", "multi_table"])
def test_resumed_run_equals_the_uninterrupted_one(
    program, dataset, tmp_path, optimizer, embedding_type
):
    common = (
        f"--dataset={dataset}",
        "--epochs=2",
        "--shuffle_batch_order",
        "--test_freq=20",
        "--dropout=0.2",
        "--batch_norm",
        "--plateau_factor=0.5",
        f"--optimizer={optimizer}",
        f"--embedding_type={embedding_type}",
        "--lr=0.02",
        "--amp",
    )
    program(*common, f"--save_checkpoint_path={tmp_path / 'whole'}")
    for stop in (13, 47, 60):
        program(*common, f"--save_checkpoint_path={tmp_path / 'parts'}", f"--max_steps={stop}",
                "--resume")  # fmt: skip
    program(*common, f"--save_checkpoint_path={tmp_path / 'parts'}", "--resume")
    whole, parts = weights(tmp_path / "whole"), weights(tmp_path / "parts")
    assert whole.keys() == parts.keys()
    assert all(torch.equal(whole[k], parts[k]) for k in whole)
    assert latest(tmp_path / "whole").state["step"] == 94


def test_best_checkpoint_is_kept_beside_the_latest(program, dataset, tmp_path):
    # The rate is so high at the end that the last evaluation is not the best one.
    records = program(
        f"--dataset={dataset}",
        f"--save_checkpoint_path={tmp_path / 'run'}",
        "--test_freq=10",
        "--epochs=2",
        "--optimizer=adam",
        "--lr=0.05",
    )
    folder = CheckpointFolder(tmp_path / "run")
    best = read_checkpoint(folder.best())
    assert best.state["best_metric"] == final(records)["best_auc"]
    assert latest(tmp_path / "run").state["step"] == 94
    assert len(list((tmp_path / "run").glob("step_*"))) <= 2
    tested = program(
        "--mode=test", f"--dataset={dataset}", f"--load_checkpoint_path={tmp_path / 'run'}"
    )
    assert final(tested)["auc"] == best.state["best_metric"]


def test_nvidia_layout_round_trip(program, dataset, tmp_path):
    folder = tmp_path / "nvidia"
    trained = final(
        program(
            f"--dataset={dataset}",
            f"--save_checkpoint_path={folder}",
            "--checkpoint_format=nvidia",
        )
    )
    assert (folder / "bottom_model.embeddings.3.bin").stat().st_size == 17 * 8 * 4
    tested = program("--mode=test", f"--dataset={dataset}", f"--load_checkpoint_path={folder}",
                     model=SMALL_MODEL[3:])  # fmt: skip
    assert final(tested)["auc"] == trained["best_auc"]


def test_the_command_line_of_nvidias_script_is_taken(program, dataset, tmp_path):
    folder = tmp_path / "nvidia"
    records = program(
        "--dataset_type=parametric", f"--dataset={dataset}", "--embedding_type=custom_cuda",
        f"--save_checkpoint_path={folder}", "--checkpoint_format=nvidia",
    )  # fmt: skip
    assert program.exit_code == 0
    assert records[0]["data"]["embedding_type"] == "joint_fused"
    assert OpenedCheckpoint.open(folder).table_sizes == CARDINALITIES
    metadata = torch.load(folder / "metadata.pt", weights_only=True)
    assert metadata["data"]["device_mapping"]["embedding"] == [[2, 1, 3, 0]]
    tested = program("--mode=test", "--dataset_type=parametric", f"--dataset={dataset}",
                     f"--load_checkpoint_path={folder}", model=SMALL_MODEL[3:])  # fmt: skip
    assert program.exit_code == 0
    assert tested[0]["data"]["dataset_type"] == "split"


def test_auc_threshold_stops_and_saves(program, dataset, tmp_path, capsys):
    records = program(
        f"--dataset={dataset}",
        "--epochs=5",
        "--auc_threshold=0.75",
        "--test_freq=10",
        f"--save_checkpoint_path={tmp_path / 'run'}",
    )
    assert "Hit target accuracy AUC 0.75" in capsys.readouterr().out
    assert final(records)["best_auc"] >= 0.75
    assert latest(tmp_path / "run").state["step"] < 47 * 5


def test_dataset_subset_and_eval_split(program, dataset):
    records = program(f"--dataset={dataset}", "--dataset_subset=0.5", "--eval_split=validation")
    evaluation = next(r for r in records if "log_loss" in r["data"])
    assert evaluation["step"] == [0, 23]
    assert evaluation["data"]["num_rows"] == ROWS["validation"]


def test_constant_labels_are_called_divergence(program, dataset, tmp_path, capsys):
    import shutil

    copy = tmp_path / "constant"
    shutil.copytree(dataset, copy)
    for split in ("train", "test"):
        file = copy / split / "label.bin"
        file.write_bytes(bytes(file.stat().st_size))
    program(f"--dataset={copy}", "--lr=100", "--epochs=50", "--print_freq=50", "--test_after=60")
    assert program.exit_code == 4
    assert "all labels seen are equal" in capsys.readouterr().err


def test_shuffled_labels_are_called_guessing(program, tmp_path, capsys):
    import numpy as np

    from recsys.data.click_columns import ClickColumns
    from recsys.data.feature_spec import FeatureSpec
    from recsys.data.split_binary import SplitBinaryWriter

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
    program(f"--dataset={tmp_path}")
    assert program.exit_code == 4
    assert "the model is guessing" in capsys.readouterr().err


@pytest.mark.parametrize("layout", ["native", "nvidia"])
def test_a_diverged_model_is_not_saved(program, dataset, tmp_path, capsys, layout):
    folder = tmp_path / "run"
    program(f"--dataset={dataset}", "--lr=1e38", "--max_steps=1", f"--checkpoint_format={layout}",
            f"--save_checkpoint_path={folder}")  # fmt: skip
    assert program.exit_code == 4
    assert "is NaN or infinite" in capsys.readouterr().err
    assert not [path for path in folder.rglob("*") if path.is_file()]


@pytest.mark.parametrize("seed", [20240101, 2**62])
def test_a_seed_of_any_size_draws_batches(program, dataset, seed):
    generated = ("--dataset_type=synthetic_gpu", "--synthetic_dataset_num_entries=1000")
    for data in (generated, (f"--dataset={dataset}", "--shuffle")):
        log = program(*data, f"--seed={seed}", "--max_steps=2", "--print_freq=1")
        assert program.exit_code == 0
        assert len([entry for entry in log if "loss" in entry["data"]]) == 2
