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
from tests.recsys.data.datasets import ROWS, SPEC, make_columns, write_dataset

PAGE = (Path(__file__).resolve().parents[3] / "docs/dataset_format.md").read_text()


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


def test_the_manifest_is_as_the_page_says(tmp_path):
    root = write_dataset(tmp_path)
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
