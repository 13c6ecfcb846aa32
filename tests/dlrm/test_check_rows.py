# SPDX-License-Identifier: Apache-2.0
"""Damaged rows anywhere in the splits of a run: named before its first step, or nothing is lost."""

import os
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recsys.data.manifest import Manifest, fingerprint
from tests import harness
from tests.dlrm.conftest import (
    CARDINALITIES,
    NUM_NUMERICAL,
    ROWS,
    SMALL_MODEL,
    assert_same_weights,
    final,
)

RECORD_FIELDS = 1 + NUM_NUMERICAL + len(CARDINALITIES)
NUMERICAL = {
    "split": "numerical.bin",
    "memmap": "numerical.bin",
    "binary": "_data.bin",
    "parquet": ".parquet",
}
"""How the name of the file with the numerical features ends."""


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


@pytest.mark.parametrize(("split", "steps"), [("train", 46), ("test", 47)])
def test_what_was_reached_before_an_error_is_saved(program, copy, tmp_path, split, steps):
    vouch(copy)
    whole, run = tmp_path / "whole", tmp_path / "run"
    auc = final(program.train(copy, whole, "--epochs=2"))["best_auc"]
    mend = damage_unseen(copy, split)
    program.train(copy, run, "--epochs=2", status=2)
    assert "numerical.bin: feature num_1" in program.stderr
    assert f"Saved step {steps}, before the error below" in program.stdout
    assert "repeat the command with --resume" in program.stdout
    mend()
    assert final(program.train(copy, run, "--epochs=2", "--resume"))["best_auc"] == auc
    assert_same_weights(run, whole)


def test_the_ranks_of_a_run_check_together(copy):
    from dlrm.scripts import main

    overwrite(copy, "split", "test", "cat_0", 77)
    text = harness.call_on_ranks(2, main, *SMALL_MODEL, f"--dataset={copy}", status=2)
    assert text.count(f"feature cat_0, row {ROWS['test'] - 1}: id 77") == 2
    assert "Epoch:" not in text
