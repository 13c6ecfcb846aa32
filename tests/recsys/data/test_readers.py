# SPDX-License-Identifier: Apache-2.0
"""Readers and writers under use: threads, ranges, files that change or cannot be read."""

import errno
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from recsys.data.click_columns import ClickColumns
from recsys.data.errors import DatasetError
from recsys.data.feature_spec import FeatureSpec
from recsys.data.formats.records import BinaryRecordsReader
from recsys.data.parquet import ParquetReader, write_parquet_part
from recsys.data.split_binary import SplitBinaryReader, SplitBinaryWriter
from recsys.data.split_layout import find_split
from recsys.data.verify import files as verify_files
from recsys.data.verify.run import verify
from tests.harness import assert_tells, refusal
from tests.recsys.data.datasets import (
    SPEC,
    assert_equal,
    make_columns,
    num_open_files,
    problems,
    write_dataset,
    write_split,
)

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
    with refusal(f"[{start}, {stop})", 64, kind=IndexError):
        reader.read(start, stop)


@pytest.mark.parametrize("name", READERS)
def test_a_closed_reader_says_so(tmp_path, name):
    reader = READERS[name](write_dataset(tmp_path))
    reader.close()
    reader.close()
    with pytest.raises(ValueError, match="train"):
        reader.read(0, 1)


def test_no_file_stays_open(tmp_path):
    root = write_dataset(tmp_path)
    before = num_open_files()
    problems(root)
    for open_reader in READERS.values():
        open_reader(root).read(0, 3)  # dropped, not closed
    (root / "train/cat_2.bin").unlink()
    problems(root)
    assert num_open_files() == before


@pytest.mark.parametrize("leftover", ["._{}", "_{}", ".{}"])
def test_leftovers_beside_each_file_are_gone_past(tmp_path, caplog, leftover):
    """As macOS makes them where a folder is copied."""
    root = write_dataset(tmp_path)
    for path in [path for path in root.rglob("*") if path.is_file()]:
        (path.parent / leftover.format(path.name)).write_bytes(b"\0\5\26\7")
    findings, _ = verify(root)
    assert findings.problems == []
    assert len(findings.warnings) == sum(path.name[0] in "._" for path in root.rglob("*"))
    assert ParquetReader(root, "train").num_rows == 64
    assert_tells(caplog.text, root / "parquet/train", leftover.format("part_00000.parquet"))


def test_parquet_as_spark_leaves_it(tmp_path, caplog):
    """Marks and checksums are gone past; a partition is not left out without a word."""
    root = write_dataset(tmp_path)
    train = root / "parquet/train"
    for name in ("_SUCCESS", "_metadata", "_common_metadata", ".part-9.parquet.crc", "x.crc"):
        (train / name).write_bytes(b"crc\0")
    for old, new in (("part_00000", "part-9"), ("part_00001", "part-10")):
        (train / f"{old}.parquet").rename(train / f"{new}.parquet")
    with caplog.at_level("INFO"):
        reader = ParquetReader(root, "train")
    assert [file.name for file in reader.files] == ["part-9.parquet", "part-10.parquet"]
    assert reader.num_rows == 64
    assert_tells(caplog.text, 2, "part-9.parquet", "part-10.parquet")
    (root / "parquet/validation/day=1").mkdir()
    shutil.copy(reader.files[0], root / "parquet/validation/day=1/part-0.parquet")
    with refusal("day=1", kind=DatasetError):
        ParquetReader(root, "validation")


@pytest.mark.parametrize(
    ("name", "file"),
    [("pread", "train/cat_2.bin"), ("memmap", "train/cat_2.bin"), ("records", "train_data.bin")],
)
def test_a_file_cut_while_it_is_read(tmp_path, name, file):
    root = write_dataset(tmp_path)
    reader = READERS[name](root)
    os.truncate(root / file, 100)
    reader.read(0, 4)
    with refusal("byte 100", kind=DatasetError, path=root / file):
        reader.read(0, 64)


def test_a_parquet_file_that_changes_while_it_is_read(tmp_path):
    spec = FeatureSpec.criteo((5,), num_numerical=1)
    path = tmp_path / "parquet" / "train" / "part_00000.parquet"
    columns = make_columns(spec, 5000)
    write_parquet_part(path, spec, [columns])
    whole = path.read_bytes()
    reader = ParquetReader(tmp_path, "train", spec)
    # The numbers come first but for the label, and do not compress: a byte is part of a value.
    changed = [
        whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :]
        for position in range(len(whole) // 4, len(whole) // 2, 997)
    ]
    for content in (*changed, b"PAR1"):
        path.write_bytes(content)
        with refusal("row group 0", kind=DatasetError, path=path):
            reader.read_group(0)


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
    assert problems(tmp_path) == []


@pytest.mark.parametrize(("tables", "numerical"), [((), 2), ((5, 300), 0), ((), 0), ((5,), 0)])
def test_datasets_without_a_kind_of_feature_are_sound(tmp_path, tables, numerical):
    spec = FeatureSpec.criteo(tables, num_numerical=numerical)
    write_dataset(tmp_path, spec=spec, rows={"train": 16, "test": 4})
    assert problems(tmp_path) == []


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
    with refusal("label.bin", "label", "row 2", 0.25, kind=DatasetError):
        reader.read(0, 3)


def refuse(name, code=errno.EACCES):
    """Returns an os.open that may not open files of a name."""
    real = os.open

    def refusing(path, *arguments, **options):
        if Path(path).name == name:
            raise OSError(code, os.strerror(code), str(path))
        return real(path, *arguments, **options)

    return refusing


def test_a_file_that_may_not_be_read(tmp_path, monkeypatch):
    root = write_dataset(tmp_path)
    before = num_open_files()
    monkeypatch.setattr(os, "open", refuse("cat_2.bin"))
    with refusal("Permission denied", kind=DatasetError, path=root / "train/cat_2.bin"):
        SplitBinaryReader(root, "train")
    monkeypatch.setattr(os, "open", refuse("train_data.bin"))
    with refusal("Permission denied", kind=DatasetError, path=root / "train_data.bin"):
        BinaryRecordsReader(root, "train")
    monkeypatch.setattr(os, "open", refuse("train_data.bin", errno.EMFILE))
    with refusal("Too many open files", "ulimit -n", kind=DatasetError):
        BinaryRecordsReader(root, "train")
    assert num_open_files() == before


def test_a_file_that_may_not_be_mapped(tmp_path, monkeypatch):
    root = write_dataset(tmp_path)

    def refuse_map(*arguments, **options):
        raise OSError(errno.ENODEV, "No such device")

    monkeypatch.setattr(np, "memmap", refuse_map)
    with refusal("label.bin", "`dataset_type` split", kind=DatasetError):
        SplitBinaryReader(root, "train", access="memmap")


def test_a_writer_that_cannot_make_its_files_closes_those_it_made(tmp_path, monkeypatch):
    before = num_open_files()
    monkeypatch.setattr(os, "open", refuse("cat_2.bin"))
    with pytest.raises(PermissionError):
        SplitBinaryWriter(tmp_path / "train", SPEC, 8)
    assert num_open_files() == before


def test_descriptors_for_native_writers(tmp_path):
    with SplitBinaryWriter(tmp_path / "train", SPEC, 2) as writer:
        label, numerical, categorical = writer.file_descriptors()
        os.pwrite(label, b"\1\0", 0)
        os.pwrite(numerical, bytes.fromhex("003c 0000 003c 0000"), 0)
        assert len(categorical) == 3
    rows = SplitBinaryReader(tmp_path, "train", SPEC).read(0, 2)
    assert rows.label.tolist() == [True, False]
    assert rows.numerical.tolist() == [[1, 0], [1, 0]]
    spec = FeatureSpec.criteo([3], num_numerical=0)
    with SplitBinaryWriter(tmp_path / "test", spec, 2) as writer:
        assert writer.file_descriptors()[1] == -1


def test_verify_goes_on_after_a_file_it_cannot_read(tmp_path, monkeypatch):
    root = write_dataset(tmp_path, ("split",))
    real = verify_files.file_checksum

    def checksum(path):
        if path.name == "cat_1.bin":
            raise OSError(errno.EIO, "Input/output error")
        return real(path)

    monkeypatch.setattr(verify_files, "file_checksum", checksum)
    found = problems(root)
    assert len(found) == 3
    assert "cat_1.bin: Input/output error" in found[0]
