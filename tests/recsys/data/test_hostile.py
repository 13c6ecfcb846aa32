# SPDX-License-Identifier: Apache-2.0
"""Malformed datasets: each is refused, naming file, feature, row, value and what to do."""

import dataclasses
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
from tests.harness import assert_tells, refusal
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

PAGE = "docs/dataset_format.md"
"""Told of a spec that is YAML, but wrong."""

SPECS = {
    "no YAML": (put("a: [1"),),
    "binary": (put(b"\xff\xfe\x00"), "UTF-8"),
    "empty": (put(""), "None", PAGE),
    "runs code": (put("!!python/object/apply:os.getcwd []"), "os.getcwd"),
    "deep": (put("[" * 1000),),
    "multiplies": (put(BOMB + "feature_spec: *i\n"), "'feature_spec'", PAGE),
    "key twice": (edit("  cat_1:\n", "  cat_0:\n"), "cat_0"),
    "date": (put("a:\n- 2026-02-30"), "feature_spec.yaml:2", "2026-02-30"),
    "no channel_spec": (edit("channel_spec:", "channels:"), "'channel_spec'"),
    "unknown feature": (edit("  - cat_1\n", "  - cat_9\n"), "['cat_9']"),
    "feature in two channels": (
        edit("  - cat_1\n", "  - num_0\n"),
        *("feature_spec.num_0.cardinality", None),
    ),
    "feature listed twice": (
        each(edit("  - cat_1\n", "  - cat_0\n"), edit("source_spec:", "unused:")),
        "['cat_0']",
    ),
    "channel is no list": (
        edit("  label:\n  - label\n", "  label: label\n"),
        *("channel_spec.label", "'label'"),
    ),
    "two labels": (
        edit("  label:\n  - label\n", "  label:\n  - label\n  - num_0\n"),
        *("channel_spec.label", "['label', 'num_0']"),
    ),
    "cardinality is text": (
        edit("cardinality: 200", "cardinality: auto"),
        *("feature_spec.cat_1.cardinality", "'auto'"),
    ),
    "cardinality is 0": (edit("cardinality: 200", "cardinality: 0"), "cat_1", 1, 0),
    "cardinality is huge": (
        edit("cardinality: 200", "cardinality: 2147483647"),
        *("cat_1", 2147483647, "`category_modulus`"),
    ),
    "ids are floats": (
        edit("dtype: int16", "dtype: float32"),
        *("feature_spec.cat_1.dtype", "int8, int16, int32", "'float32'"),
    ),
    "numerical is float64": (each(*[edit("float16", "float64")] * 2), "float16", "float64"),
    "numerical dtypes differ": (edit("float16", "float32"), "'float16', 'float32'"),
    "chunk of another type": (
        edit("type: split_binary", "type: csv"),
        *("source_spec.test", "split_binary", "'csv'"),
    ),
    "chunk without files": (edit(CHUNK, ""), "source_spec.test", "['label']"),
    "chunk of two files": (edit(CHUNK, CHUNK + "    - test/more.bin\n"), "source_spec.test"),
    "file outside the dataset": (
        edit("test/label.bin", "../../secret"),
        *("source_spec.test", "'../../secret'"),
    ),
    "absolute file": (edit("test/label.bin", "/secret"), "source_spec.test", "'/secret'"),
    "file for two features": (
        edit("test/cat_1.bin", "test/cat_0.bin"),
        *("source_spec.test", "test/cat_0.bin"),
    ),
    "feature without file": (
        edit("  - features:\n    - cat_1\n", "  - features:\n    - other\n"),
        *("source_spec.test", "['cat_1']"),
    ),
}
SIZES = {
    "no JSON": (put("{"), "JSON"),
    "deep": (put("[" * 99_999), "JSON"),
    "list": (put("[1]"), "_c14", "[1]"),
    "negative": (put('{"_c14": -1}'), "{'_c14': -1}"),
    "key twice": (put('{"_c14": 1, "_c14": 2}'), "JSON", "'_c14'"),
    "huge": (put('{"_c14": 2147483646}'), "cat_0", 2147483647, "int32"),
}
MANIFESTS = {
    "no JSON": (put("{'"), "JSON"),
    "of others": (put("{}"), "recsys-recipes dataset"),
    "of the future": (set_key("format_version", 2), 2, 1),
    "key unknown": (set_key("colour", "red"), "colour"),
    "changed": (each(lambda path: path.write_text(path.read_text().replace("64", "63"))),),
    "no name of a file": (set_key("files", {"\ud800": {"bytes": 1, "xxh3_128": ""}}), "files"),
    "rows negative": (set_key("rows", {"train": -1}), "rows", "{'train': -1}"),
    "file outside": (set_key("files", {"../x": {"bytes": 1, "xxh3_128": ""}}), "files", "'../x'"),
}
SPLITS = {
    "column is cut": (inside("cat_2.bin", cut(1)), "cat_2.bin", 255),
    "numerical is cut": (inside("numerical.bin", cut(2)), "numerical.bin", 254, 64),
    "label is cut": (inside("label.bin", cut(3)), "label.bin", 61),
    "ids too narrow": (inside("cat_2.bin", put(bytes(128))), "cat_2.bin", "16-bit", 40000),
    "id beyond its table": (
        inside("cat_0.bin", overwrite(7, b"\5")),
        *("cat_0", "row 7", 5, "[0, 5)", "recsys-recipes verify"),
    ),
    "negative id": (inside("cat_1.bin", overwrite(4, b"\xff\xff")), "cat_1", "row 2", -1),
}
RECORDS = {
    "missing": (remove, "`dataset_type` split"),
    "cut": (cut(5), "24-byte"),
    "label": (overwrite(24 * 3, b"\7"), "label", "row 3", 7, "recsys-recipes verify"),
    "id": (overwrite(24 * 2 + 12, b"\x90"), "cat_0", "row 2", 144, "[0, 5)"),
}
PARQUET = {
    "empty": (put(b""),),
    "cut": (cut(100),),
    "damaged": (overwrite(4, b"\xff" * 60), "row group 0"),
    "column name is no text": (
        lambda path: path.write_bytes(path.read_bytes().replace(b"cat_1", b"cat\x80\xff")),
    ),
    "column missing in the second part": (
        change_part(lambda t: t.drop_columns(["cat_1"])),
        "['cat_1']",
    ),
    "ids are text": (set_column("cat_1", ["a"] * 32), "cat_1", "string"),
    "ids are fractions": (set_column("cat_1", [0.5] * 32), "cat_1", "double"),
    "label is text": (set_column("label", ["0"] * 32), "label", "string"),
    "label is 0.5": (set_column("label", [0.0, 0.5] * 16), "label", "row 33", 0.5),
    "value is null": (set_column("cat_1", pa.array([None] * 32, pa.int32())), "['cat_1']"),
    "id wraps around": (set_column("cat_0", [256] * 32), "cat_0", "row 32", 256),
}
ID_FILE = {"missing": (remove,), "folder": (each(remove, Path.mkdir),)}
LABEL = {"2": (overwrite(9, b"\2"), "row 9", 2, "recsys-recipes verify")}
CASES = [  # what reads it, what is damaged and to be named, how and what is told
    (FeatureSpec.load, "feature_spec.yaml", SPECS),
    (load_model_size, "model_size.json", SIZES),
    (Manifest.load, "manifest.json", MANIFESTS),
    (read_split, "train", SPLITS),
    (read_split, "train/cat_1.bin", ID_FILE),
    (read_split, "train/label.bin", LABEL),
    (read_records, "train_data.bin", RECORDS),
    (read_parquet, TRAIN_PART, PARQUET),
]


@pytest.mark.parametrize(
    ("read", "name", "case"),
    [
        pytest.param(read, name, case, id=f"{name}: {label}")
        for read, name, cases in CASES
        for label, case in cases.items()
    ],
)
def test_damage_is_refused_and_verified(tmp_path, read, name, case):
    damage, *facts = case
    root = write_dataset(tmp_path)
    read(root)
    damage(root / name)
    with pytest.raises(DatasetError) as caught:
        read(root)
    message = str(caught.value)
    assert name in message
    assert_tells(message.replace(str(tmp_path), ""), *facts)
    assert len(message) < 1000
    assert any(name in problem for problem in problems(root))


@pytest.mark.parametrize(
    ("read", "names", "facts"),
    [
        (
            FeatureSpec.load,
            ("feature_spec.yaml", "model_size.json"),
            ["feature_spec.yaml", "model_size.json", "recsys-recipes prepare clicks"],
        ),
        (Manifest.load, ("manifest.json",), ["manifest.json"]),
        (read_split, ("train",), ["train"]),
        (
            read_parquet,
            ("parquet/train/part_00000.parquet", "parquet/train/part_00001.parquet"),
            ["parquet/train/*.parquet", "`format` parquet"],
        ),
    ],
)
def test_what_is_not_there(tmp_path, read, names, facts):
    root = write_dataset(tmp_path)
    for name in names:
        (root / name).rename(root / f"{Path(name).name}.bak")
    with refusal(*facts, kind=DatasetError):
        read(root)


def test_parquet_metadata_that_is_no_number(tmp_path):
    root = write_dataset(tmp_path, ("parquet",), manifest=False)
    for name in ("feature_spec.yaml", "model_size.json"):
        (root / name).unlink()
    part = root / "parquet/train/part_00000.parquet"
    table = pq.read_table(part, partitioning=None)
    fields = [f.with_metadata({"cardinality": "many"}) for f in table.schema]
    pq.write_table(table.cast(pa.schema(fields)), part)
    with refusal("label", "many", kind=DatasetError, path=part):
        ParquetReader(root, "train")


def test_writers_refuse_what_no_reader_could_read(tmp_path):
    good = make_columns(SPEC, 4)
    wrong = dataclasses.replace(good, categorical=(np.full(4, 5), *good.categorical[1:]))
    with SplitBinaryWriter(tmp_path / "train", SPEC, 4) as writer:
        for write in (
            lambda c: writer.write(0, c),
            lambda c: write_parquet_part(tmp_path / "x.parquet", SPEC, [c]),
        ):
            with refusal("cat_0", "row 0", 5, "[0, 5)", kind=DatasetError):
                write(wrong)
            with refusal("numerical", (4, 1), (4, 2), kind=ValueError):
                write(dataclasses.replace(good, numerical=good.numerical[:, :1]))
            with refusal(2, 3, kind=ValueError):
                write(dataclasses.replace(good, categorical=good.categorical[:2]))
            ids = (good.categorical[0], good.categorical[1][:3], good.categorical[2])
            with refusal("cat_1", (3,), (4,), kind=ValueError):
                write(dataclasses.replace(good, categorical=ids))
        for value in (70_000.0, np.nan, -np.inf):
            numerical = good.numerical.astype(np.float32)
            numerical[2, 1] = value
            with refusal("num_1", "row 2", "float16", kind=DatasetError):
                writer.write(0, dataclasses.replace(good, numerical=numerical))
        with refusal(4, kind=ValueError):
            writer.write(1, good)
    assert [p.name for p in tmp_path.iterdir()] == ["train"]
