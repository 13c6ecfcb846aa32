# SPDX-License-Identifier: Apache-2.0
"""--format npy: the rows of split binary as TorchRec's arrays, read by both projects."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from preproc.clicks.kernel import binding
from preproc.clicks.rules import SPLITS, ClicksSemantics
from recsys.data.click_columns import ClickColumns
from recsys.data.errors import DatasetError
from recsys.data.formats.npy_days import NpyReader
from recsys.data.manifest import MANIFEST_FILE
from recsys.data.parquet import ParquetReader
from recsys.data.verify.run import verify
from tests.harness import refusal
from tests.preproc.clicks.rows import run
from tests.recsys.data.damage import fifo, inside
from tests.tools import needs

ENGINE = "native" if binding.is_built() else "reference"
EVERY = ("split", "parquet", "npy")
ROWS = (701, 714, 727)
CASES = {
    "halves": ClicksSemantics(frequency_limit=3),
    "TorchRec's halves": ClicksSemantics(
        frequency_limit=2, last_day="validation_test", last_day_rounding="ceil"
    ),
    "fractions, shuffled": ClicksSemantics(
        frequency_limit=1, split_fractions=(0.5, 0.3, 0.2), shuffle_seed=3
    ),
    "bins": ClicksSemantics(frequency_limit=1, split_rows=(200, 0, -1), bin_numerical=True),
}


@pytest.fixture(scope="module")
def torchrec_halves(days, tmp_path_factory) -> Path:
    dataset = tmp_path_factory.mktemp("made") / "dataset"
    run(days, dataset, ENGINE, semantics=CASES["TorchRec's halves"], format=EVERY)
    return dataset


def assert_same_rows(ours: ClickColumns, theirs: ClickColumns) -> None:
    assert np.array_equal(ours.label, theirs.label)
    assert ours.numerical.tobytes() == theirs.numerical.tobytes()
    assert all(
        np.array_equal(a, b) for a, b in zip(ours.categorical, theirs.categorical, strict=True)
    )


@pytest.mark.parametrize("case", CASES)
def test_rows_are_those_of_the_other_formats(days, tmp_path, case):
    dataset = tmp_path / "made"
    made = run(days, dataset, ENGINE, semantics=CASES[case], format=EVERY)
    for day, rows in enumerate(ROWS):
        dense, sparse, labels = (
            np.load(dataset / "npy" / f"day_{day}_{kind}.npy")
            for kind in ("dense", "sparse", "labels")
        )
        assert (dense.dtype, dense.shape) == (np.float32, (rows, 13))
        assert (sparse.dtype, sparse.shape) == (np.int32, (rows, len(made.cardinalities)))
        assert (labels.dtype, labels.shape) == (np.int32, (rows, 1))
    for split in SPLITS:
        reader = NpyReader(dataset, split, check_ids=True)
        parquet = ParquetReader(dataset, split)
        assert reader.num_rows == parquet.num_rows == made.rows[split]
        if reader.num_rows:
            rows = ClickColumns.concatenate(list(parquet.stream()))
            assert_same_rows(reader.read(0, reader.num_rows), rows)
            assert_same_rows(reader.read(7, 40), rows[7:40])
    findings, report = verify(dataset)
    assert findings.problems == []
    assert "npy" in report


def test_arrays_alone_are_halved_as_torchrec_does(torchrec_halves, tmp_path):
    """A folder of TorchRec's own has no manifest and its arrays in the root."""
    theirs = tmp_path / "theirs"
    shutil.copytree(torchrec_halves / "npy", theirs)
    shutil.copy(torchrec_halves / "model_size.json", theirs)
    assert not (theirs / MANIFEST_FILE).exists()
    for split in SPLITS:
        ours, alone = NpyReader(torchrec_halves, split), NpyReader(theirs, split)
        assert ours.num_rows == alone.num_rows
        assert_same_rows(ours.read(0, ours.num_rows), alone.read(0, alone.num_rows))


def save(name: str, change: Callable[[np.ndarray], np.ndarray]) -> Callable[[Path], None]:
    return lambda folder: np.save(folder / name, change(np.load(folder / name)))


def cut_last_day(folder: Path) -> None:
    for kind in ("dense", "sparse", "labels"):
        save(f"day_2_{kind}.npy", lambda rows: rows[1:])(folder)


def put_id(ids: np.ndarray) -> np.ndarray:
    ids[3, 5] = 10**6
    return ids


@pytest.mark.parametrize(
    ("change", "facts"),
    [
        (lambda f: (f / "day_1_dense.npy").unlink(), ["day_1_dense.npy"]),
        (lambda f: (f / "day_1_sparse.npy").write_bytes(b"no"), ["day_1_sparse.npy"]),
        (inside("day_1_sparse.npy", fifo), ["day_1_sparse.npy"]),
        (
            save("day_1_dense.npy", lambda a: a.astype(float)),
            ["day_1_dense.npy", "float64", (714, 13)],
        ),
        (save("day_0_labels.npy", lambda a: a[1:]), ["day_0_labels.npy 700"]),
        (save("day_0_sparse.npy", put_id), ["day_0_sparse.npy", "cat_5", "row 3", 10**6]),
        (cut_last_day, ["manifest.json", "2,141", "2,142"]),
    ],
)
def test_damaged_arrays_are_named(torchrec_halves, tmp_path, change, facts):
    dataset = shutil.copytree(torchrec_halves, tmp_path / "damaged")
    change(dataset / "npy")
    with refusal(*facts, kind=DatasetError):
        NpyReader(dataset, "train", check_ids=True).read(0, 10)


@needs("TorchRec")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of FBGEMM
def test_torchrecs_own_datapipe_reads_the_same_values(torchrec_halves):
    from torchrec.datasets.criteo import InMemoryBinaryCriteoIterDataPipe

    folder = torchrec_halves / "npy"
    last = len(ROWS) - 1
    for split, stage, days in (
        ("train", "train", range(last)),
        ("validation", "val", [last]),
        ("test", "test", [last]),
    ):
        paths = [
            [str(folder / f"day_{day}_{kind}.npy") for day in days]
            for kind in ("dense", "sparse", "labels")
        ]
        pipe = InMemoryBinaryCriteoIterDataPipe(stage, *paths, batch_size=64, rank=0, world_size=1)
        ours = NpyReader(torchrec_halves, split)
        first = 0
        for batch in pipe:
            rows = ours.read(first, first + len(batch.labels))
            assert np.array_equal(batch.labels.numpy() == 1, rows.label)
            assert batch.dense_features.numpy().tobytes() == rows.numerical.tobytes()
            ids = batch.sparse_features.values().numpy().reshape(26, -1)
            assert all(np.array_equal(a, b) for a, b in zip(ids, rows.categorical, strict=True))
            first += len(rows)
        assert first == ours.num_rows
