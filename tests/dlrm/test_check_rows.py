# SPDX-License-Identifier: Apache-2.0
"""Damaged rows anywhere in the splits of a run: named before its first step, or nothing is lost."""

import os
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from recsys.data.manifest import Manifest, fingerprint
from recsys.train.checkpoint import read_checkpoint
from recsys.train.saving.run_folder import CheckpointFolder
from tests import harness
from tests.dlrm.conftest import CARDINALITIES, NUM_NUMERICAL, ROWS, SMALL_MODEL

RECORD_FIELDS = 1 + NUM_NUMERICAL + len(CARDINALITIES)
FILES = {"split": "numerical.bin", "memmap": "numerical.bin", "binary": "_data.bin",
       "parquet": ".parquet"}  # fmt: skip


@pytest.fixture
def copy(dataset, tmp_path):
    return shutil.copytree(dataset, tmp_path / "copy")


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


def refused(program, capsys, tmp_path, root, dataset_type):
    output = tmp_path / "run"
    program(
        f"--dataset={root}", f"--dataset_type={dataset_type}", f"--save_checkpoint_path={output}"
    )
    printed = capsys.readouterr()
    assert program.exit_code == 2, printed.err
    assert "Epoch:" not in printed.out
    assert not output.exists()
    return printed.err


@pytest.mark.parametrize("split", ["train", "test"])
@pytest.mark.parametrize("dataset_type", FILES)
def test_damage_in_the_last_row_is_named_before_the_first_step(
    program, copy, capsys, tmp_path, dataset_type, split
):
    row = ROWS[split] - 1
    overwrite(copy, dataset_type, split, "cat_0", 77)
    error = refused(program, capsys, tmp_path, copy, dataset_type)
    assert f"feature cat_0, row {row}: id 77 is outside [0, 5)" in error
    overwrite(copy, dataset_type, split, "cat_0", 1)
    overwrite(copy, dataset_type, split, "num_1", np.nan)
    error = refused(program, capsys, tmp_path, copy, dataset_type)
    assert f"feature num_1, row {row}: nan is not finite" in error
    assert f"{FILES[dataset_type]}: feature" in error


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: shutil.rmtree(folder), "no folder test"),
        (lambda folder: os.truncate(folder / "cat_2.bin", 100), "the file sizes fit neither"),
        (
            lambda f: [os.truncate(p, 0) for p in f.iterdir()],
            "no rows for the test split",
        ),
    ],
)
def test_a_bad_evaluation_split_is_refused_before_the_first_step(
    program, copy, capsys, tmp_path, damage, message
):
    damage(copy / "test")
    assert message in refused(program, capsys, tmp_path, copy, "split")


def test_rows_that_a_short_run_does_not_read_are_not_checked(program, copy):
    overwrite(copy, "split", "train", "cat_0", 77)
    program(f"--dataset={copy}", "--max_steps=10")
    assert program.exit_code == 0


def vouch(root):
    files = Manifest.describe_files(root)
    Manifest(
        kind="criteo", engine={}, semantics={}, source_files=[], rows=ROWS, positives={},
        rejected={}, cardinalities=list(CARDINALITIES), files=files,
        fingerprint=fingerprint(files),
    ).save(root)  # fmt: skip


def damage_unseen(root, split):
    """Damages a file without a trace in sizes and times; returns what mends it."""
    path = root / split / "numerical.bin"
    before, times = path.read_bytes(), path.stat().st_mtime_ns
    overwrite(root, "split", split, "num_1", np.nan)
    os.utime(path, ns=(times, times))
    return lambda: path.write_bytes(before)


def weights(run):
    checkpoint = read_checkpoint(CheckpointFolder(run).latest())
    return {
        f"{group}.{name}": tensor
        for group in checkpoint.groups()
        for name, tensor in checkpoint.tensors(group).items()
    }


@pytest.mark.parametrize(("split", "steps"), [("train", 46), ("test", 47)])
def test_what_was_reached_before_an_error_is_saved(program, copy, capsys, tmp_path, split, steps):
    vouch(copy)
    program(f"--dataset={copy}", f"--save_checkpoint_path={tmp_path / 'whole'}", "--epochs=2")
    whole = weights(tmp_path / "whole")
    auc = harness.read_log(program.log_path)[-1]["data"]["best_auc"]
    mend = damage_unseen(copy, split)
    common = (f"--dataset={copy}", f"--save_checkpoint_path={tmp_path / 'run'}", "--epochs=2")
    program(*common)
    printed = capsys.readouterr()
    assert program.exit_code == 2
    assert "numerical.bin: feature num_1" in printed.err
    assert f"Saved step {steps}, before the error below" in printed.out
    assert "repeat the command with --resume" in printed.out
    mend()
    records = program(*common, "--resume")
    assert program.exit_code == 0, capsys.readouterr().err
    assert records[-1]["data"]["best_auc"] == auc
    resumed = weights(tmp_path / "run")
    assert all(torch.equal(resumed[name], tensor) for name, tensor in whole.items())


def test_the_ranks_of_a_run_check_together(copy):
    from dlrm.scripts import main

    overwrite(copy, "split", "test", "cat_0", 77)
    text = harness.call_on_ranks(2, main, *SMALL_MODEL, f"--dataset={copy}", status=2)
    assert text.count(f"feature cat_0, row {ROWS['test'] - 1}: id 77") == 2
    assert "Epoch:" not in text
