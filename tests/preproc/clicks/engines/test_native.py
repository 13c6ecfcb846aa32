# SPDX-License-Identifier: Apache-2.0
"""Whole datasets: native equals reference, whatever threads, budgets, units and packing."""

import dataclasses
import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from preproc.clicks.engines.native.units import NativeSettings
from preproc.clicks.job import semantics_of
from preproc.clicks.kernel import binding
from preproc.clicks.rules import ClicksSemantics, transform_numerical
from recsys.data.manifest import Manifest
from recsys.data.parquet import ParquetReader
from recsys.data.split_binary import SplitBinaryReader
from tests import harness
from tests.preproc.clicks.rows import (
    GOOD_ROWS,
    SEMANTICS,
    TEXTS,
    assert_same,
    good_text,
    run,
    without_labels,
)
from tests.tools import needs

pytestmark = needs("compiled Criteo kernel")

BOTH = ("split", "parquet")
EVERY_CATEGORY = ClicksSemantics(frequency_limit=0, split_fractions=(0.8, 0.1, 0.1))


def in_pieces(feed: Callable[[Any, bytes], None], size: int) -> Callable[[Any, bytes], None]:
    """Returns a method that feeds a text in pieces of a size."""

    def feed_pieces(reader: Any, text: bytes) -> None:
        for start in range(0, len(text), size):
            feed(reader, text[start : start + size])

    return feed_pieces


@settings(max_examples=40, phases=[Phase.generate])
@given(
    texts=st.lists(TEXTS, min_size=2, max_size=3),
    good=GOOD_ROWS,
    rules=SEMANTICS,
    fractions=st.sampled_from([None, (0.8, 0.1, 0.1), (0.0, 0.5, 0.5), (1.0, 0.0, 0.0)]),
    scope=st.sampled_from(["all", "train"]),
    unit_bytes=st.sampled_from([900, 5000, 10**6]),
    piece=st.sampled_from([None, 1, 7, 64, 1000]),
)
def test_native_equals_reference(
    tmp_path_factory, texts, good, rules, fractions, scope, unit_bytes, piece
):
    """Plain files are cut into units; packed ones come in pieces, which end anywhere in a row."""
    folder = tmp_path_factory.mktemp("random")
    (folder / "in").mkdir()
    for day, text in enumerate(texts):
        lines = good + b"\n" + text
        lines = without_labels(lines) if rules.unlabelled else lines
        lines = gzip.compress(lines) if piece else lines
        (folder / "in" / f"day_{day}").write_bytes(lines)
    semantics = dataclasses.replace(rules, split_fractions=fractions, dictionary_days=scope)
    native_settings = NativeSettings(unit_bytes=unit_bytes, table_bytes=1, merge_bytes=2**21)
    fields = {"semantics": semantics, "format": BOTH}
    with pytest.MonkeyPatch.context() as patch:
        for reader in (binding.Scanner, binding.Encoder) if piece else ():
            patch.setattr(reader, "feed", in_pieces(reader.feed, piece))
        made = run(folder / "in", folder / "native", settings=native_settings, **fields)
    assert_same(made, run(folder / "in", folder / "ref", "reference", **fields))


def test_crowded_slots(tmp_path):
    """Categories whose keys share their upper bits fill one place of the table."""
    keys = [*range(2000), *range(2**32 - 2000, 2**32)]  # the last go round the end of the table
    rows = [b"0" + b"\t" * 14 + b"%08x" % category_of_key(key) + b"\t" * 25 for key in keys]
    (tmp_path / "log").write_bytes(b"\n".join(rows))
    small_table = NativeSettings(table_bytes=2**20)
    made = run(tmp_path / "log", tmp_path / "made", settings=small_table, semantics=EVERY_CATEGORY)
    assert made.cardinalities[0] == 4001
    expected = run(tmp_path / "log", tmp_path / "ref", "reference", semantics=EVERY_CATEGORY)
    assert_same(made, expected)


def category_of_key(key: int) -> int:
    key ^= key >> 16
    key = key * pow(0xC2B2AE35, -1, 2**32) % 2**32
    key ^= key >> 13 ^ key >> 26
    key = key * pow(0x85EBCA6B, -1, 2**32) % 2**32
    return key ^ key >> 16


HARD_INTEGERS = [
    58037908, 101320060, 235203552, 313124632, 544287073, 626939156, 699483882, 709943748,
    745122378, 819154840, 951698182, 1123682560, 1148278097, 1233975571, 1249524242, 1275391919,
    1282436702, 1311950162, 1420413668, 1444814252, 1448401191, 1483597714, 1508534041, 1513716308,
    1546604171, 1639298208, 1670100745, 1715765922, 1763375792, 1798096959, 1803159299, 1826015778,
    1832704620, 1846969490, 1916164604, 1926116780, 1926700999, 1981966377, 2036337480,
]  # fmt: skip
"""Integers whose logarithm lies within 4 ulp (float64) of the middle between two float32."""

ROUNDED_TWICE = [10364, 15317]
"""Integers whose logarithm rounds to another float16 when float32 is left out."""


@pytest.mark.parametrize("preset", ["dlrm", "nvidia", "mlperf"])
def test_logarithms_round_like_numpy(tmp_path, preset):
    semantics = dataclasses.replace(semantics_of(preset), split_rows=(0, 0, -1))
    offset = semantics.numerical_offset
    integers = [h - offset for h in [*HARD_INTEGERS, *ROUNDED_TWICE]]
    integers += [*range(-10, 70_000), -(2**31), 2**31 - 1]
    integers += np.random.default_rng(3).integers(0, 2**31, 100_000).tolist()
    integers += [0] * (-len(integers) % 13)
    rows = [
        b"\t".join([b"0", *(b"%d" % i for i in integers[s : s + 13]), *([b""] * 26)])
        for s in range(0, len(integers), 13)
    ]
    (tmp_path / "log").write_bytes(b"\n".join(rows))
    run(tmp_path / "log", tmp_path / "made", semantics=semantics, format=BOTH)
    expected = transform_numerical(np.array(integers), np.zeros(len(integers), np.bool_), semantics)
    float32 = [rows.numerical for rows in ParquetReader(tmp_path / "made", "test").stream()]
    assert np.array_equal(np.concatenate(float32).ravel(), expected)
    float16 = SplitBinaryReader(tmp_path / "made", "test").read(0, len(rows)).numerical
    assert np.array_equal(float16.ravel(), expected.astype(np.float16))


@pytest.mark.parametrize("limit", [1, 511, 512, 513, 1999, 2000])
def test_dictionaries_of_the_first_rows_end_within_a_file(tmp_path, limit):
    lines = good_text(2000, seed=5).split(b"\n")
    lines.insert(100, b"bad")
    (tmp_path / "log").write_bytes(b"\n".join(lines))
    semantics = ClicksSemantics(
        frequency_limit=0, dictionary_days="train", split_rows=(limit, 0, -1)
    )
    made = run(tmp_path / "log", tmp_path / "made", semantics=semantics)
    assert_same(made, run(tmp_path / "log", tmp_path / "ref", "reference", semantics=semantics))


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


def test_dictionaries_that_do_not_fit(rare, tmp_path, monkeypatch):
    # 26 columns x about 6,000 categories x 16 bytes = 2.6 MiB of lookup tables.
    monkeypatch.setattr("preproc.clicks.engines.native.encode.free_budget", lambda limit: 5 * 2**20)
    with harness.refusal("`frequency_limit`", settings=("memory_limit",)):
        run(rare, tmp_path / "made", semantics=EVERY_CATEGORY)
    assert not (tmp_path / "made").exists()


def test_column_too_large_to_merge(rare, tmp_path, monkeypatch):
    expected = run(rare, tmp_path / "together", semantics=EVERY_CATEGORY)
    alone = NativeSettings(merge_bytes=2**18 + 2**14)  # too little beside others, enough alone
    many_runs = NativeSettings(table_bytes=1, merge_bytes=2**20)
    for name, native_settings in (("alone", alone), ("runs", many_runs)):
        made = run(rare, tmp_path / name, settings=native_settings, semantics=EVERY_CATEGORY)
        assert made.files == expected.files
    monkeypatch.setattr(
        "preproc.clicks.engines.native.merge.free_budget", lambda limit: 2**18 + 2**14
    )
    too_little = NativeSettings(merge_bytes=2**18)
    with harness.refusal("`frequency_limit`", settings=("memory_limit",)):
        run(rare, tmp_path / "made", settings=too_little, semantics=EVERY_CATEGORY)


def test_memory_limit_too_small_to_start(days, tmp_path):
    with harness.refusal("1.0 MiB", settings=("memory_limit",)):
        run(days, tmp_path / "made", memory_limit=2**20)


def run_measured(source: Path, output: Path, limit: int, formats: str) -> tuple[str, int]:
    """Returns the fingerprint and the most anonymous memory seen, in bytes."""
    flags = (f"--memory_limit={limit}", "--threads=2", f"--format={formats}", "--progress=none")
    paths = (f"--input={source}", f"--output={output}")
    _, peak = harness.measure_memory("-m", "preproc.clicks", *paths, *flags)
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
