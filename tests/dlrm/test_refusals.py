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
from tests.harness import assert_tells
from tests.recsys.data.datasets import write_manifest
from tests.recsys.serve.checkpoints import bert4rec_checkpoint
from tests.tools import needs

FLAGS = {  # flags: what the error tells besides the first of them
    "--embedding_dim=4": "--bottom_mlp_sizes 4 16,8",
    "--bottom_mlp_sizes=16,x": "16,x",
    "--bottom_mlp_sizes=": "''",
    "--bottom_mlp_sizes=0,8": "'0,8'",
    "--top_mlp_sizes=16,2": "1 16,2",
    "--batch_size=0": "1 0",
    "--test_batch_size=-5": "1 -5",
    "--epochs=0": "1 0",
    "--max_steps=0": "1 0",
    "--print_freq=0": "1 0",
    "--lr=-1": "-1.0",
    "--lr=nan": "nan",
    "--loss_scale=inf": "inf",
    "--warmup_factor=-1": "-1",
    "--seed=18446744073709551616": "9223372036854775808 18446744073709551616",
    "--num_threads=100000": "1024 100000",
    "--synthetic_dataset_num_entries=1000000000000000": "1000000000000",
    "--top_mlp_sizes=1000000,10000000,1": "72.8 --bottom_mlp_sizes --embedding_dim",
    "--loss_scale=0": "0.0",
    "--batch_norm --batch_size=5999": "6000 5999 --drop_last",
    "--embedding_l2=-1": "-1.0",
    "--embedding_l2=1 --embedding_weight_decay=1": "--embedding_weight_decay",
    "--plateau_factor=0": "(0, 1] 0.0",
    "--patience=0": "1 0",
    "--quantize=int8": "--mode train",
    "--quantize=int8 --mode=test --amp": "--amp",
    "--quantize=int8 --mode=test --batch_norm": "--batch_norm",
    "--dropout=1": "[0, 1) 1.0",
    "--dataset_subset=2": "(0, 1] 2.0",
    "--dataset_subset=0.001": "--batch_size 128 6000 0.001",
    "--auc_threshold=80": "(0, 1] 80.0",
    "--auc_threshold=0.8 --best_by=log_loss": "--best_by log_loss",
    "--max_table_size=10": "--hash_indices",
    "--num_numerical_features=5": "5 3",
    "--optimized_mlp": "CUDA apex",
    "--deterministic": "MKL_CBWR",
    "--deterministic --interaction_op=dot": "--interaction_op cuda_dot cat dcnv2",
    "--deterministic --embedding_type=joint": "--embedding_type joint_fused",
    "--deterministic --embedding_storage=bfloat16": "--embedding_storage float32",
    "--deterministic --numerical_embedding=bins": "--numerical_embedding none",
    "--deterministic --batch_norm": "--batch_norm",
    "--deterministic --dropout=0.1": "--dropout 0.0 0.1",
    "--deterministic --reset_embeddings": "--reset_embeddings",
    "--deterministic --amp": "--amp",
    "--deterministic --grow": "--grow",
    "--cuda_graphs": "CUDA cpu",
    "--warmup_steps=100 --decay_start_step=50 --decay_steps=9": "100 --decay_start_step 50",
    "--batch_size=100000 --drop_last": "100000 6000",
    "--inference_benchmark_batch_sizes=0": "'0'",
    "--inference_benchmark_batch_sizes=1,99999 --mode=inference_benchmark "
    "--save_checkpoint_path=": "99999 test",
}


@pytest.mark.parametrize("flags", FLAGS)
def test_flags(program, dataset, tmp_path, flags):
    output = tmp_path / "run"
    error = program.refused(
        f"--dataset={dataset}", f"--save_checkpoint_path={output}", *flags.split()
    )
    assert error.startswith("error: ")
    assert_tells(error, flags.split("=")[0].split()[0], *FLAGS[flags].split())
    assert not output.exists()


def test_more_rows_than_memory_holds(program):
    flags = ("--dataset_type=synthetic_gpu", "--mode=test", "--test_batch_size=90000000000000")
    assert_tells(program.refused(*flags), 90_000_000_000_000 * 13 * 4)


@needs("machine without CUDA device")
def test_cuda_that_is_not_there(program, dataset):
    assert_tells(
        program.refused(f"--dataset={dataset}", "--base_device=cuda"), "--base_device cuda", "CUDA"
    )


def test_no_dataset(program):
    assert_tells(program.refused(), "--dataset", "--dataset_type split")


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
    ("split", cut_numerical, "copy/train numerical.bin 35999 6000"),
    ("split", lambda r: (r / "train" / "cat_2.bin").unlink(), "copy/train/cat_2.bin"),
    ("split", lambda r: shutil.rmtree(r / "test"), "copy: test"),
    ("split", lambda r: os.truncate(r / "test" / "cat_2.bin", 100), "copy/test cat_2.bin 100 1250"),
    ("split", empty_test, "copy/test:"),
    ("parquet", damaged_parquet, "copy/parquet/train/part_00000.parquet"),
    ("parquet", lambda r: shutil.rmtree(r / "parquet"), "copy: parquet/train/*.parquet"),
    ("binary", lambda r: (r / "test_data.bin").unlink(), "copy/test_data.bin 32"),
    ("split", shutil.rmtree, "--dataset: copy"),
]


@pytest.mark.parametrize(("dataset_type", "damage", "facts"), DATASETS)
def test_datasets(program, copy, tmp_path, dataset_type, damage, facts):
    output = tmp_path / "run"
    damage(copy)
    program.train(copy, output, f"--dataset_type={dataset_type}", "--max_steps=60", status=2)
    assert_tells(program.stderr, *facts.split())
    assert "Epoch:" not in program.stdout
    assert not output.exists()


def change_table(folder):
    file = next(folder.glob("step_*/embedding_1.safetensors"))
    file.write_bytes(file.read_bytes()[:-10])


def other_model(folder):
    shutil.rmtree(folder)
    bert4rec_checkpoint(folder)


CHECKPOINTS = [  # more of them: tests/recsys/serve/test_damaged_checkpoints.py
    (other_model, [], "DLRM bert4rec"),
    (change_table, [], "embedding_1.safetensors"),
    (lambda f: harness.put_nan(f, "mlp"), [], "mlp.safetensors bottom_mlp.layers.0.bias NaN"),
    (lambda f: harness.put_nan(f, "embedding_1"), [], "embedding_1.safetensors weight NaN"),
    (lambda f: None, ["--embedding_dim=4", "--bottom_mlp_sizes=16,4"], "[8, 16] [4, 16]"),
    (lambda f: None, ["--top_mlp_sizes=32,1"], "top_mlp.layers.0.weight [16, 24] [32, 24]"),
]


@pytest.mark.parametrize(("damage", "arguments", "facts"), CHECKPOINTS)
def test_checkpoints(program, dataset, trained, tmp_path, damage, arguments, facts):
    folder = shutil.copytree(trained, tmp_path / "run")
    damage(folder)
    program("--mode=test", f"--dataset={dataset}", f"--load_checkpoint_path={folder}", *arguments,
            model=(), status=2)  # fmt: skip
    assert_tells(program.stderr, *facts.split())


def test_another_dataset(program, dataset, trained, tmp_path):
    other = shutil.copytree(dataset, tmp_path / "other")
    text = (other / "feature_spec.yaml").read_text()
    (other / "feature_spec.yaml").write_text(text.replace("cardinality: 200", "cardinality: 201"))
    for mode in ("train", "test", "inference_benchmark"):
        error = program.refused(
            f"--mode={mode}", f"--dataset={other}", f"--load_checkpoint_path={trained}"
        )
        assert_tells(error, "cat_1", 200, trained, 201, other, "--dataset")


def test_files_of_others_are_never_removed(program, dataset, tmp_path):
    notes = tmp_path / "run" / "step_by_step_notes" / "thesis.txt"
    notes.parent.mkdir(parents=True)
    notes.write_text("x")
    program.train(dataset, tmp_path / "run", "--max_steps=2")
    assert notes.read_text() == "x"


@pytest.mark.parametrize(
    ("name", "facts"),
    [
        ("file/run", "file/run file: directory"),
        ("link", "link nowhere"),
        ("link/run", "link nowhere"),
        (os.fsdecode(b"\xff"), "UTF-8"),
    ],
)
def test_a_destination_that_cannot_be_written_is_found_first(
    program, dataset, tmp_path, name, facts
):
    (tmp_path / "file").write_text("x")
    (tmp_path / "link").symlink_to("nowhere")
    program.train(dataset, tmp_path / name, status=2)
    assert_tells(program.stderr, "--save_checkpoint_path", *facts.split())
    assert "Epoch" not in program.stdout


def test_a_warmup_longer_than_the_run_is_pointed_out(program, dataset, caplog):
    program(f"--dataset={dataset}", "--max_steps=2", "--warmup_steps=6400")
    assert_tells(next(line for line in caplog.messages if "6400" in line), 2, "`warmup_steps`")


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
    settings = ("warmup_steps", "max_steps", "epochs", "preset")
    said = program.stdout + as_flags(caplog.text, settings)
    assert all(name in said for name in named)
    assert unnamed not in said
    assert "criteo_sample" not in said


def test_defaults_that_small_data_cannot_learn_with_are_refused_for_a_preset(program, dataset):
    error = program.refused(f"--dataset={dataset}", model=())
    assert_tells(error, 1, 6400, "6,000")
    said = re.search(r"--preset \w+", error)
    records = program(f"--dataset={dataset}", *said[0].split(), model=())
    entropies = [r["data"].get("normalised_entropy", 9) for r in records]
    assert min(entropies) < 0.85  # 1 is that of the base rate


@pytest.mark.parametrize("flag", ["--mode=trian", "--lr=abc", "--eval_split=val"])
def test_a_value_that_does_not_parse(program, flag):
    assert_tells(program.refused(flag), flag)


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
    for column, damaged, sound, more in (
        ("cat_0", 77, 1, ["[0, 5)"]),
        ("num_1", np.nan, 0, []),
    ):
        overwrite(copy, dataset_type, split, column, damaged)
        error = program.refused(*flags)
        assert_tells(error, column, f"row {row}", damaged, *more)
        assert f"{NUMERICAL[dataset_type]}:" in error or column == "cat_0"
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
    file = {"split": "train/cat_0.bin", "binary": "train_data.bin", "parquet": "part_00002.parquet"}
    assert_tells(program.refused(*flags), file[dataset_type], "manifest.json")


@pytest.mark.parametrize("vouched", [False, True])
def test_the_log_loss_decides_where_a_split_has_one_class(program, copy, tmp_path, vouched):
    labels = copy / "validation" / "label.bin"
    labels.write_bytes(bytes(labels.stat().st_size))
    if vouched:
        vouch(copy, train=ROWS["train"], validation=0)
    flags = ("--eval_split=validation", "--epochs=9", "--patience=2", "--plateau_factor=0.5")
    records = program.train(copy, tmp_path / "run", *flags)
    said = program.stdout.splitlines()
    assert_tells(said[vouched], "validation", "AUC")
    assert not vouched or re.search(r"\btrain\b", said[0])
    losses = [r["data"]["log_loss"] for r in records if "log_loss" in r["data"]]
    assert len(losses) == losses.index(min(losses)) + 3
    assert_tells(said[-2], 2, f"{min(losses):.6f}")
    assert records[-2]["data"] == {"best_log_loss": min(losses)}
    assert final(records)["best_auc"] is None
    tested = program.test(copy, tmp_path / "run", "--eval_split=validation")
    assert tested["log_loss"] == min(losses)
    assert_tells(program.stdout.splitlines()[-1], "validation", "AUC")


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
    assert_tells(program.stderr, "numerical.bin", "num_1")
    assert_tells(program.stdout, f"step {steps}", "--resume")
    mend()
    assert evaluations(program.train(copy, run, "--epochs=2", "--resume")) == expected
    assert_same(run, whole)


@pytest.mark.multiprocess
def test_the_ranks_of_a_run_check_together(copy):
    overwrite(copy, "split", "test", "cat_0", 77)
    text = harness.call_on_ranks(2, main, *SMALL_MODEL, f"--dataset={copy}", status=2)
    assert len(re.findall(rf"cat_0\b.*\b{ROWS['test'] - 1}\b.*\b77\b", text)) == 2
    assert "Epoch:" not in text
