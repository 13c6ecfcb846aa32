# SPDX-License-Identifier: Apache-2.0
"""The exact bytes of a tiny dataset in each format: a change here breaks datasets on disk."""

import json
import struct

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from recsys.data.click_columns import ClickColumns
from recsys.data.feature_spec import FeatureSpec
from recsys.data.manifest import Manifest
from recsys.data.parquet import write_parquet_part
from recsys.data.records import write_binary_records
from tests.recsys.data.datasets import write_manifest, write_split

SPEC = FeatureSpec.criteo([5, 200, 40_000], num_numerical=2)
COLUMNS = ClickColumns(
    np.array([True, False, True]),
    np.array([[0.0, 1.0], [-2.0, 0.5], [0.693359375, 65504.0]], np.float16),
    (
        np.array([0, 4, 1], np.int8),
        np.array([199, 0, 128], np.int16),
        np.array([39_999, 1, 0], np.int32),
    ),
)
SPLIT_BYTES = {
    "label.bin": b"\x01\x00\x01",
    "numerical.bin": bytes.fromhex("0000003c 00c00038 8c39ff7b"),
    "cat_0.bin": b"\x00\x04\x01",
    "cat_1.bin": bytes.fromhex("c700 0000 8000"),
    "cat_2.bin": bytes.fromhex("3f9c0000 01000000 00000000"),
}
SPEC_YAML = """\
channel_spec:
  categorical:
  - cat_0
  - cat_1
  - cat_2
  label:
  - label
  numerical:
  - num_0
  - num_1
feature_spec:
  cat_0:
    cardinality: 5
    dtype: int8
  cat_1:
    cardinality: 200
    dtype: int16
  cat_2:
    cardinality: 40000
    dtype: int32
  label:
    dtype: bool
  num_0:
    dtype: float16
  num_1:
    dtype: float16
metadata: {}
source_spec:
"""
def test_split_binary(tmp_path):
    write_split(tmp_path, "train", SPEC, COLUMNS)
    assert {p.name: p.read_bytes() for p in (tmp_path / "train").iterdir()} == SPLIT_BYTES


def test_binary_records(tmp_path):
    write_binary_records(tmp_path / "train_data.bin", SPEC, COLUMNS)
    assert (tmp_path / "train_data.bin").read_bytes() == b"".join(
        [
            struct.pack("<i2f3i", 1, 0.0, 1.0, 0, 199, 39_999),
            struct.pack("<i2f3i", 0, -2.0, 0.5, 4, 0, 1),
            struct.pack("<i2f3i", 1, 0.693359375, 65504.0, 1, 128, 0),
        ]
    )


def test_feature_spec_and_model_size(tmp_path):
    SPEC.save(tmp_path)
    files = {"numerical": ("num_0", "num_1"), "label": ("label",)}
    files |= {f"cat_{i}": (f"cat_{i}",) for i in range(3)}
    expected = SPEC_YAML
    for split in ("test", "train"):
        expected += f"  {split}:\n"
        for file, features in files.items():
            expected += "  - features:\n" + "".join(f"    - {name}\n" for name in features)
            expected += f"    files:\n    - {split}/{file}.bin\n    type: split_binary\n"
    assert (tmp_path / "feature_spec.yaml").read_text() == expected
    model_size = '{\n "_c14": 4,\n "_c15": 199,\n "_c16": 39999\n}\n'
    assert (tmp_path / "model_size.json").read_text() == model_size


def test_manifest(tmp_path):
    write_split(tmp_path, "train", SPEC, COLUMNS)
    write_manifest(tmp_path, SPEC, {"train": 3}, {"train": 2})
    assert json.loads((tmp_path / "manifest.json").read_text()) == {
        "format": "recsys-recipes dataset",
        "format_version": 1,
        "kind": "synthetic",
        "engine": {"name": "test"},
        "semantics": {},
        "source_files": [],
        "rows": {"train": 3},
        "positives": {"train": 2},
        "rejected": {},
        "cardinalities": [5, 200, 40_000],
        "files": {
            "train/cat_0.bin": {"bytes": 3, "xxh3_128": "0059ef85178488e684cd00149755fc50"},
            "train/cat_1.bin": {"bytes": 6, "xxh3_128": "13b8a861f8de35ed4080a6343c5cd7cb"},
            "train/cat_2.bin": {"bytes": 12, "xxh3_128": "bd95ef96c4c15f83409c930839cb6465"},
            "train/label.bin": {"bytes": 3, "xxh3_128": "b1a57916ac63a6bcaed946681f85b77a"},
            "train/numerical.bin": {"bytes": 12, "xxh3_128": "81412522f126dfb66e98cb9743e8cef1"},
        },
        "fingerprint": "fb13ad7deb7cae684af4693ce618b958",
    }
    text = (tmp_path / "manifest.json").read_text()
    assert text.startswith('{\n "format": "recsys-recipes dataset",\n "format_version": 1,\n')
    Manifest.load(tmp_path).save(tmp_path)
    assert (tmp_path / "manifest.json").read_text() == text


def test_parquet(tmp_path):
    path = tmp_path / "parquet/train/part_00000.parquet"
    write_parquet_part(path, SPEC, [COLUMNS])
    assert [p.name for p in path.parent.iterdir()] == ["part_00000.parquet"]
    # Page bytes belong to the version of Arrow; names, types, values and metadata to the contract.
    table = pq.read_table(path)
    fields = [("label", pa.int32()), ("num_0", pa.float32()), ("num_1", pa.float32())]
    fields += [(f"cat_{i}", pa.int32()) for i in range(3)]
    assert table.schema.remove_metadata() == pa.schema(
        [pa.field(name, kind, nullable=False) for name, kind in fields]
    )
    metadata = [table.schema.field(f"cat_{i}").metadata for i in range(3)]
    assert [m[b"cardinality"] for m in metadata] == [b"5", b"200", b"40000"]
    assert table.to_pydict() == {
        "label": [1, 0, 1],
        "num_0": [0.0, -2.0, 0.693359375],
        "num_1": [1.0, 0.5, 65504.0],
        "cat_0": [0, 4, 1],
        "cat_1": [199, 0, 128],
        "cat_2": [39_999, 1, 0],
    }
    assert pq.read_metadata(path).row_group(0).column(0).compression == "SNAPPY"
