# SPDX-License-Identifier: Apache-2.0
"""Raw lines in memory give the features that the same rows have in a dataset, bit for bit."""

import dataclasses
import gzip
import random
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from preproc.clicks.applied import semantics_of_dataset
from preproc.clicks.rules import ClicksSemantics
from preproc.clicks.schema.grammar import reject_reason
from preproc.clicks.schema.row_format import criteo_format
from preproc.clicks.serving.feature_file import write_feature_file
from preproc.clicks.serving.line_transform import Features, LineTransform
from preproc.files.errors import PreprocError
from recsys.data.click_columns import ClickColumns
from recsys.data.parquet import ParquetReader
from recsys.data.split_binary import SplitBinaryReader
from recsys.errors import BadRowError
from tests.harness import assert_tells, refusal
from tests.preproc.clicks.rows import (
    ANY_ROWS,
    GOOD_ROWS,
    SEMANTICS,
    good_text,
    run,
    without_labels,
)
from tests.tools import needs

pytestmark = needs("compiled Criteo kernel")


def make(text: bytes, folder: Path, semantics: ClicksSemantics, **settings: object) -> Path:
    """Prepares a dataset from text whose rows all go to the test split."""
    folder.mkdir(parents=True)
    (folder / "log").write_bytes(text)
    run(folder / "log", folder / "dataset", semantics=semantics, **settings)
    return folder / "dataset"


def open_transform(dataset: Path, numbers: str = "float16") -> LineTransform:
    write_feature_file(dataset, dataset / "features.bin", numbers)
    return LineTransform(dataset / "features.bin")


def assert_same(features: Features, columns: ClickColumns) -> None:
    numerical = np.asarray(columns.numerical)
    assert features.numerical.tobytes() == numerical.astype(np.float32).tobytes()
    assert features.ids.dtype == np.int64
    for column, ids in enumerate(columns.categorical):
        assert np.array_equal(features.ids[:, column], ids), column


@settings(max_examples=15, deadline=None)
@given(rules=SEMANTICS, rows=st.lists(GOOD_ROWS, min_size=1, max_size=40), ends=st.booleans())
def test_lines_become_the_rows_of_the_dataset(tmp_path_factory, rules, rows, ends):
    rules = dataclasses.replace(rules, split_rows=(0, 0, -1), unlabelled=False)
    text = b"".join(row + b"\n" for row in rows)
    folder = tmp_path_factory.mktemp("made") / "made"
    dataset = make(text, folder, rules, format=("split", "parquet"))
    lines = without_labels(text).removesuffix(b"\n").split(b"\n")
    lines = [line + b"\n" * (ends and i % 2) for i, line in enumerate(lines)]
    split = SplitBinaryReader(dataset, "test").read(0, len(lines))
    parquet = ParquetReader(dataset, "test").read_group(0)
    for numbers, expected in (("float16", split), ("float32", parquet)):
        with open_transform(dataset, numbers) as transform:
            assert_same(transform.transform(lines), expected)
            assert_same(transform.transform(lines[-1:]), expected[len(lines) - 1 : len(lines)])


@pytest.mark.parametrize("bins", [False, True])
def test_20000_real_lines_not_seen_in_training(real_data, tmp_path, bins):
    text = gzip.decompress((real_data / "criteo_kaggle" / "sample_100k.tsv.gz").read_bytes())
    rules = ClicksSemantics(
        frequency_limit=2,
        bin_numerical=bins,
        dictionary_days="train",
        split_rows=(80_000, 0, -1),
    )
    dataset = make(text, tmp_path / "made", rules)
    lines = without_labels(text).removesuffix(b"\n").split(b"\n")[80_000:]
    with open_transform(dataset) as transform:
        features = transform.transform(lines)
        expected = SplitBinaryReader(dataset, "test")
        assert len(lines) == 20_000
        assert_same(features, expected.read(0, 20_000))
        assert transform.cardinalities == tuple(f.cardinality for f in expected.spec.categorical)
    kept = sum(c - 1 for c in transform.cardinalities)
    assert (dataset / "features.bin").stat().st_size <= 8 * kept + 2000


@pytest.fixture(scope="module")
def feature_file(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("small") / "made"
    rules = ClicksSemantics(frequency_limit=1, split_rows=(0, 0, -1))
    dataset = make(good_text(50, seed=1), folder, rules)
    open_transform(dataset).close()
    return dataset / "features.bin"


@pytest.fixture(scope="module")
def small(feature_file) -> LineTransform:
    return LineTransform(feature_file)


def good_line() -> bytes:
    return b"\t".join([*(b"%d" % i for i in range(1, 14)), *(b"%08x" % i for i in range(1, 27))])


def replaced(field: int, value: bytes) -> bytes:
    fields = good_line().split(b"\t")
    fields[field - 1] = value
    return b"\t".join(fields)


@pytest.mark.parametrize(
    ("line", "facts"),
    [
        (b"", [1, 39, r"'\t'"]),
        (b"1\t" + good_line(), [40, 39]),
        (replaced(3, b"1.5"), ["I3", "'1.5'", "(integer)"]),
        (replaced(13, b"2147483648"), ["I13", "'2147483648'"]),
        (replaced(14, b"xyz"), ["C1", "'xyz'", "(hex)"]),
        (replaced(39, b"123456789"), ["C26", "'123456789'"]),
        (replaced(20, b"\xc3\xa9"), ["C7", r"'\xc3\xa9'", "(encoding)"]),
        (replaced(2, b"1\n2"), []),
        (b"1" * 2_000_000, []),
    ],
)
def test_the_first_wrong_line_is_refused_by_its_field(small, line, facts):
    with refusal(*facts, kind=BadRowError, row=2):
        small.transform([good_line(), good_line() + b"\r\n", line, b"also wrong"])
    assert small.transform([good_line()]).ids.shape == (1, 26)  # as if nothing had been


@settings(max_examples=400, deadline=None)
@given(rows=st.lists(ANY_ROWS, min_size=1, max_size=5))
def test_lines_are_refused_by_the_grammar_of_preprocessing(small, rows):
    lines = [row.partition(b"\t")[2] for row in rows]
    reasons = [
        reject_reason(line.removesuffix(b"\r"), criteo_format(unlabelled=True)) for line in lines
    ]
    wrong = [i for i, reason in enumerate(reasons) if reason is not None]
    if not wrong:
        assert len(small.transform(lines).ids) == len(lines)
        return
    with pytest.raises(BadRowError) as caught:
        small.transform(lines)
    assert caught.value.row == wrong[0]
    reason, fields = reasons[wrong[0]], lines[wrong[0]].count(b"\t") + 1
    assert_tells(str(caught.value), *((fields, 39) if reason == "columns" else (f"({reason})",)))


def test_a_damaged_file_is_refused(feature_file, tmp_path):
    good = feature_file.read_bytes()
    path = tmp_path / "features.bin"
    for damaged in (b"", good[:50], good[:-1], good + b"\0", b"X" + good[1:]):
        path.write_bytes(damaged)
        with refusal(kind=PreprocError, path=path):
            LineTransform(path)
    with refusal("No such file", kind=PreprocError, path=tmp_path / "missing"):
        LineTransform(tmp_path / "missing")
    # Any byte of the tables may be wrong: refused, or other ids, but no crash.
    draw = random.Random(3)
    for _ in range(300):
        damaged = bytearray(good)
        for _ in range(3):
            damaged[draw.randrange(16, len(good))] = draw.randrange(256)
        path.write_bytes(damaged)
        try:
            with LineTransform(path) as transform:
                transform.transform([good_line()] * 3)
        except PreprocError:
            continue


def test_another_dataset_is_refused(tmp_path):
    with pytest.raises(PreprocError, match="manifest"):
        write_feature_file(tmp_path, tmp_path / "features.bin", "float16")
    rules = ClicksSemantics(frequency_limit=1, split_rows=(0, 0, -1))
    dataset = make(good_text(20, seed=2), tmp_path / "made", rules)
    dictionary = dataset / "dictionaries" / "cat_3.bin"
    dictionary.write_bytes(struct.pack("<I", 3))
    with refusal("manifest.json", kind=PreprocError, path=dictionary):
        write_feature_file(dataset, tmp_path / "features.bin", "float16")
    assert not (tmp_path / "features.bin").exists()
    assert semantics_of_dataset(dataset, {}).frequency_limit == 1
