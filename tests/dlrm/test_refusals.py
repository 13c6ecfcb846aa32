# SPDX-License-Identifier: Apache-2.0
"""Malformed flags, datasets and checkpoints: a clear message, exit code 2, nothing written."""

import os
import re
import shutil

import pytest

from tests import harness
from tests.recsys.serve.checkpoints import bert4rec_checkpoint
from tests.tools import needs

FLAGS = [
    (["--embedding_dim=4"], r"--bottom_mlp_sizes must end with --embedding_dim \(4\), got 16,8"),
    (["--bottom_mlp_sizes=16,x"], "--bottom_mlp_sizes must be integers separated by commas"),
    (["--bottom_mlp_sizes="], "--bottom_mlp_sizes must be positive integers"),
    (["--bottom_mlp_sizes=0,8"], "--bottom_mlp_sizes must be positive integers"),
    (["--top_mlp_sizes=16,2"], "--top_mlp_sizes must end with 1"),
    (["--batch_size=0"], "--batch_size must be at least 1"),
    (["--test_batch_size=-5"], "--test_batch_size must be at least 1"),
    (["--epochs=0"], "--epochs must be at least 1"),
    (["--max_steps=0"], "--max_steps must be at least 1"),
    (["--print_freq=0"], "--print_freq must be at least 1"),
    (["--lr=-1"], "--lr must not be negative"),
    (["--lr=nan"], "--lr must be a finite number, got nan"),
    (["--loss_scale=inf"], "--loss_scale must be a finite number, got inf"),
    (["--warmup_factor=-1"], "--warmup_factor must not be negative"),
    (["--seed=18446744073709551616"], "--seed must be"),
    (["--num_threads=100000"], "--num_threads must be at most 1024, got 100000"),
    (["--synthetic_dataset_num_entries=1000000000000000"], "--synthetic_dataset_num_entries must"),
    (["--top_mlp_sizes=1000000,10000000,1"], "To change: smaller --bottom_mlp_sizes and --top_mlp"),
    (["--loss_scale=0"], "--loss_scale must be positive"),
    (["--batch_norm", "--checkpoint_format=nvidia"], "--checkpoint_format nvidia has no tensors"),
    (["--batch_norm", "--batch_size=5999"], "--batch_norm needs two rows .*: use --drop_last"),
    (["--plateau_factor=0"], r"--plateau_factor must lie in \(0, 1\]"),
    (["--patience=0"], "--patience must be at least 1"),
    (["--quantize=int8"], "--quantize is for trained models, not for --mode train"),
    (["--quantize=int8", "--mode=test", "--amp"], "--quantize and --amp exclude each other"),
    (["--quantize=int8", "--mode=test", "--batch_norm"], "--quantize does not know the layers of"),
    (["--dropout=1"], r"--dropout must lie in \[0, 1\)"),
    (["--dataset_subset=2"], r"--dataset_subset must lie in \(0, 1\]"),
    (["--dataset_subset=0.001"], "--dataset_subset 0.001; use a smaller one"),
    (["--auc_threshold=80"], r"--auc_threshold must lie in \(0, 1\]"),
    (["--max_table_size=10"], "--max_table_size .* needs --hash_indices"),
    (["--num_numerical_features=5"], "the feature spec of the dataset has 3"),
    (["--optimized_mlp"], "--optimized_mlp needs a CUDA device"),
    (["--cuda_graphs"], "--cuda_graphs needs a CUDA device"),
    (["--warmup_steps=100", "--decay_start_step=50"], "--decay_start_step"),
    (["--batch_size=100000", "--drop_last"], "leaves no whole batch of 6000 rows"),
    (["--inference_benchmark_batch_sizes=0"], "--inference_benchmark_batch_sizes must be positive"),
    (["--checkpoint_format=nvidia", "--interaction_op=dcnv2"], "--checkpoint_format nvidia has no"),
    (
        ["--mode=inference_benchmark", "--inference_benchmark_batch_sizes=1,99999"],
        "--inference_benchmark_batch_sizes 99999: the test split has fewer rows",
    ),
    (
        ["--dataset_type=synthetic_gpu", "--test_batch_size=90000000000000", "--mode=test"],
        "out of memory: take smaller batches",
    ),
]


@pytest.mark.parametrize(("arguments", "message"), FLAGS, ids=[" ".join(a) for a, _ in FLAGS])
def test_flags(program, dataset, tmp_path, arguments, message):
    output = tmp_path / "run"
    error = program.refused(f"--dataset={dataset}", f"--save_checkpoint_path={output}", *arguments)
    assert error.startswith("error: ")
    assert re.search(message, error), error
    assert not output.exists()


@needs("machine without CUDA device")
def test_cuda_that_is_not_there(program, dataset):
    error = program.refused(f"--dataset={dataset}", "--base_device=cuda")
    assert re.search("error: --base_device cuda: .* no CUDA device", error)


def test_no_dataset(program):
    assert "needs --dataset" in program.refused()


def cut_numerical(root):
    file = root / "train" / "numerical.bin"
    file.write_bytes(file.read_bytes()[:-1])


def damaged_parquet(root):
    for file in (root / "parquet" / "train").glob("*.parquet"):
        file.write_bytes(file.read_bytes()[:1000])


def empty_test(root):
    for file in (root / "test").iterdir():
        os.truncate(file, 0)


DATASETS = [  # more damages, as readers name them: tests/recsys/data/test_hostile.py
    ("split", cut_numerical, "numerical.bin has"),
    ("split", lambda r: (r / "train" / "cat_2.bin").unlink(), "cat_2.bin"),
    ("split", lambda r: shutil.rmtree(r / "test"), "no folder test"),
    ("split", lambda r: os.truncate(r / "test" / "cat_2.bin", 100), "the file sizes fit neither"),
    ("split", empty_test, "no rows for the test split"),
    ("parquet", damaged_parquet, "not readable"),
    ("parquet", lambda r: shutil.rmtree(r / "parquet"), "no parquet files"),
    ("binary", lambda r: (r / "test_data.bin").unlink(), "test_data.bin is missing"),
    ("split", shutil.rmtree, "is not a folder"),
]


@pytest.mark.parametrize(("dataset_type", "damage", "message"), DATASETS)
def test_datasets(program, dataset, tmp_path, dataset_type, damage, message):
    copy, output = shutil.copytree(dataset, tmp_path / "copy"), tmp_path / "run"
    damage(copy)
    program.train(copy, output, f"--dataset_type={dataset_type}", "--max_steps=60", status=2)
    assert message in program.stderr
    assert "Epoch:" not in program.stdout
    assert not output.exists()


def change_table(folder):
    file = next(folder.glob("step_*/embedding_1.safetensors"))
    file.write_bytes(file.read_bytes()[:-10])


def other_model(folder):
    shutil.rmtree(folder)
    bert4rec_checkpoint(folder)


CHECKPOINTS = [  # more of them: tests/recsys/serve/test_damaged_checkpoints.py
    (other_model, [], "holds no embedding tables: not a checkpoint of DLRM"),
    (change_table, [], "embedding_1.safetensors: missing or cut short"),
    (lambda f: harness.put_nan(f, "mlp"), [], "layers.0.bias: holds values that are NaN"),
    (lambda f: harness.put_nan(f, "embedding_1"), [], "embedding_1, weight: holds values that are"),
    (lambda f: None, ["--embedding_dim=4", "--bottom_mlp_sizes=16,4"], "the model [4, 16]"),
    (lambda f: None, ["--top_mlp_sizes=32,1"], "top_mlp.layers.0.weight"),
]


@pytest.mark.parametrize(("damage", "arguments", "message"), CHECKPOINTS)
def test_checkpoints(program, dataset, trained, tmp_path, damage, arguments, message):
    folder = shutil.copytree(trained, tmp_path / "run")
    damage(folder)
    program("--mode=test", f"--dataset={dataset}", f"--load_checkpoint_path={folder}", *arguments,
            model=(), status=2)  # fmt: skip
    assert message in program.stderr


def test_another_dataset(program, dataset, trained, tmp_path):
    other = shutil.copytree(dataset, tmp_path / "other")
    text = (other / "feature_spec.yaml").read_text()
    (other / "feature_spec.yaml").write_text(text.replace("cardinality: 200", "cardinality: 201"))
    for mode in ("train", "test", "inference_benchmark"):
        error = program.refused(
            f"--mode={mode}", f"--dataset={other}", f"--load_checkpoint_path={trained}"
        )
        assert f"was trained on 200 rows of cat_1, {other} has 201 rows of cat_1" in error
        assert "name the dataset of the training with --dataset" in error


@pytest.mark.parametrize(("layout", "status"), [("native", 0), ("nvidia", 2)])
def test_files_of_others_are_never_removed(program, dataset, tmp_path, layout, status):
    notes = tmp_path / "run" / "step_by_step_notes" / "thesis.txt"
    notes.parent.mkdir(parents=True)
    notes.write_text("x")
    layout = f"--checkpoint_format={layout}"
    program.train(dataset, tmp_path / "run", layout, "--max_steps=2", status=status)
    assert notes.read_text() == "x"
    if status:
        assert "holds step_by_step_notes; NVIDIA's layout takes" in program.stderr


def test_a_destination_that_cannot_be_written_is_found_first(program, dataset, tmp_path):
    (tmp_path / "file").write_text("x")
    program.train(dataset, tmp_path / "file" / "run", status=2)
    assert "--save_checkpoint_path" in program.stderr
    assert "Epoch" not in program.stdout


def test_a_warmup_longer_than_the_run_is_pointed_out(program, dataset, caplog):
    program(f"--dataset={dataset}", "--max_steps=2", "--warmup_steps=6400")
    assert "the run has 2 steps and the warm-up takes 6400" in caplog.text


@pytest.mark.parametrize("flag", ["--mode=trian", "--lr=abc", "--eval_split=val"])
def test_a_value_that_does_not_parse(program, flag):
    assert flag.split("=")[0] in program.refused(flag)
