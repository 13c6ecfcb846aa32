# SPDX-License-Identifier: Apache-2.0
"""Malformed flags, datasets and checkpoints: a clear message, exit code 2, nothing written."""

import os
import re
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dlrm.scripts import main
from recsys.errors import as_flags
from tests import harness
from tests.checkpoints import assert_same
from tests.dlrm.conftest import CARDINALITIES, NUM_NUMERICAL, ROWS, SMALL_MODEL, final
from tests.recsys.data.datasets import write_manifest
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
    (["--batch_norm", "--batch_size=5999"], "--batch_norm needs two rows .*: use --drop_last"),
    (["--embedding_l2=-1"], "--embedding_l2 must not be negative"),
    (["--embedding_l2=1", "--embedding_weight_decay=1"], "--embedding_l2 shrinks all rows, --embe"),
    (["--plateau_factor=0"], r"--plateau_factor must lie in \(0, 1\]"),
    (["--patience=0"], "--patience must be at least 1"),
    (["--quantize=int8"], "--quantize is for trained models, not for --mode train"),
    (["--quantize=int8", "--mode=test", "--amp"], "--quantize and --amp exclude each other"),
    (["--quantize=int8", "--mode=test", "--batch_norm"], "--quantize does not know the layers of"),
    (["--dropout=1"], r"--dropout must lie in \[0, 1\)"),
    (["--dataset_subset=2"], r"--dataset_subset must lie in \(0, 1\]"),
    (["--dataset_subset=0.001"], "--dataset_subset 0.001; use a smaller one"),
    (["--auc_threshold=80"], r"--auc_threshold must lie in \(0, 1\]"),
    (
        ["--auc_threshold=0.8", "--best_by=log_loss"],
        "--auc_threshold ends .* --best_by is",
    ),
    (["--max_table_size=10"], "--max_table_size .* needs --hash_indices"),
    (["--num_numerical_features=5"], "the feature spec of the dataset has 3"),
    (["--optimized_mlp"], "--optimized_mlp needs a CUDA device"),
    (["--cuda_graphs"], "--cuda_graphs needs a CUDA device"),
    (["--warmup_steps=100", "--decay_start_step=50"], "--decay_start_step"),
    (["--batch_size=100000", "--drop_last"], "leaves no whole batch of 6000 rows"),
    (["--inference_benchmark_batch_sizes=0"], "--inference_benchmark_batch_sizes must be positive"),
    (
        [
            "--mode=inference_benchmark",
            "--inference_benchmark_batch_sizes=1,99999",
            "--save_checkpoint_path=",
        ],
        "--inference_benchmark_batch_sizes 99999: the test split has fewer rows",
    ),
    (
        [
            "--save_checkpoint_path=",
            "--dataset_type=synthetic_gpu",
            "--test_batch_size=90000000000000",
            "--mode=test",
        ],
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


@pytest.fixture
def copy(dataset, tmp_path):
    return shutil.copytree(dataset, tmp_path / "copy")


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
def test_datasets(program, copy, tmp_path, dataset_type, damage, message):
    output = tmp_path / "run"
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
    (other_model, [], "holds no tensors 'mlp': not a checkpoint of DLRM"),
    (change_table, [], "embedding_1.safetensors: missing or cut short"),
    (lambda f: harness.put_nan(f, "mlp"), [], "layers.0.bias: holds values that are NaN"),
    (
        lambda f: harness.put_nan(f, "embedding_1"),
        [],
        "embedding_1.safetensors: weight: holds values that are",
    ),
    (lambda f: None, ["--embedding_dim=4", "--bottom_mlp_sizes=16,4"], "the model float32 [4, 16]"),
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


def test_files_of_others_are_never_removed(program, dataset, tmp_path):
    notes = tmp_path / "run" / "step_by_step_notes" / "thesis.txt"
    notes.parent.mkdir(parents=True)
    notes.write_text("x")
    program.train(dataset, tmp_path / "run", "--max_steps=2")
    assert notes.read_text() == "x"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("file/run", "cannot be written"),
        ("link", "is a link to nowhere, which is not there"),
        ("link/run", "is a link to nowhere, which is not there"),
        (os.fsdecode(b"\xff"), "is not UTF-8"),
    ],
)
def test_a_destination_that_cannot_be_written_is_found_first(
    program, dataset, tmp_path, name, message
):
    (tmp_path / "file").write_text("x")
    (tmp_path / "link").symlink_to("nowhere")
    program.train(dataset, tmp_path / name, status=2)
    assert re.search(f"error: --save_checkpoint_path: .* {message}", program.stderr)
    assert "Epoch" not in program.stdout


def test_a_warmup_longer_than_the_run_is_pointed_out(program, dataset, caplog):
    program(f"--dataset={dataset}", "--max_steps=2", "--warmup_steps=6400")
    assert "the run has 2 steps and the warm-up takes 6400" in caplog.text


@pytest.mark.parametrize(
    ("flags", "named", "unnamed"),
    [
        (("--preset=criteo_sample", "--epochs=1"), ["--epochs", "--batch_size"], "--max_steps"),
        (("--preset=criteo_sample", "--max_steps=9"), ["--max_steps"], "--epochs"),
        (("--preset=small", "--max_steps=3"), ["--max_steps", "--warmup_steps"], "--preset"),
    ],
)
def test_a_short_run_is_not_advised_what_it_uses(program, dataset, caplog, flags, named, unnamed):
    program(f"--dataset={dataset}", *flags, "--base_device=cpu", "--test_after=9", model=())
    (summary,) = (line for line in program.stdout.splitlines() if line.startswith("Training on"))
    said = summary.partition("evaluating on")[2] + as_flags(
        caplog.text, ("warmup_steps", "max_steps", "epochs", "preset")
    )
    assert all(name in said for name in named)
    assert unnamed not in said
    assert "criteo_sample" not in said


def test_defaults_that_small_data_cannot_learn_with_are_refused_for_a_preset(program, dataset):
    error = program.refused(f"--dataset={dataset}", model=())
    said = re.search(
        r"the run has 1 steps and .* 6,000 training rows take (--preset \w+), or", error
    )
    records = program(f"--dataset={dataset}", *said[1].split(), model=())
    entropies = [r["data"].get("normalised_entropy", 9) for r in records]
    assert min(entropies) < 0.85  # 1 is that of the base rate


@pytest.mark.parametrize("flag", ["--mode=trian", "--lr=abc", "--eval_split=val"])
def test_a_value_that_does_not_parse(program, flag):
    assert flag.split("=")[0] in program.refused(flag)


RECORD_FIELDS = 1 + NUM_NUMERICAL + len(CARDINALITIES)
NUMERICAL = {
    "split": "numerical.bin",
    "memmap": "numerical.bin",
    "binary": "_data.bin",
    "parquet": ".parquet",
}
"""How the name of the file with the numerical features ends."""


def overwrite(root, dataset_type, split, column, value):
    """Overwrites column `num_1` or `cat_0` of the last row of a split."""
    row = ROWS[split] - 1
    if dataset_type == "parquet":
        number = {"num_1": 2, "cat_0": 1 + NUM_NUMERICAL}[column]
        path = sorted((root / "parquet" / split).glob("*.parquet"))[-1]
        table = pq.read_table(path)
        values = table.column(number).to_numpy().copy()
        values[row % 2500] = value
        field = table.schema.field(number)
        pq.write_table(table.set_column(number, field, pa.array(values, field.type)), path)
        return
    if dataset_type == "binary":
        path, dtype = root / f"{split}_data.bin", "<f4" if column == "num_1" else "<i4"
        index = row * RECORD_FIELDS + {"num_1": 2, "cat_0": 1 + NUM_NUMERICAL}[column]
    elif column == "num_1":
        path, dtype, index = root / split / "numerical.bin", "<f2", row * NUM_NUMERICAL + 1
    else:
        path, dtype, index = root / split / "cat_0.bin", "i1", row
    values = np.fromfile(path, dtype)
    values[index] = value
    values.tofile(path)


@pytest.mark.parametrize("split", ["train", "test"])
@pytest.mark.parametrize("dataset_type", NUMERICAL)
def test_damage_in_the_last_row_is_named_before_the_first_step(
    program, copy, tmp_path, dataset_type, split
):
    row, run = ROWS[split] - 1, tmp_path / "run"
    flags = (f"--dataset={copy}", f"--dataset_type={dataset_type}", f"--save_checkpoint_path={run}")
    for column, damaged, sound, message in (
        ("cat_0", 77, 1, f"feature cat_0, row {row}: id 77 is outside [0, 5)"),
        ("num_1", np.nan, 0, f"{NUMERICAL[dataset_type]}: feature num_1, row {row}: nan is not fi"),
    ):
        overwrite(copy, dataset_type, split, column, damaged)
        assert message in program.refused(*flags)
        assert "Epoch:" not in program.stdout
        assert not run.exists()
        overwrite(copy, dataset_type, split, column, sound)


def test_rows_that_a_short_run_does_not_read_are_not_checked(program, copy):
    overwrite(copy, "split", "train", "cat_0", 77)
    program(f"--dataset={copy}", "--max_steps=10")


def vouch(root, **positives):
    cardinalities = list(CARDINALITIES)
    write_manifest(root, rows=ROWS, positives=positives, kind="criteo", cardinalities=cardinalities)


@pytest.mark.parametrize("dataset_type", ["split", "binary", "parquet"])
def test_data_changed_after_its_manifest_is_compared_with_the_checksums(
    program, copy, dataset_type
):
    vouch(copy)
    flags = (f"--dataset={copy}", f"--dataset_type={dataset_type}", "--max_steps=2")
    for path in copy.rglob("*.*"):  # as a copy is newer
        if path.suffix in (".bin", ".parquet"):
            path.touch()
    program(*flags)
    overwrite(copy, dataset_type, "train", "cat_0", 2)  # a valid id, though another one
    assert "was changed after manifest.json was written" in program.refused(*flags)


@pytest.mark.parametrize("vouched", [False, True])
def test_the_log_loss_decides_where_a_split_has_one_class(program, copy, tmp_path, vouched):
    labels = copy / "validation" / "label.bin"
    labels.write_bytes(bytes(labels.stat().st_size))
    if vouched:
        vouch(copy, train=ROWS["train"], validation=0)
    flags = ("--eval_split=validation", "--epochs=9", "--patience=2", "--plateau_factor=0.5")
    records = program.train(copy, tmp_path / "run", *flags)
    said, trained = program.stdout.split("Training on")
    assert "The validation split has no click: its AUC is undefined" in said
    assert ("The train split has clicks alone" in said) == vouched
    losses = [r["data"]["log_loss"] for r in records if "log_loss" in r["data"]]
    assert len(losses) == losses.index(min(losses)) + 3
    assert (
        f"No better log loss in 2 evaluations: stopping; the best was {min(losses):.6f}" in trained
    )
    assert records[-2]["data"] == {"best_log_loss": min(losses)}
    assert final(records)["best_auc"] is None
    tested = program.test(copy, tmp_path / "run", "--eval_split=validation")
    assert tested["log_loss"] == min(losses)
    assert program.stdout.endswith("has no click: its AUC is undefined\n")


def damage_unseen(root, split):
    """Damages a file without a trace in sizes and times; returns what mends it."""
    path = root / split / "numerical.bin"
    before, times = path.read_bytes(), path.stat().st_mtime_ns
    overwrite(root, "split", split, "num_1", np.nan)
    os.utime(path, ns=(times, times))
    return lambda: path.write_bytes(before)


def evaluations(records):
    """Returns step -> AUC, and the best one at the end."""
    return {str(r["step"]): auc for r in records if (auc := r["data"].get("auc")) is not None} | {
        "best": final(records)["best_auc"]
    }


@pytest.mark.parametrize(("split", "steps"), [("train", 46), ("test", 47)])
def test_what_was_reached_before_an_error_is_saved(program, copy, tmp_path, split, steps):
    vouch(copy)
    whole, run = tmp_path / "whole", tmp_path / "run"
    expected = evaluations(program.train(copy, whole, "--epochs=2"))
    mend = damage_unseen(copy, split)
    program.train(copy, run, "--epochs=2", status=2)
    assert "numerical.bin: feature num_1" in program.stderr
    assert f"Saved step {steps}, before the error below" in program.stdout
    assert "repeat the command with --resume" in program.stdout
    mend()
    assert evaluations(program.train(copy, run, "--epochs=2", "--resume")) == expected
    assert_same(run, whole)


@pytest.mark.multiprocess
def test_the_ranks_of_a_run_check_together(copy):
    overwrite(copy, "split", "test", "cat_0", 77)
    text = harness.call_on_ranks(2, main, *SMALL_MODEL, f"--dataset={copy}", status=2)
    assert text.count(f"feature cat_0, row {ROWS['test'] - 1}: id 77") == 2
    assert "Epoch:" not in text
