# SPDX-License-Identifier: Apache-2.0
"""Whole datasets: native equals reference, whatever threads, budgets, units and packing."""

import dataclasses
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from preproc.criteo.dictionaries import dataset_dictionaries
from preproc.criteo.engines.native.units import NativeSettings
from preproc.criteo.engines.reference import read_rows
from preproc.criteo.job import PRESETS, semantics_of
from preproc.criteo.rules import SPLITS, CriteoSemantics
from preproc.files.errors import PreprocError
from preproc.files.input_file import InputFile
from recsys.data.manifest import Manifest
from recsys.data.parquet import ParquetReader
from recsys.data.split_binary import SplitBinaryReader
from tests import harness
from tests.preproc.criteo.rows import (
    GOOD_ROWS,
    TEXTS,
    assert_same,
    good_text,
    run,
    without_labels,
    write_days,
)
from tests.tools import needs

pytestmark = needs("compiled Criteo kernel")

BOTH = ("split", "parquet")


@pytest.fixture(scope="module")
def days(tmp_path_factory) -> Path:
    return write_days(tmp_path_factory.mktemp("days"))


@settings(max_examples=25, phases=[Phase.generate])
@given(
    texts=st.lists(TEXTS, min_size=2, max_size=3),
    good=GOOD_ROWS,
    preset=st.sampled_from(PRESETS.names()),
    fractions=st.sampled_from([None, (0.8, 0.1, 0.1), (0.0, 0.5, 0.5), (1.0, 0.0, 0.0)]),
    scope=st.sampled_from(["all", "train"]),
    unit_bytes=st.sampled_from([900, 5000, 10**6]),
    bin_numerical=st.booleans(),
    unlabelled=st.booleans(),
)
def test_native_equals_reference(
    tmp_path_factory,
    texts,
    good,
    preset,
    fractions,
    scope,
    unit_bytes,
    bin_numerical,
    unlabelled,
):
    folder = tmp_path_factory.mktemp("random")
    (folder / "in").mkdir()
    for day, text in enumerate(texts):
        lines = good + b"\n" + text
        lines = without_labels(lines) if unlabelled else lines
        (folder / "in" / f"day_{day}").write_bytes(lines)
    semantics = dataclasses.replace(
        semantics_of(preset),
        split_fractions=fractions,
        dictionary_days=scope,
        frequency_limit=2,
        bin_numerical=bin_numerical,
        unlabelled=unlabelled,
    )
    native_settings = NativeSettings(unit_bytes=unit_bytes, table_bytes=1, merge_bytes=2**21)
    made = run(
        folder / "in", folder / "native", settings=native_settings, semantics=semantics, format=BOTH
    )
    expected = run(folder / "in", folder / "ref", "reference", semantics=semantics, format=BOTH)
    assert_same(made, expected)


@pytest.mark.parametrize("scope", ["all", "train"])
@pytest.mark.parametrize("fractions", [None, (0.71, 0.18, 0.11)])
def test_threads_budgets_and_units_change_nothing(days, tmp_path, scope, fractions):
    semantics = dataclasses.replace(
        semantics_of("dlrm"), dictionary_days=scope, split_fractions=fractions, frequency_limit=3
    )
    expected = run(days, tmp_path / "reference", "reference", semantics=semantics, format=BOTH)
    for threads, native_settings in (
        (1, NativeSettings()),
        (3, NativeSettings(unit_bytes=10_000)),
        (2, NativeSettings(unit_bytes=100_000, table_bytes=1, merge_bytes=2**20)),
    ):
        made = run(
            days,
            tmp_path / f"native_{threads}",
            settings=native_settings,
            threads=threads,
            semantics=semantics,
            format=BOTH,
        )
        assert_same(made, expected)


def test_more_than_ten_days_stay_in_order(tmp_path):
    (tmp_path / "days").mkdir()
    for day in range(12):
        (tmp_path / "days" / f"day_{day}").write_bytes(good_text(20 + day, seed=day))
    made = run(tmp_path / "days", tmp_path / "made")
    assert [s["rows"] for s in made.source_files] == [20 + day for day in range(12)]
    assert made.rows == {"train": sum(range(20, 31)), "test": 15, "validation": 16}


def test_rows_are_where_they_should_be(days, tmp_path):
    """Reads the dataset back and follows rows from the text, through the dictionary files."""
    run(days, tmp_path / "made", format=BOTH)
    parsed, _ = read_rows(InputFile.open(days / "day_2"), CriteoSemantics())
    test, validation = (
        SplitBinaryReader(tmp_path / "made", split) for split in ("test", "validation")
    )
    half = len(parsed.label) // 2
    assert (test.num_rows, validation.num_rows) == (half, len(parsed.label) - half)
    rows = validation.read(0, 5)
    dictionaries = dataset_dictionaries(tmp_path / "made", 26)
    for i in range(5):
        row = half + i
        assert rows.label[i] == parsed.label[row]
        for column in range(26):
            dictionary = np.fromfile(dictionaries.path(column), "<u4")
            id_ = int(rows.categorical[column][i])
            value = parsed.categories[row, column]
            if parsed.categories_missing[row, column] or value not in dictionary:
                assert id_ == 0
            else:
                assert dictionary[id_ - 1] == value
    for split in SPLITS:
        narrow = SplitBinaryReader(tmp_path / "made", split)
        wide = ParquetReader(tmp_path / "made", split)
        assert wide.num_rows == narrow.num_rows
        first, second = wide.read_group(0), narrow.read(0, narrow.num_rows)
        assert np.array_equal(first.label, second.label)
        assert np.array_equal(first.numerical.astype(np.float16), second.numerical)
        for a, b in zip(first.categorical, second.categorical, strict=True):
            assert np.array_equal(a, b)


def test_parquet_alone_leaves_no_columns(days, tmp_path):
    run(days, tmp_path / "made", format=("parquet",))
    assert sorted(p.name for p in (tmp_path / "made").iterdir()) == [
        "dictionaries",
        "feature_spec.yaml",
        "manifest.json",
        "model_size.json",
        "parquet",
    ]
    assert not list(tmp_path.glob("made.*"))


def test_dictionaries_that_do_not_fit(tmp_path, monkeypatch):
    source = tmp_path / "train.txt"
    source.write_bytes(good_text(15_000, seed=3, vocabulary=10**9))
    # 26 columns x about 6,000 categories x 16 bytes = 2.6 MiB of lookup tables.
    semantics = CriteoSemantics(frequency_limit=0, split_fractions=(0.8, 0.1, 0.1))
    monkeypatch.setattr("preproc.criteo.engines.native.encode.free_budget", lambda limit: 5 * 2**20)
    with pytest.raises(PreprocError, match=r"needs .*\. Raise `memory_limit`, or keep fewer"):
        run(source, tmp_path / "made", semantics=semantics)
    assert not (tmp_path / "made").exists()


def test_column_too_large_to_merge(tmp_path, monkeypatch):
    source = tmp_path / "train.txt"
    source.write_bytes(good_text(15_000, seed=3, vocabulary=10**9))
    semantics = CriteoSemantics(frequency_limit=0, split_fractions=(0.8, 0.1, 0.1))
    # Too little beside others, enough alone.
    made = run(
        source,
        tmp_path / "alone",
        settings=NativeSettings(merge_bytes=2**18 + 2**14),
        semantics=semantics,
    )
    assert made.files == run(source, tmp_path / "together", semantics=semantics).files
    monkeypatch.setattr(
        "preproc.criteo.engines.native.merge.free_budget", lambda limit: 2**18 + 2**14
    )
    with pytest.raises(PreprocError, match="keep fewer categories"):
        run(
            source,
            tmp_path / "made",
            settings=NativeSettings(merge_bytes=2**18),
            semantics=semantics,
        )


def test_memory_limit_too_small_to_start(days, tmp_path):
    with pytest.raises(PreprocError, match=r"`memory_limit` 1\.0 MiB is too small: .* needs"):
        run(days, tmp_path / "made", memory_limit=2**20)


def run_measured(source: Path, output: Path, limit: int, formats: str) -> tuple[str, int]:
    """Returns the fingerprint and the most anonymous memory seen, in bytes."""
    flags = (f"--memory_limit={limit}", "--threads=2", f"--format={formats}", "--progress=none")
    paths = (f"--input={source}", f"--output={output}")
    _, peak = harness.measure_memory("-m", "preproc.criteo", *paths, *flags)
    return Manifest.load(output).fingerprint, peak


@pytest.mark.slow
def test_memory_limit_is_kept(tmp_path):
    """400,000 rows with categories that hardly repeat: 230 MB of counts without a limit."""
    source = tmp_path / "days"
    source.mkdir()
    rng = np.random.default_rng(0)
    for day in range(2):
        with (source / f"day_{day}").open("wb") as file:
            for _ in range(200_000):
                categories = rng.bytes(26 * 4).hex("\t", 4).encode()
                file.write(b"0\t1" + b"\t" * 13 + categories + b"\n")
    free, unlimited = run_measured(source, tmp_path / "free", 2**32, "split,parquet")
    _, peak = run_measured(source, tmp_path / "split", 128 * 2**20, "split")
    assert peak <= 128 * 2**20 < unlimited, (peak, unlimited)
    fingerprint, peak = run_measured(source, tmp_path / "both", 256 * 2**20, "split,parquet")
    assert fingerprint == free
    assert peak <= 256 * 2**20, peak


def test_input_that_changes_meanwhile(days, tmp_path, monkeypatch):
    source = write_days(tmp_path / "days")

    def change_then_merge(*args: object) -> object:
        day = source / "day_1"
        text = day.read_bytes().replace(b"\n0\t", b"\n9\t", 1)
        time.sleep(0.05)  # longer than a tick of the file system's clock
        day.write_bytes(text)
        return merge(*args)

    from preproc.criteo.engines.native import run as criteo_native

    merge = criteo_native.merge
    monkeypatch.setattr(criteo_native, "merge", change_then_merge)
    with pytest.raises(PreprocError, match="day_1: changed while it was read"):
        run(source, tmp_path / "made")
    assert not (tmp_path / "made").exists()
