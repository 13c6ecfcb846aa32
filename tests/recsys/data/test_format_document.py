# SPDX-License-Identifier: Apache-2.0
"""docs/dataset_format.md suffices to read a dataset, and says what the code does, to the byte.

`read_split` is written from the page alone: it imports nothing of the project. A change of the
exact bytes breaks datasets on disk.
"""

import csv
import dataclasses
import io
import json
import re
import struct
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash
import yaml

from preproc.clicks.job import PRESETS, semantics_of
from preproc.clicks.rules import ClicksSemantics
from preproc.clicks.schema.grammar import REJECT_REASONS, reject_reason
from preproc.clicks.schema.row_format import criteo_format
from preproc.files.quarantine import RejectedRow, escape_row
from recsys.data.click_columns import ClickColumns
from recsys.data.manifest import Manifest
from recsys.data.parquet import write_parquet_part
from recsys.settings import declared
from tests.harness import assert_tells
from tests.recsys.data.datasets import (
    ROWS,
    SPEC,
    make_columns,
    write_binary_records,
    write_dataset,
    write_manifest,
    write_split,
)

PAGE = (Path(__file__).resolve().parents[3] / "docs/dataset_format.md").read_text()
CONFORMANCE = Path(__file__).parents[2] / "preproc" / "conformance"
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


def read_split(root, split):
    """Returns label, numerical [N, M] and the id columns of a split."""
    spec = yaml.safe_load((root / "feature_spec.yaml").read_text())
    sources, channels = spec["source_spec"], spec["channel_spec"]
    # Validation has the names of another split's files, in a folder of its own.
    chunks = sources.get(split, sources["train"])
    paths = {tuple(c["features"]): c["files"][0].replace("train/", f"{split}/") for c in chunks}

    def column(*features):
        dtype = np.dtype(spec["feature_spec"][features[0]]["dtype"]).newbyteorder("<")
        return np.fromfile(root / paths[features], dtype)

    numerical = channels["numerical"]
    ids = [column(name) for name in channels["categorical"]]
    return column(*channels["label"]), column(*numerical).reshape(-1, len(numerical)), ids


def test_a_reader_written_from_the_page_reads_our_datasets(tmp_path):
    root = write_dataset(tmp_path)
    for seed, (split, rows) in enumerate(ROWS.items()):
        label, numerical, ids = read_split(root, split)
        expected = make_columns(SPEC, rows, seed)
        np.testing.assert_array_equal(label, expected.label)
        np.testing.assert_array_equal(numerical, expected.numerical)
        for found, column in zip(ids, expected.categorical, strict=True):
            np.testing.assert_array_equal(found, column)


def test_the_presets_of_the_page_are_those_of_the_code():
    table = PAGE[PAGE.index("<!-- presets") :].split("\n\n")[1].splitlines()
    header, _, *lines = [[c.strip() for c in line.strip("|").split("|")] for line in table]
    names = [re.search(r"`(\w+)`", name)[1] for name in header[1:]]
    assert sorted(names) == PRESETS.names()
    assert [line[0] for line in lines] == [f.name for f in declared(ClicksSemantics)]
    presets = [semantics_of(name) for name in names]
    for field, *values in lines:
        for preset, text in zip(presets, values, strict=True):
            value = getattr(preset, field)
            if isinstance(value, tuple):
                shares = [int(a) / int(b) for a, b in (s.split("/") for s in text.split(", "))]
                assert shares == pytest.approx(value)
            else:
                assert text == str(value).lower()


def test_the_row_grammar_of_the_page_is_that_of_the_code():
    (pattern,) = re.findall(r"^    (\[01\].*)$", PAGE, re.MULTILINE)
    text = "".join((CONFORMANCE / f"day_{day}.tsv").read_text("latin-1") for day in range(3))
    reasons = set()
    for row in re.split("\r?\n", text):
        reason = reject_reason(row.encode("latin-1"), criteo_format())
        reasons.add(reason)
        # Integers beyond int32 fit the pattern.
        assert reason == "integer" or (reason is None) == bool(re.fullmatch(pattern, row))
    assert reasons == {None, *ClicksSemantics().reject_reasons}


def test_the_quarantine_of_the_page_is_that_of_the_code():
    header = ",".join(field.name for field in dataclasses.fields(RejectedRow))
    assert_tells(PAGE, *(f"`{each}`" for each in (header, *REJECT_REASONS)))
    row = b'1\t\xff"a,b\\\r\x00'
    assert escape_row(row) == '1\\t\\xff"a,b\\\\\\r\\x00'
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow([escape_row(row)])
    assert next(csv.reader([text.getvalue()])) == [escape_row(row)]


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
    columns = {"numerical": ["num_0", "num_1"], "label": ["label"]}
    columns |= {f"cat_{i}": [f"cat_{i}"] for i in range(3)}
    features = {"label": {"dtype": "bool"}}
    features |= {f"num_{i}": {"dtype": "float16"} for i in range(2)}
    features["cat_0"] = {"cardinality": 5, "dtype": "int8"}
    features["cat_1"] = {"cardinality": 200, "dtype": "int16"}
    features["cat_2"] = {"cardinality": 40_000, "dtype": "int32"}
    document = {
        "channel_spec": {
            "categorical": ["cat_0", "cat_1", "cat_2"],
            "label": ["label"],
            "numerical": ["num_0", "num_1"],
        },
        "feature_spec": features,
        "metadata": {},
        "source_spec": {
            split: [
                {"features": names, "files": [f"{split}/{file}.bin"], "type": "split_binary"}
                for file, names in columns.items()
            ]
            for split in ("test", "train")
        },
    }
    text = (tmp_path / "feature_spec.yaml").read_text()
    assert text.startswith("channel_spec:\n  categorical:\n  - cat_0\n")
    assert yaml.safe_load(text) == document
    model_size = '{\n "_c14": 4,\n "_c15": 199,\n "_c16": 39999\n}\n'
    assert (tmp_path / "model_size.json").read_text() == model_size


def test_manifest(tmp_path):
    write_split(tmp_path, "train", SPEC, COLUMNS)
    sizes = list(SPEC.table_sizes)
    write_manifest(tmp_path, rows={"train": 3}, positives={"train": 2}, cardinalities=sizes)
    files = {
        f"train/{name}": {"bytes": len(data), "xxh3_128": xxhash.xxh3_128(data).hexdigest()}
        for name, data in SPLIT_BYTES.items()
    }
    lines = [f"{name}\0{files[name]['xxh3_128']}\n" for name in sorted(files)]
    manifest = {
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
        "files": dict(sorted(files.items())),
        "fingerprint": xxhash.xxh3_128("".join(lines).encode()).hexdigest(),
    }
    text = (tmp_path / "manifest.json").read_text()
    before = json.dumps(manifest, indent=1).removesuffix("\n}")
    checksum = xxhash.xxh64(before.encode()).hexdigest()
    assert text == f'{before},\n "checksum": "{checksum}"\n}}\n'
    Manifest.load(tmp_path).save(tmp_path)
    assert (tmp_path / "manifest.json").read_text() == text
    keys = re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)
    assert " ".join(manifest) in " ".join(keys)


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
