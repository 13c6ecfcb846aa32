# SPDX-License-Identifier: Apache-2.0
"""A small dataset that DLRM can learn from, in every format, and runs of the real program."""

import contextlib
import io
from pathlib import Path

import numpy as np
import pytest

from recsys.data.click_columns import ClickColumns
from recsys.data.feature_spec import FeatureSpec
from recsys.data.formats import npy_days
from recsys.data.parquet import FOLDER, part_name, write_parquet_part
from recsys.data.split_binary import SplitBinaryWriter
from tests.harness import Program
from tests.recsys.data.datasets import write_binary_records

CARDINALITIES = (5, 200, 40_000, 17)
NUM_NUMERICAL = 3
SPEC = FeatureSpec.criteo(CARDINALITIES, NUM_NUMERICAL)
# The last day of TorchRec's arrays is halved into validation and test.
ROWS = {"train": 6000, "validation": 1250, "test": 1250}

SMALL_MODEL = (
    "--embedding_dim=8",
    "--bottom_mlp_sizes=16,8",
    "--top_mlp_sizes=16,1",
    "--batch_size=128",
    "--test_batch_size=500",
    "--lr=0.5",
    "--warmup_steps=0",
    "--decay_steps=0",
    "--base_device=cpu",
    "--baselines=",  # a second each; test_baselines.py has them
)


def make_columns(rows: int, seed: int) -> ClickColumns:
    """Draws rows whose label depends on a numerical feature and on two ids."""
    generator = np.random.default_rng(seed)
    numerical = generator.normal(size=(rows, NUM_NUMERICAL)).astype(np.float16)
    ids = [generator.integers(0, n, rows) for n in CARDINALITIES]
    logit = 1.5 * numerical[:, 0].astype(np.float64) + 1.2 * (ids[0] - 2) + 0.5 * (ids[3] % 2)
    label = generator.random(rows) < 1 / (1 + np.exp(-logit))
    return ClickColumns(
        label,
        numerical,
        tuple(i.astype(f.dtype) for i, f in zip(ids, SPEC.categorical, strict=True)),
    )


@pytest.fixture(scope="session")
def dataset(tmp_path_factory) -> Path:
    """The dataset as split binary, 160-byte-style records, parquet and arrays in one folder."""
    root = tmp_path_factory.mktemp("dataset")
    SPEC.save(root)
    splits = []
    for seed, (split, rows) in enumerate(ROWS.items()):
        columns = make_columns(rows, seed)
        splits.append(columns)
        with SplitBinaryWriter(root / split, SPEC, rows) as writer:
            writer.write(0, columns)
        write_binary_records(root / f"{split}_data.bin", SPEC, columns)
        for part, start in enumerate(range(0, rows, 2500)):
            write_parquet_part(
                root / FOLDER / split / part_name(part), SPEC, [columns[start : start + 2500]]
            )
    write_days(root / npy_days.FOLDER, [splits[:1], splits[1:]])
    return root


def write_days(folder: Path, days: list[list[ClickColumns]]) -> None:
    """Writes TorchRec's arrays of days from rows of splits."""
    folder.mkdir()
    for day, splits in enumerate(days):
        dense, sparse, labels = npy_days.array_paths(folder, day)
        np.save(dense, np.concatenate([rows.numerical for rows in splits]).astype("<f4"))
        ids = [np.stack(rows.categorical, axis=1) for rows in splits]
        np.save(sparse, np.concatenate(ids).astype("<i4"))
        np.save(labels, np.concatenate([rows.label for rows in splits])[:, None].astype("<i4"))


def make_program(folder: Path) -> Program:
    """Returns dlrm.scripts.main with its log in a folder."""
    from dlrm.scripts import main

    return Program(main, folder, SMALL_MODEL)


class CapturedProgram(Program):
    """A program whose output is kept.

    Attributes:
        stdout: of the latest call.
        stderr: of the latest call.
    """

    stdout = stderr = ""

    def __call__(self, *arguments, status=0, **options):
        """Returns the records of the log."""
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            records = super().__call__(*arguments, status=None, **options)
        self.stdout, self.stderr = out.getvalue(), err.getvalue()
        assert self.exit_code == status, self.stderr
        return records

    def refused(self, *arguments, **options) -> str:
        """Returns the error of a call that is refused."""
        self(*arguments, status=2, **options)
        return self.stderr


class DlrmProgram(CapturedProgram):
    """The program of `make_program`."""

    def __init__(self, folder: Path) -> None:
        from dlrm.scripts import main

        super().__init__(main, folder, SMALL_MODEL)

    def train(self, dataset, folder, *arguments, **options):
        """Trains into a folder; returns the records of the log."""
        return self(
            f"--dataset={dataset}", f"--save_checkpoint_path={folder}", *arguments, **options
        )

    def test(self, dataset, checkpoint, *arguments, **options):
        """Tests a checkpoint; returns the metrics."""
        flags = ("--mode=test", f"--dataset={dataset}", f"--load_checkpoint_path={checkpoint}")
        return final(self(*flags, *arguments, **options))


@pytest.fixture
def program(tmp_path) -> DlrmProgram:
    """The program, with its log in the test's folder."""
    return DlrmProgram(tmp_path)


@pytest.fixture(scope="session")
def trained(dataset, tmp_path_factory) -> Path:
    """The folder of a run of one epoch, for tests that only read it."""
    folder = tmp_path_factory.mktemp("trained")
    DlrmProgram(folder).train(dataset, folder / "run")
    return folder / "run"


def final(records):
    """Returns the figures of a log about the whole run."""
    assert records[-1]["step"] == []
    return records[-1]["data"]


def losses(records) -> list[float]:
    """Returns the losses of a log."""
    return [record["data"]["loss"] for record in records if "loss" in record["data"]]
