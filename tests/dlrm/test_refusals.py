# SPDX-License-Identifier: Apache-2.0
"""Malformed flags, datasets and checkpoints: a clear message, exit code 2, nothing written."""

import json
import re
import shutil

import pytest

from tests import harness
from tests.dlrm.conftest import SMALL_MODEL
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
def test_flags(program, dataset, tmp_path, capsys, arguments, message):
    output = tmp_path / "run"
    program(f"--dataset={dataset}", f"--save_checkpoint_path={output}", *arguments)
    error = capsys.readouterr().err
    assert program.exit_code == 2, error
    assert error.startswith("error: ")
    assert re.search(message, error), error
    assert not output.exists()


@needs("machine without CUDA device")
def test_cuda_that_is_not_there(program, dataset, capsys):
    program(f"--dataset={dataset}", model=(*SMALL_MODEL, "--base_device=cuda"))
    assert program.exit_code == 2
    assert re.search("error: --base_device cuda: .* no CUDA device", capsys.readouterr().err)


def test_no_dataset(program, capsys):
    program()
    assert program.exit_code == 2
    assert "needs --dataset" in capsys.readouterr().err


def cut_numerical(root):
    file = root / "train" / "numerical.bin"
    file.write_bytes(file.read_bytes()[:-1])


def wrong_id(root):
    file = root / "test" / "cat_0.bin"
    file.write_bytes(b"\x07" + file.read_bytes()[1:])


def bad_yaml(root):
    (root / "feature_spec.yaml").write_text("a: [1,")


def spec_without_cardinality(root):
    text = (root / "feature_spec.yaml").read_text()
    (root / "feature_spec.yaml").write_text(text.replace("cardinality: 200", "cardinality: auto"))


def negative_model_size(root):
    (root / "feature_spec.yaml").unlink()
    (root / "model_size.json").write_text(json.dumps({"_c14": -1}))


def damaged_parquet(root):
    for file in (root / "parquet" / "train").glob("*.parquet"):
        file.write_bytes(file.read_bytes()[:1000])


def cut_records(root):
    file = root / "train_data.bin"
    file.write_bytes(file.read_bytes()[:-3])


DATASETS = [
    ("split", cut_numerical, "numerical.bin has"),
    ("memmap", cut_numerical, "numerical.bin has"),
    ("split", lambda r: (r / "train" / "cat_2.bin").unlink(), "cat_2.bin"),
    ("split", lambda r: shutil.rmtree(r / "test"), "no folder test"),
    ("split", wrong_id, "feature cat_0, row 0: id 7"),
    ("split", bad_yaml, "not readable as YAML"),
    ("split", spec_without_cardinality, "must be an integer, got 'auto'"),
    ("split", negative_model_size, "highest id"),
    ("parquet", damaged_parquet, "not readable"),
    ("parquet", lambda r: shutil.rmtree(r / "parquet"), "no parquet files"),
    ("binary", cut_records, "no multiple of the 32-byte record"),
    ("binary", lambda r: (r / "test_data.bin").unlink(), "test_data.bin is missing"),
    ("split", shutil.rmtree, "is not a folder"),
]


@pytest.mark.parametrize(("dataset_type", "damage", "message"), DATASETS)
def test_datasets(program, dataset, tmp_path, capsys, dataset_type, damage, message):
    copy = tmp_path / "copy"
    shutil.copytree(dataset, copy)
    damage(copy)
    output = tmp_path / "run"
    program(
        f"--dataset={copy}",
        f"--dataset_type={dataset_type}",
        f"--save_checkpoint_path={output}",
        "--max_steps=60",
    )
    error = capsys.readouterr().err
    assert program.exit_code == 2, error
    assert message in error
    assert not output.exists()


def change_table(folder):
    file = next(folder.glob("step_*/embedding_1.safetensors"))
    file.write_bytes(file.read_bytes()[:-10])


def other_format(folder):
    file = next(folder.glob("step_*/manifest.json"))
    file.write_text(file.read_text().replace('"format_version": 1', '"format_version": 7'))


def lose_state(folder):
    next(folder.glob("step_*/mlp.safetensors")).unlink()


CHECKPOINTS = [
    (change_table, [], "embedding_1.safetensors: missing or cut short"),
    (other_format, [], "format version 7"),
    (lambda f: harness.put_nan(f, "mlp"), [], "layers.0.bias: holds values that are NaN"),
    (lambda f: harness.put_nan(f, "embedding_1"), [], "embedding_1, weight: holds values that are"),
    (lose_state, [], "mlp.safetensors: missing"),
    (shutil.rmtree, [], "no checkpoint here"),
    (lambda f: None, ["--embedding_dim=4", "--bottom_mlp_sizes=16,4"], "the model [4, 16]"),
    (lambda f: None, ["--top_mlp_sizes=32,1"], "top_mlp.layers.0.weight"),
]


def test_a_checkpoint_of_the_other_model_is_called_that(program, dataset, tmp_path, capsys):
    bert4rec_checkpoint(tmp_path / "run")
    program("--mode=test", f"--dataset={dataset}", f"--load_checkpoint_path={tmp_path / 'run'}")
    assert program.exit_code == 2
    assert "holds no embedding tables: not a checkpoint of DLRM" in capsys.readouterr().err


@pytest.mark.parametrize(("damage", "arguments", "message"), CHECKPOINTS)
def test_checkpoints(program, dataset, tmp_path, capsys, damage, arguments, message):
    folder = tmp_path / "run"
    program(f"--dataset={dataset}", f"--save_checkpoint_path={folder}", "--max_steps=2")
    assert program.exit_code == 0
    damage(folder)
    capsys.readouterr()
    program(
        "--mode=test",
        f"--dataset={dataset}",
        f"--load_checkpoint_path={folder}",
        *arguments,
        model=(),
    )
    error = capsys.readouterr().err
    assert program.exit_code == 2, error
    assert message in error


def test_another_dataset(program, dataset, tmp_path, capsys):
    folder, other = tmp_path / "run", tmp_path / "other"
    program(f"--dataset={dataset}", f"--save_checkpoint_path={folder}", "--max_steps=2")
    shutil.copytree(dataset, other)
    text = (other / "feature_spec.yaml").read_text()
    (other / "feature_spec.yaml").write_text(text.replace("cardinality: 200", "cardinality: 201"))
    for mode in ("train", "test", "inference_benchmark"):
        capsys.readouterr()
        program(f"--mode={mode}", f"--dataset={other}", f"--load_checkpoint_path={folder}")
        error = capsys.readouterr().err
        assert program.exit_code == 2, error
        assert f"was trained on 200 rows of cat_1, {other} has 201 rows of cat_1" in error
        assert "name the dataset of the training with --dataset" in error


@pytest.mark.parametrize("layout", ["native", "nvidia"])
def test_files_of_others_are_never_removed(program, dataset, tmp_path, capsys, layout):
    notes = tmp_path / "run" / "step_by_step_notes" / "thesis.txt"
    notes.parent.mkdir(parents=True)
    notes.write_text("x")
    program(
        f"--dataset={dataset}",
        f"--save_checkpoint_path={tmp_path / 'run'}",
        f"--checkpoint_format={layout}",
        "--max_steps=2",
    )
    assert program.exit_code == (0 if layout == "native" else 2)
    assert notes.read_text() == "x"
    if layout == "nvidia":
        assert "holds step_by_step_notes; NVIDIA's layout takes" in capsys.readouterr().err


def test_a_destination_that_cannot_be_written_is_found_first(program, dataset, tmp_path, capsys):
    (tmp_path / "file").write_text("x")
    program(f"--dataset={dataset}", f"--save_checkpoint_path={tmp_path / 'file' / 'run'}")
    assert program.exit_code == 2
    captured = capsys.readouterr()
    assert "--save_checkpoint_path" in captured.err
    assert "Epoch" not in captured.out


def test_a_warmup_longer_than_the_run_is_pointed_out(program, dataset, caplog):
    program(f"--dataset={dataset}", "--max_steps=2", "--warmup_steps=6400")
    assert "the run has 2 steps and the warm-up takes 6400" in caplog.text


@pytest.mark.parametrize("flag", ["--mode=trian", "--lr=abc", "--eval_split=val"])
def test_a_value_that_does_not_parse(program, capsys, flag):
    program(flag)
    assert program.exit_code == 2
    assert flag.split("=")[0] in capsys.readouterr().err
