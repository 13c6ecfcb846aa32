# SPDX-License-Identifier: Apache-2.0
"""Readers under use: threads, ranges, files that change, splits without rows or columns."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from recsys.data.click_columns import ClickColumns
from recsys.data.errors import DatasetError
from recsys.data.feature_spec import FeatureSpec
from recsys.data.parquet import ParquetReader, write_parquet_part
from recsys.data.records import BinaryRecordsReader
from recsys.data.split_binary import SplitBinaryReader, SplitBinaryWriter
from recsys.data.split_layout import find_split
from recsys.data.verify.run import verify
from tests.recsys.data.datasets import SPEC, assert_equal, make_columns, write_dataset, write_split

READERS = {
    "pread": lambda root: SplitBinaryReader(root, "train"),
    "memmap": lambda root: SplitBinaryReader(root, "train", access="memmap"),
    "records": lambda root: BinaryRecordsReader(root, "train"),
}


@pytest.mark.parametrize("name", READERS)
def test_many_threads_share_a_reader(tmp_path, name):
    root = write_dataset(tmp_path, rows={"train": 5000}, manifest=False)
    expected, reader = make_columns(SPEC, 5000), READERS[name](root)
    starts = np.random.default_rng(0).integers(0, 4900, 200).tolist()
    with ThreadPoolExecutor(8) as pool:
        for start, found in zip(
            starts, pool.map(lambda s: reader.read(s, s + 100), starts), strict=True
        ):
            assert_equal(found, expected[start : start + 100])


def test_many_threads_share_a_parquet_reader(tmp_path):
    reader = ParquetReader(write_dataset(tmp_path, rows={"train": 500}, manifest=False), "train")
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(reader.read_group, [0, 1] * 20))
    assert_equal(ClickColumns.concatenate(found[-2:]), make_columns(SPEC, 500))


def test_many_threads_write_into_a_writer(tmp_path):
    columns = make_columns(SPEC, 5000)
    with SplitBinaryWriter(tmp_path / "train", SPEC, 5000) as writer, ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda s: writer.write(s, columns[s : s + 50]), range(0, 5000, 50)))
    SPEC.save(tmp_path)
    assert_equal(SplitBinaryReader(tmp_path, "train").read(0, 5000), columns)


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize(("start", "stop"), [(-1, 3), (0, 65), (5, 4), (65, 65)])
def test_rows_outside_a_split_are_an_index_error(tmp_path, name, start, stop):
    reader = READERS[name](write_dataset(tmp_path))
    with pytest.raises(IndexError, match="of 64"):
        reader.read(start, stop)


@pytest.mark.parametrize("name", READERS)
def test_a_closed_reader_says_so(tmp_path, name):
    reader = READERS[name](write_dataset(tmp_path))
    reader.close()
    reader.close()
    with pytest.raises(ValueError, match=r"train.* is closed"):
        reader.read(0, 1)


def test_no_file_stays_open(tmp_path):
    root = write_dataset(tmp_path)
    before = len(list(Path("/proc/self/fd").iterdir()))
    verify(root)
    for open_reader in READERS.values():
        open_reader(root).read(0, 3)  # dropped, not closed
    (root / "train/cat_2.bin").unlink()
    verify(root)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


@pytest.mark.parametrize(
    ("name", "file"), [("pread", "train/cat_2.bin"), ("records", "train_data.bin")]
)
def test_a_file_cut_while_it_is_read(tmp_path, name, file):
    root = write_dataset(tmp_path)
    reader = READERS[name](root)
    path = root / file
    path.write_bytes(path.read_bytes()[:100])
    reader.read(0, 4)
    with pytest.raises(DatasetError, match=rf"{file}: ends at byte 100.*prepare the dataset again"):
        reader.read(0, 64)


def test_a_part_cut_after_it_was_opened(tmp_path):
    root = write_dataset(tmp_path)
    reader = ParquetReader(root, "train")
    (root / "parquet/train/part_00001.parquet").write_bytes(b"PAR1")
    reader.read_group(0)
    with pytest.raises(DatasetError, match=r"part_00001.parquet: row group 0 is not readable"):
        reader.read_group(1)


def test_a_changed_byte_of_a_parquet_page_is_seen(tmp_path):
    spec = FeatureSpec.criteo((5,), num_numerical=1)
    path = tmp_path / "parquet" / "train" / "part_00000.parquet"
    columns = make_columns(spec, 5000)
    write_parquet_part(path, spec, [columns])
    whole = path.read_bytes()
    reader = ParquetReader(tmp_path, "train", spec)
    # The numbers come first but for the label, and do not compress: a byte is part of a value.
    for position in range(len(whole) // 4, len(whole) // 2, 997):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :])
        with pytest.raises(DatasetError, match="row group 0 is not readable"):
            reader.read_group(0)


def test_a_mapped_file_that_is_cut_is_named(tmp_path):
    root = write_dataset(tmp_path)
    reader = SplitBinaryReader(root, "train", access="memmap")
    os.truncate(root / "train" / "cat_0.bin", 1)
    with pytest.raises(DatasetError, match="the file was cut while it was being read"):
        reader.read(0, reader.num_rows)


def test_memmap_returns_views(tmp_path):
    root = write_dataset(tmp_path)
    reader = SplitBinaryReader(root, "train", access="memmap")
    reader.advise_sequential()
    rows = reader.read(3, 9)
    for column in (rows.label, rows.numerical, *rows.categorical):
        assert not column.flags.writeable
        assert not column.flags.owndata


@pytest.mark.parametrize("access", ["pread", "memmap"])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_a_split_without_rows(tmp_path, access, dtype):
    spec = FeatureSpec.criteo((5, 200), num_numerical=2, numerical_dtype=dtype)
    write_dataset(tmp_path, ("split", "binary"), spec=spec, rows={"train": 8, "test": 0})
    reader = SplitBinaryReader(tmp_path, "test", access=access)
    reader.advise_sequential()
    rows = reader.read(0, 0)
    assert len(rows) == reader.num_rows == 0
    assert rows.numerical.shape == (0, 2)
    assert rows.numerical.dtype == dtype
    assert [c.dtype for c in rows.categorical] == [np.int8, np.int16]
    assert BinaryRecordsReader(tmp_path, "test").read(0, 0).numerical.shape == (0, 2)
    assert verify(tmp_path)[0].problems == []


@pytest.mark.parametrize(("tables", "numerical"), [((), 2), ((5, 300), 0), ((), 0), ((5,), 0)])
def test_datasets_without_a_kind_of_feature(tmp_path, tables, numerical):
    spec = FeatureSpec.criteo(tables, num_numerical=numerical)
    formats = ("split", "binary", "parquet")
    write_dataset(tmp_path, formats, spec=spec, rows={"train": 16, "test": 4})
    expected = make_columns(spec, 16)
    assert_equal(SplitBinaryReader(tmp_path, "train").read(0, 16), expected)
    assert_equal(BinaryRecordsReader(tmp_path, "train").read(0, 16), expected)
    assert_equal(
        ClickColumns.concatenate(list(ParquetReader(tmp_path, "train").groups())), expected
    )
    findings, _ = verify(tmp_path)
    assert findings.problems == []


def test_a_split_may_lie_beside_parquet_of_the_same_name(tmp_path):
    # train/ holds parquet, split/train holds split binary (as TorchRec's scripts leave them).
    write_split(tmp_path / "split", "train", SPEC, make_columns(SPEC, 8))
    (tmp_path / "train").mkdir()
    (tmp_path / "train/part_0.parquet").write_bytes(b"")
    assert find_split(tmp_path, "train") == tmp_path / "split/train"


def test_labels_of_a_wide_split_are_checked(tmp_path):
    spec = FeatureSpec.criteo((5,), num_numerical=1)
    (tmp_path / "train").mkdir()
    np.array([0, 1, 0.25], "<f4").tofile(tmp_path / "train/label.bin")
    np.zeros(3, "<f4").tofile(tmp_path / "train/numerical.bin")
    np.zeros(3, "<i4").tofile(tmp_path / "train/cat_0.bin")
    reader = SplitBinaryReader(tmp_path, "train", spec)
    assert reader.flavour == "wide"
    with pytest.raises(DatasetError, match=r"label.bin: label, row 2: value 0.25 is neither"):
        reader.read(0, 3)
