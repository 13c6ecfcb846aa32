# SPDX-License-Identifier: Apache-2.0
"""docs/dataset_format.md suffices to read a dataset, and says what the code does.

`read_split` is written from the page alone: it imports nothing of the project.
"""

import csv
import dataclasses
import io
import json
import re
from pathlib import Path

import numpy as np
import pytest
import xxhash
import yaml

from preproc.criteo.job import PRESETS, semantics_of
from preproc.criteo.rules import REJECT_REASONS, CriteoSemantics, row_grammar
from preproc.files.quarantine import RejectedRow, escape_row
from recsys.data.feature_spec import FeatureSpec
from recsys.data.split_binary import SplitBinaryReader
from tests.recsys.data.datasets import ROWS, SPEC, make_columns, write_dataset
from tests.recsys.data.test_nvidia_layouts import check_rows, write_earlier_era, write_later_era
from tests.recsys.data.test_nvidia_layouts import write_wide as write_wide_split

PAGE = (Path(__file__).resolve().parents[3] / "docs/dataset_format.md").read_text()


def read_split(root, split, num_numerical=13):
    """Returns label, numerical [N, M] and the id columns of a split-binary split."""
    if (root / "feature_spec.yaml").exists():
        spec = yaml.safe_load((root / "feature_spec.yaml").read_text())
        channels, features = spec["channel_spec"], spec["feature_spec"]
        num_numerical = len(channels["numerical"])
        cardinalities = [features[n]["cardinality"] for n in channels["categorical"]]
    else:
        highest = json.loads((root / "model_size.json").read_text())
        spec, cardinalities = {}, [h + 1 for h in highest.values()]
    bases = [b / n for b in (root, root / "split") for n in {split: split, "val": "val"}]
    bases = [b for b in bases if b.name == split or split == "validation"]
    folder = next(b for b in bases if (b / "label.bin").exists())
    files = [folder / f"cat_{i}.bin" for i in range(len(cardinalities))]
    chunks = spec.get("source_spec", {}).get(split) or [
        chunk | {"files": [chunk["files"][0].replace("train/", f"{split}/")]}
        for chunk in spec.get("source_spec", {}).get("train", [])
    ]
    if chunks:
        file_of = {c["features"][0]: root / c["files"][0] for c in chunks}
        files = [file_of[n] for n in channels["categorical"]]
    label = (folder / "label.bin").read_bytes()
    ids = [f.read_bytes() for f in files]
    numerical = (folder / "numerical.bin").read_bytes() if num_numerical else b""

    def fits(rows, number_sizes, id_sizes, is_narrow):
        if num_numerical and len(numerical) not in [rows * num_numerical * b for b in number_sizes]:
            return False
        return all(
            len(i) in [rows * b for b in id_sizes]
            and not (is_narrow and rows and 2 ** (8 * len(i) // rows - 1) < c)
            for i, c in zip(ids, cardinalities, strict=True)
        )

    narrow = fits(len(label), (2, 4), (1, 2, 4), True)
    wide = len(label) % 4 == 0 and fits(len(label) // 4, (4,), (4,), False)
    if narrow and wide and label:
        narrow = label.lstrip(b"\0")[:1] == b"\1"
    assert narrow or wide
    rows = len(label) if narrow else len(label) // 4
    clicks = np.frombuffer(label, "u1" if narrow else "<f4")
    size = len(numerical) // max(rows * num_numerical, 1)
    values = np.frombuffer(numerical, "<f4" if size == 4 else "<f2")
    columns = [np.frombuffer(i, f"<i{len(i) // max(rows, 1) or 1}") for i in ids]
    return clicks == 1, values.reshape(rows, num_numerical), columns


class Rows:
    """The columns in the shape that the shared check takes."""

    def __init__(self, columns):
        self.label, self.numerical, self.categorical = columns
        self.num_rows = len(self.label)

    def read(self, start, stop):
        return self


def test_a_reader_written_from_the_page_reads_our_datasets(tmp_path):
    root = write_dataset(tmp_path)
    for seed, (split, rows) in enumerate(ROWS.items()):
        label, numerical, ids = read_split(root, split)
        expected = make_columns(SPEC, rows, seed)
        np.testing.assert_array_equal(label, expected.label)
        np.testing.assert_array_equal(numerical, expected.numerical)
        for found, column in zip(ids, expected.categorical, strict=True):
            np.testing.assert_array_equal(found, column)


@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_it_reads_the_layouts_of_others(tmp_path, split):
    ids = write_earlier_era(tmp_path / "earlier", (126, 127, 32_766, 40_000_000))
    check_rows(Rows(read_split(tmp_path / "earlier", split)), ids)
    ids = write_later_era(tmp_path / "later", "[cat_2.bin, cat_0.bin, cat_1.bin]")
    order = [ids[2], ids[0], ids[1]]
    check_rows(Rows(read_split(tmp_path / "later", split)), order)
    wide = [(i, 0, 2 * i) for i in range(4)]
    write_wide_split(tmp_path / "wide/split" / split, wide)
    sizes = json.dumps({f"_c{14 + i}": 9 for i in range(4)})
    (tmp_path / "wide/model_size.json").write_text(sizes)
    check_rows(Rows(read_split(tmp_path / "wide", split)), wide)


@pytest.mark.parametrize("rows", [3, 4, 8])
def test_it_tells_flavours_apart_where_sizes_cannot(tmp_path, rows):
    spec = FeatureSpec.criteo([5], num_numerical=0)
    root = write_dataset(tmp_path, ("split",), spec=spec, rows={"train": rows})
    assert len(read_split(root, "train")[0]) == SplitBinaryReader(root, "train").num_rows == rows


def test_records_and_fingerprint_are_as_the_page_says(tmp_path):
    root = write_dataset(tmp_path)
    fields = [("label", "<i4"), ("numerical", "<f4", 2), ("ids", "<i4", 3)]
    records = np.fromfile(root / "train_data.bin", np.dtype(fields))
    expected = make_columns(SPEC, 64)
    np.testing.assert_array_equal(records["label"], expected.label)
    np.testing.assert_array_equal(records["numerical"], expected.numerical)
    np.testing.assert_array_equal(records["ids"], np.stack(expected.categorical, axis=1))
    manifest = json.loads((root / "manifest.json").read_text())
    lines = []
    for path in sorted(manifest["files"]):
        content = (root / path).read_bytes()
        entry = {"bytes": len(content), "xxh3_128": xxhash.xxh3_128(content).hexdigest()}
        assert manifest["files"][path] == entry
        lines.append(path.encode() + b"\0" + entry["xxh3_128"].encode() + b"\n")
    assert manifest["fingerprint"] == xxhash.xxh3_128(b"".join(lines)).hexdigest()
    keys = re.search(r"exactly these keys:\n\n(.*?)\n\n", PAGE, re.DOTALL)[1]
    assert re.findall(r"^\| `(\w+)` \|", keys, re.MULTILINE) == list(manifest)


def test_the_presets_of_the_page_are_those_of_the_code():
    table = PAGE[PAGE.index("<!-- presets") :].split("\n\n")[1].splitlines()
    header, _, *lines = [[c.strip() for c in line.strip("|").split("|")] for line in table]
    names = [re.search(r"`(\w+)`", name)[1] for name in header[1:]]
    assert sorted(names) == PRESETS.names()
    assert [line[0] for line in lines] == [f.name for f in dataclasses.fields(CriteoSemantics)]
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
    assert pattern.replace("(?:", "(") == row_grammar().pattern.decode().replace("(?:", "(")


def test_the_quarantine_of_the_page_is_that_of_the_code():
    (header,) = re.findall(r"with the header `([\w,]+)`", PAGE)
    assert header.split(",") == [f.name for f in dataclasses.fields(RejectedRow)]
    for reason in REJECT_REASONS:
        assert f"`{reason}`" in PAGE
    row = b'1\t\xff"a,b\\\r\x00'
    assert escape_row(row) == '1\\t\\xff"a,b\\\\\\r\\x00'
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow([escape_row(row)])
    assert next(csv.reader([text.getvalue()])) == [escape_row(row)]
