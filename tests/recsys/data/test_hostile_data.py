# SPDX-License-Identifier: Apache-2.0
"""Malformed data files: each is refused, naming file, feature, row, value and what to do."""

import dataclasses

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recsys.data.errors import DatasetError
from recsys.data.feature_spec import FeatureSpec
from recsys.data.parquet import ParquetReader, write_parquet_part
from recsys.data.records import BinaryRecordsReader, write_binary_records
from recsys.data.split_binary import SplitBinaryReader, SplitBinaryWriter
from tests.recsys.data.damage import (
    MODEL_SIZE,
    SPEC_FILE,
    Case,
    assert_refused,
    cut,
    overwrite,
    put,
    remove,
)
from tests.recsys.data.datasets import SPEC, make_columns, write_dataset

TRAIN_PART = "parquet/train/part_00001.parquet"


def change_part(change):
    def damage(root):
        table = pq.read_table(root / TRAIN_PART, partitioning=None)
        schema = pa.schema([f.with_nullable(True) for f in table.schema])
        pq.write_table(change(table.cast(schema)), root / TRAIN_PART)

    return damage


def set_column(name: str, values):
    def change(table):
        array = values if isinstance(values, pa.Array) else pa.array(values)
        return table.set_column(table.schema.names.index(name), name, array)

    return change_part(change)


def read_split(root):
    reader = SplitBinaryReader(root, "train", FeatureSpec.load(root))
    reader.read(0, reader.num_rows).check_ids(reader.spec, reader.folder, 0)


def read_records(root):
    reader = BinaryRecordsReader(root, "train")
    reader.read(0, reader.num_rows).check_ids(reader.spec, reader.path, 0)


def read_parquet(root):
    list(ParquetReader(root, "train").groups())


CASES = {
    # split binary
    "a column is missing": Case(
        remove("train/cat_1.bin"), read_split, "train/cat_1.bin", "is missing.*prepare"
    ),
    "a column is a folder": Case(
        lambda root: [(root / "train/cat_1.bin").unlink(), (root / "train/cat_1.bin").mkdir()],
        read_split,
        "train/cat_1.bin",
        "is no file.*prepare",
    ),
    "a column is cut": Case(
        cut("train/cat_2.bin", 1), read_split, "train", r"cat_2.bin has 255 bytes.*are cut short"
    ),
    "numerical is cut": Case(
        cut("train/numerical.bin", 2), read_split, "train", r"numerical.bin has 254 bytes, not 64"
    ),
    "label is cut": Case(cut("train/label.bin", 3), read_split, "train", "As wide.*not a multiple"),
    "ids too narrow": Case(
        put("train/cat_2.bin", bytes(128)), read_split, "train", "16-bit ids, too narrow for the 40"
    ),
    "label is 2": Case(
        overwrite("train/label.bin", 9, b"\2"),
        read_split,
        "train/label.bin",
        r"label, row 9: value 2 is neither 0 nor 1.*dataspec\.verify",
    ),
    "id beyond its table": Case(
        overwrite("train/cat_0.bin", 7, b"\5"),
        read_split,
        "train",
        r"feature cat_0, row 7: id 5 is outside \[0, 5\).*dataspec\.verify",
    ),
    "negative id": Case(
        overwrite("train/cat_1.bin", 4, b"\xff\xff"), read_split, "train", "cat_1, row 2: id -1"
    ),
    "split is missing": Case(
        lambda root: (root / "train").rename(root / "training"),
        read_split,
        "no folder train",
        "is this the folder of a prepared",
    ),
    # binary records
    "records are missing": Case(
        remove("train_data.bin"), read_records, "train_data.bin", "missing.*`dataset_type` split"
    ),
    "records are cut": Case(
        cut("train_data.bin", 5), read_records, "train_data.bin", "no multiple of the 24-byte.*cut"
    ),
    "records label": Case(
        overwrite("train_data.bin", 24 * 3, b"\7"),
        read_records,
        "train_data.bin",
        r"label, row 3: value 7.*dataspec\.verify",
    ),
    "records id": Case(
        overwrite("train_data.bin", 24 * 2 + 12, b"\x90"),
        read_records,
        "train_data.bin",
        r"feature cat_0, row 2: id 144 is outside",
    ),
    # parquet
    "no part": Case(
        lambda root: [p.unlink() for p in (root / "parquet/train").iterdir()],
        read_parquet,
        "parquet/train/*.parquet",
        "prepare the dataset with `format` parquet",
    ),
    "part is empty": Case(put(TRAIN_PART, b""), read_parquet, TRAIN_PART, "not readable.*prepare"),
    "part is cut": Case(cut(TRAIN_PART, 100), read_parquet, TRAIN_PART, "not readable.*prepare"),
    "part is damaged": Case(
        overwrite(TRAIN_PART, 4, b"\xff" * 60), read_parquet, TRAIN_PART, "row group 0 is not rea"
    ),
    "column name is no text": Case(
        lambda root: (root / TRAIN_PART).write_bytes(
            (root / TRAIN_PART).read_bytes().replace(b"cat_1", b"cat\x80\xff")
        ),
        read_parquet,
        TRAIN_PART,
        "not readable as parquet.*prepare",
    ),
    "column missing in the second part": Case(
        change_part(lambda t: t.drop_columns(["cat_1"])),
        read_parquet,
        TRAIN_PART,
        r"columns \['cat_1'\] of the feature spec are missing.*give the spec",
    ),
    "ids are text": Case(
        set_column("cat_1", ["a"] * 32), read_parquet, TRAIN_PART, "must hold integers, got string"
    ),
    "ids are fractions": Case(
        set_column("cat_1", [0.5] * 32), read_parquet, TRAIN_PART, "cat_1 must hold integers.*cast"
    ),
    "label is text": Case(
        set_column("label", ["0"] * 32), read_parquet, TRAIN_PART, "numbers or booleans.*prepare"
    ),
    "label is 0.5": Case(
        set_column("label", [0.0, 0.5] * 16), read_parquet, TRAIN_PART, "label, row 33: value 0.5"
    ),
    "value is null": Case(
        set_column("cat_1", pa.array([None] * 32, pa.int32())),
        read_parquet,
        TRAIN_PART,
        r"missing values in \['cat_1'\].*fill them in",
    ),
    "id wraps around": Case(
        set_column("cat_0", [256] * 32), read_parquet, TRAIN_PART, "cat_0, row 32: id 256 is outsi"
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_is_refused(tmp_path, name):
    assert_refused(CASES[name], tmp_path)


def test_parquet_metadata_that_is_no_number(tmp_path):
    root = write_dataset(tmp_path, ("parquet",), manifest=False)
    for name in (SPEC_FILE, MODEL_SIZE):
        (root / name).unlink()
    part = root / "parquet/train/part_00000.parquet"
    table = pq.read_table(part, partitioning=None)
    fields = [f.with_metadata({"cardinality": "many"}) for f in table.schema]
    pq.write_table(table.cast(pa.schema(fields)), part)
    with pytest.raises(DatasetError, match=r"part_00000.*label.*'many' is not.*give the feature s"):
        ParquetReader(root, "train")
    pq.write_table(
        table.replace_schema_metadata().cast(
            pa.schema([f.remove_metadata() for f in table.schema])
        ),
        part,
    )
    with pytest.raises(DatasetError, match=r"part_00000.*no cardinalities; give the feature spec"):
        ParquetReader(root, "train")


def test_writers_refuse_what_no_reader_could_read(tmp_path):
    good = make_columns(SPEC, 4)
    wrong = dataclasses.replace(good, categorical=(np.full(4, 5), *good.categorical[1:]))
    with SplitBinaryWriter(tmp_path / "train", SPEC, 4) as writer:
        for write in (
            lambda c: writer.write(0, c),
            lambda c: write_binary_records(tmp_path / "x.bin", SPEC, c),
            lambda c: write_parquet_part(tmp_path / "x.parquet", SPEC, [c]),
        ):
            with pytest.raises(DatasetError, match=r"cat_0, row 0: id 5 is outside \[0, 5\)"):
                write(wrong)
            with pytest.raises(ValueError, match="numerical has shape"):
                write(dataclasses.replace(good, numerical=good.numerical[:, :1]))
            with pytest.raises(ValueError, match="2 categorical columns, the feature spec has 3"):
                write(dataclasses.replace(good, categorical=good.categorical[:2]))
            ids = (good.categorical[0], good.categorical[1][:3], good.categorical[2])
            with pytest.raises(ValueError, match=r"cat_1 has shape \(3,\)"):
                write(dataclasses.replace(good, categorical=ids))
        for value in (70_000.0, np.nan, -np.inf):
            numerical = good.numerical.astype(np.float32)
            numerical[2, 1] = value
            with pytest.raises(DatasetError, match=r"num_1, row 2: .*not finite in float16; scale"):
                writer.write(0, dataclasses.replace(good, numerical=numerical))
        with pytest.raises(ValueError, match="exceed 4"):
            writer.write(1, good)
    assert [p.name for p in tmp_path.iterdir()] == ["train"]
