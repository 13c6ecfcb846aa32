# SPDX-License-Identifier: Apache-2.0
"""Malformed datasets: each is refused, naming file, feature, row, value and what to do."""

import dataclasses
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recsys.data.errors import DatasetError
from recsys.data.feature_spec import FeatureSpec
from recsys.data.formats.records import BinaryRecordsReader
from recsys.data.manifest import Manifest
from recsys.data.parquet import ParquetReader, write_parquet_part
from recsys.data.split_binary import SplitBinaryReader, SplitBinaryWriter
from tests.recsys.data.damage import (
    Damage,
    cut,
    each,
    edit,
    inside,
    overwrite,
    put,
    remove,
    set_key,
)
from tests.recsys.data.datasets import SPEC, make_columns, problems, write_dataset

TRAIN_PART = "parquet/train/part_00001.parquet"


def load_model_size(root: Path) -> object:
    return FeatureSpec.load_model_size(root / "model_size.json")


def read_split(root: Path) -> None:
    reader = SplitBinaryReader(root, "train", FeatureSpec.load(root))
    reader.read(0, reader.num_rows).check_ids(reader.spec, reader.folder, 0)


def read_records(root: Path) -> None:
    reader = BinaryRecordsReader(root, "train")
    reader.read(0, reader.num_rows).check_ids(reader.spec, reader.path, 0)


def read_parquet(root: Path) -> None:
    list(ParquetReader(root, "train").stream())


def change_part(change) -> Damage:
    def damage(path: Path) -> None:
        table = pq.read_table(path, partitioning=None)
        schema = pa.schema([f.with_nullable(True) for f in table.schema])
        pq.write_table(change(table.cast(schema)), path)

    return damage


def set_column(name: str, values) -> Damage:
    array = values if isinstance(values, pa.Array) else pa.array(values)
    return change_part(lambda t: t.set_column(t.schema.names.index(name), name, array))


BOMB = "a: &a [x, x, x, x, x, x, x, x]\n" + "".join(
    f"{b}: &{b} [*{a}, *{a}, *{a}, *{a}, *{a}, *{a}, *{a}, *{a}]\n"
    for a, b in zip("abcdefgh", "bcdefghi", strict=True)
)
CHUNK = "    files:\n    - test/label.bin\n"

SPECS = {
    "no YAML": (put("a: [1"), "not readable as YAML"),
    "binary": (put(b"\xff\xfe\x00"), "not readable"),
    "empty": (put(""), "a mapping.*dataset_format"),
    "runs code": (put("!!python/object/apply:os.getcwd []"), "not readable"),
    "deep": (put("[" * 1000), "not readable"),
    "multiplies": (put(BOMB + "feature_spec: *i\n"), "must be a mapping"),
    "key twice": (edit("  cat_1:\n", "  cat_0:\n"), r"yaml:\d+: .* cat_0 stands there twice"),
    "date": (put("a:\n- 2026-02-30"), "yaml:2: .*'2026-02-30' is no number or date"),
    "no channel_spec": (edit("channel_spec:", "channels:"), "'channel_spec' must"),
    "unknown feature": (
        edit("  - cat_1\n", "  - cat_9\n"),
        r"names unknown features: \['cat_9'\]; describe them",
    ),
    "feature in two channels": (edit("  - cat_1\n", "  - num_0\n"), "num_0.*must be an int"),
    "feature listed twice": (
        each(edit("  - cat_1\n", "  - cat_0\n"), edit("source_spec:", "unused:")),
        r"must differ, used more than once: \['cat_0'\]",
    ),
    "channel is no list": (
        edit("  label:\n  - label\n", "  label: label\n"),
        "channel_spec.label must be a list of names, got 'label'",
    ),
    "two labels": (
        edit("  label:\n  - label\n", "  label:\n  - label\n  - num_0\n"),
        "label must name one",
    ),
    "cardinality is text": (
        edit("cardinality: 200", "cardinality: auto"),
        "cat_1.cardinality must be an integer, got 'auto'.*resolved when the dataset is prepared",
    ),
    "cardinality is 0": (edit("cardinality: 200", "cardinality: 0"), "at least 1"),
    "cardinality is huge": (
        edit("cardinality: 200", "cardinality: 2147483647"),
        "feature cat_1: a cardinality of 2147483647 does not fit int32.*category_modulus",
    ),
    "ids are floats": (
        edit("dtype: int16", "dtype: float32"),
        "cat_1.dtype must be one of int8, int16, int32, got 'float32'",
    ),
    "numerical is float64": (
        each(*[edit("float16", "float64")] * 2),
        "numerical dtype must be float16 or float32, got float64",
    ),
    "numerical dtypes differ": (edit("float16", "float32"), "must share one dtype"),
    "chunk of another type": (
        edit("type: split_binary", "type: csv"),
        "source_spec.test: type must be split_binary, got 'csv'",
    ),
    "chunk without files": (edit(CHUNK, ""), "each chunk needs type, features and files"),
    "chunk of two files": (edit(CHUNK, CHUNK + "    - test/more.bin\n"), "exactly one file"),
    "file outside the dataset": (
        edit("test/label.bin", "../../secret"),
        "'../../secret' must be a path inside the dataset folder",
    ),
    "absolute file": (edit("test/label.bin", "/secret"), "path inside the"),
    "file for two features": (edit("test/cat_1.bin", "test/cat_0.bin"), "in two chunks"),
    "feature without file": (
        edit("  - features:\n    - cat_1\n", "  - features:\n    - other\n"),
        r"no chunk holds exactly the features \['cat_1'\].*need a chunk of their own",
    ),
}
SIZES = {
    "no JSON": (put("{"), "JSON.*restore"),
    "deep": (put("[" * 99_999), "JSON.*restore"),
    "list": (put("[1]"), r"expected \{\"_c14\""),
    "negative": (put('{"_c14": -1}'), "integers >= 0, got .'_c14': -1"),
    "key twice": (put('{"_c14": 1, "_c14": 2}'), "'_c14' is there twice"),
    "huge": (put('{"_c14": 2147483646}'), "does not fit int32"),
}
MANIFESTS = {
    "no JSON": (put("{'"), "not readable as JSON"),
    "of others": (put("{}"), "key format.*remove it"),
    "of the future": (
        set_key("format_version", 2),
        "format version 2, this code reads 1; update the code",
    ),
    "key unknown": (set_key("colour", "red"), "unknown keys: colour"),
    "rows negative": (set_key("rows", {"train": -1}), "rows is malformed"),
    "file outside": (
        set_key("files", {"../x": {"bytes": 1, "xxh3_128": ""}}),
        "files is malformed.*prepare",
    ),
}
SPLITS = {
    "column is cut": (inside("cat_2.bin", cut(1)), r"cat_2.bin has 255 bytes.*are cut short"),
    "numerical is cut": (inside("numerical.bin", cut(2)), r"numerical.bin has 254 bytes, not 64"),
    "label is cut": (inside("label.bin", cut(3)), "As wide.*not a multiple"),
    "ids too narrow": (inside("cat_2.bin", put(bytes(128))), "16-bit ids, too narrow for the 40"),
    "id beyond its table": (
        inside("cat_0.bin", overwrite(7, b"\5")),
        r"feature cat_0, row 7: id 5 is outside \[0, 5\).*recsys-recipes verify",
    ),
    "negative id": (inside("cat_1.bin", overwrite(4, b"\xff\xff")), "cat_1, row 2: id -1"),
}
RECORDS = {
    "missing": (remove, "missing.*`dataset_type` split"),
    "cut": (cut(5), "no multiple of the 24-byte.*cut"),
    "label": (overwrite(24 * 3, b"\7"), r"label, row 3: value 7.*recsys-recipes verify"),
    "id": (overwrite(24 * 2 + 12, b"\x90"), r"feature cat_0, row 2: id 144 is outside"),
}
PARQUET = {
    "empty": (put(b""), "not readable.*prepare"),
    "cut": (cut(100), "not readable.*prepare"),
    "damaged": (overwrite(4, b"\xff" * 60), "row group 0 is not rea"),
    "column name is no text": (
        lambda path: path.write_bytes(path.read_bytes().replace(b"cat_1", b"cat\x80\xff")),
        "not readable as parquet.*prepare",
    ),
    "column missing in the second part": (
        change_part(lambda t: t.drop_columns(["cat_1"])),
        r"columns \['cat_1'\] of the feature spec are missing.*give the spec",
    ),
    "ids are text": (set_column("cat_1", ["a"] * 32), "must hold integers, got string"),
    "ids are fractions": (set_column("cat_1", [0.5] * 32), "cat_1 must hold integers.*cast"),
    "label is text": (set_column("label", ["0"] * 32), "numbers or booleans.*prepare"),
    "label is 0.5": (set_column("label", [0.0, 0.5] * 16), "label, row 33: value 0.5"),
    "value is null": (
        set_column("cat_1", pa.array([None] * 32, pa.int32())),
        r"missing values in \['cat_1'\].*fill them in",
    ),
    "id wraps around": (set_column("cat_0", [256] * 32), "cat_0, row 32: id 256 is outsi"),
}
CASES = [  # what reads it, what is damaged and to be named, how and what the message says
    (FeatureSpec.load, "feature_spec.yaml", SPECS),
    (load_model_size, "model_size.json", SIZES),
    (Manifest.load, "manifest.json", MANIFESTS),
    (read_split, "train", SPLITS),
    (
        read_split,
        "train/cat_1.bin",
        {
            "missing": (remove, "is missing.*prepare"),
            "folder": (each(remove, Path.mkdir), "is no file.*prepare"),
        },
    ),
    (
        read_split,
        "train/label.bin",
        {"2": (overwrite(9, b"\2"), r"row 9: value 2 is neither 0 nor 1.*recsys-recipes verify")},
    ),
    (read_records, "train_data.bin", RECORDS),
    (read_parquet, TRAIN_PART, PARQUET),
]


@pytest.mark.parametrize(
    ("read", "name", "damage", "says"),
    [
        pytest.param(read, name, *case, id=f"{name}: {label}")
        for read, name, cases in CASES
        for label, case in cases.items()
    ],
)
def test_damage_is_refused_and_verified(tmp_path, read, name, damage, says):
    root = write_dataset(tmp_path)
    read(root)
    damage(root / name)
    with pytest.raises(DatasetError) as caught:
        read(root)
    message = str(caught.value)
    assert name in message
    assert re.search(says, message, re.DOTALL), message
    assert len(message) < 1000
    assert any(name in problem for problem in problems(root))


@pytest.mark.parametrize(
    ("read", "names", "says"),
    [
        (
            FeatureSpec.load,
            ("feature_spec.yaml", "model_size.json"),
            "neither feature_spec.yaml nor model_size.json.*recsys-recipes prepare clicks",
        ),
        (Manifest.load, ("manifest.json",), "manifest.json is missing.*prepare"),
        (read_split, ("train",), "no folder train.*is this the folder of a prepared"),
        (
            read_parquet,
            ("parquet/train/part_00000.parquet", "parquet/train/part_00001.parquet"),
            r"parquet/train/\*.parquet.*prepare the dataset with `format` parquet",
        ),
    ],
)
def test_what_is_not_there(tmp_path, read, names, says):
    root = write_dataset(tmp_path)
    for name in names:
        (root / name).rename(root / f"{Path(name).name}.bak")
    with pytest.raises(DatasetError, match=f"(?s){says}"):
        read(root)


def test_parquet_metadata_that_is_no_number(tmp_path):
    root = write_dataset(tmp_path, ("parquet",), manifest=False)
    for name in ("feature_spec.yaml", "model_size.json"):
        (root / name).unlink()
    part = root / "parquet/train/part_00000.parquet"
    table = pq.read_table(part, partitioning=None)
    fields = [f.with_metadata({"cardinality": "many"}) for f in table.schema]
    pq.write_table(table.cast(pa.schema(fields)), part)
    with pytest.raises(DatasetError, match=r"part_00000.*label.*'many' is not.*give the feature s"):
        ParquetReader(root, "train")


def test_writers_refuse_what_no_reader_could_read(tmp_path):
    good = make_columns(SPEC, 4)
    wrong = dataclasses.replace(good, categorical=(np.full(4, 5), *good.categorical[1:]))
    with SplitBinaryWriter(tmp_path / "train", SPEC, 4) as writer:
        for write in (
            lambda c: writer.write(0, c),
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
