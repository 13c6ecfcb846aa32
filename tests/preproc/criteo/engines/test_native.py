# SPDX-License-Identifier: Apache-2.0
"""Whole datasets: native equals reference, whatever threads, budgets, units and packing."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from preproc.criteo.engines.native.units import NativeSettings
from preproc.criteo.job import PRESETS, semantics_of
from preproc.criteo.rules import CriteoSemantics
from preproc.files.errors import PreprocError
from recsys.data.manifest import Manifest
from tests import harness
from tests.preproc.criteo.rows import (
    GOOD_ROWS,
    TEXTS,
    assert_same,
    good_text,
    run,
    without_labels,
)
from tests.tools import needs

pytestmark = needs("compiled Criteo kernel")

BOTH = ("split", "parquet")


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
    fields = {"semantics": semantics, "format": BOTH}
    made = run(folder / "in", folder / "native", settings=native_settings, **fields)
    assert_same(made, run(folder / "in", folder / "ref", "reference", **fields))


def test_more_than_ten_days_stay_in_order(tmp_path):
    (tmp_path / "days").mkdir()
    for day in range(12):
        (tmp_path / "days" / f"day_{day}").write_bytes(good_text(20 + day, seed=day))
    made = run(tmp_path / "days", tmp_path / "made")
    assert [s["rows"] for s in made.source_files] == [20 + day for day in range(12)]
    assert made.rows == {"train": sum(range(20, 31)), "test": 15, "validation": 16}


@pytest.fixture
def rare(tmp_path) -> Path:
    """A log whose categories hardly repeat; no dictionary leaves one out."""
    source = tmp_path / "train.txt"
    source.write_bytes(good_text(15_000, seed=3, vocabulary=10**9))
    return source


EVERY_CATEGORY = CriteoSemantics(frequency_limit=0, split_fractions=(0.8, 0.1, 0.1))


def test_dictionaries_that_do_not_fit(rare, tmp_path, monkeypatch):
    # 26 columns x about 6,000 categories x 16 bytes = 2.6 MiB of lookup tables.
    monkeypatch.setattr("preproc.criteo.engines.native.encode.free_budget", lambda limit: 5 * 2**20)
    with pytest.raises(PreprocError, match=r"needs .*\. Raise `memory_limit`, or keep fewer"):
        run(rare, tmp_path / "made", semantics=EVERY_CATEGORY)
    assert not (tmp_path / "made").exists()


def test_column_too_large_to_merge(rare, tmp_path, monkeypatch):
    # Too little beside others, enough alone.
    little = NativeSettings(merge_bytes=2**18 + 2**14)
    made = run(rare, tmp_path / "alone", settings=little, semantics=EVERY_CATEGORY)
    assert made.files == run(rare, tmp_path / "together", semantics=EVERY_CATEGORY).files
    monkeypatch.setattr(
        "preproc.criteo.engines.native.merge.free_budget", lambda limit: 2**18 + 2**14
    )
    too_little = NativeSettings(merge_bytes=2**18)
    with pytest.raises(PreprocError, match="keep fewer categories"):
        run(rare, tmp_path / "made", settings=too_little, semantics=EVERY_CATEGORY)


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
