# SPDX-License-Identifier: Apache-2.0
"""Random Criteo text for tests, and the ways to run an engine on it."""

import contextlib
import dataclasses
import functools
import itertools
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import strategies as st

from preproc.clicks.engines.native import run as clicks_native
from preproc.clicks.engines.native.units import NativeSettings
from preproc.clicks.growth.days import semantics_of_day
from preproc.clicks.job import ClicksJob, semantics_of
from preproc.clicks.pipeline import prepare
from preproc.clicks.rules import ClicksSemantics
from preproc.clicks.schema.row_format import NUM_CATEGORICAL, NUM_NUMERICAL
from preproc.files.days import next_day
from preproc.spark.settings import SparkSettings
from recsys.data.manifest import QUARANTINE_FILE, Manifest
from recsys.errors import UserError

INT32 = st.integers(-(2**31), 2**31 - 1)
INTEGERS = st.one_of(
    st.just(b""),
    st.integers(-3, 60).map(lambda i: b"%d" % i),
    INT32.map(lambda i: b"%d" % i),
    st.integers(0, 99999).map(lambda i: b"%010d" % i),
)
CATEGORIES = st.one_of(
    st.just(b""),
    st.sampled_from([b"%x" % i for i in range(12)]),
    st.integers(0, 2**32 - 1).map(lambda i: b"%x" % i),
    st.integers(0, 2**32 - 1).map(lambda i: b"%08X" % i),
)
GOOD_ROWS = st.builds(
    lambda label, integers, categories: b"\t".join([label, *integers, *categories]),
    st.sampled_from([b"0", b"1"]),
    st.lists(INTEGERS, min_size=NUM_NUMERICAL, max_size=NUM_NUMERICAL),
    st.lists(CATEGORIES, min_size=NUM_CATEGORICAL, max_size=NUM_CATEGORICAL),
)


def _damage(row: bytes, position: int, piece: bytes, removed: int) -> bytes:
    position %= len(row) + 1
    return row[:position] + piece + row[position + removed :]


DAMAGED_ROWS = st.builds(
    _damage,
    GOOD_ROWS,
    st.integers(0, 400),
    st.one_of(
        st.sampled_from([b"\t", b"\r", b"-", b"\x00", b" ", b"g", b"9", b"\xff", b"\t\t"]),
        st.binary(max_size=3),
    ).filter(lambda piece: b"\n" not in piece),
    st.integers(0, 3),
)
ANY_ROWS = st.one_of(
    GOOD_ROWS,
    GOOD_ROWS,
    DAMAGED_ROWS,
    st.binary(max_size=50).filter(lambda row: b"\n" not in row),
)
TEXTS = st.builds(
    lambda rows, ends, last: b"".join(
        row + (end if i + 1 < len(rows) or last else b"")
        for i, (row, end) in enumerate(zip(rows, ends, strict=False))
    ),
    st.lists(ANY_ROWS, max_size=30),
    st.lists(st.sampled_from([b"\n", b"\n", b"\r\n"]), min_size=30, max_size=30),
    st.booleans(),
)
SEMANTICS = st.builds(
    ClicksSemantics,
    numerical_offset=st.sampled_from([1, 2, 3, 100_000]),
    numerical_min=st.sampled_from([0, 0, 5]),
    numerical_missing=st.sampled_from(["raw_zero", "output_zero"]),
    frequency_limit=st.integers(0, 4),
    category_modulus=st.sampled_from([None, 1, 7, 4 * 10**7, 2**31 - 1, 2**31 + 11, 2**32]),
    bin_numerical=st.booleans(),
    unlabelled=st.sampled_from([False, False, True]),
)


def without_labels(text: bytes) -> bytes:
    """Cuts the first field off each line."""
    return b"\n".join(line.partition(b"\t")[2] for line in text.split(b"\n"))


def good_text(rows: int, seed: int, vocabulary: int = 3000) -> bytes:
    """Returns good rows, quickly."""
    rng = random.Random(seed)
    lines = []
    for _ in range(rows):
        fields = [rng.choice("0001")]
        fields += [rng.choice(["", str(int(rng.expovariate(0.05)) - 2)]) for _ in range(13)]
        fields += [
            "" if rng.random() < 0.2 else f"{_category(rng, vocabulary) * c % 2**32:08x}"
            for c in range(1, 27)
        ]
        lines.append("\t".join(fields))
    return ("\n".join(lines) + "\n").encode()


def _category(rng: random.Random, vocabulary: int) -> int:
    """Returns a number from a long tail half the time, else any."""
    if rng.random() < 0.5:
        return int(rng.paretovariate(0.7)) % vocabulary
    return rng.randrange(vocabulary)


def write_days(folder: Path, days: int = 3, rows: int = 700, seed: int = 0) -> Path:
    """Writes day_0 ... of good rows, of different lengths."""
    folder.mkdir(parents=True, exist_ok=True)
    for day in range(days):
        (folder / f"day_{day}").write_bytes(good_text(rows + 13 * day, seed + day))
    return folder


def run(
    source: Path,
    output: Path,
    engine: str = "native",
    settings: NativeSettings | None = None,
    **fields: object,
) -> Manifest:
    """Prepares a dataset and returns its manifest; semantics are the dlrm preset's by default."""
    job = ClicksJob(
        input=source,
        output=output,
        engine=engine,
        **{"semantics": semantics_of("dlrm"), "max_bad_fraction": 1.0, "threads": 2, **fields},
    )
    function = None if settings is None else functools.partial(clicks_native.run, settings=settings)
    return Manifest.load(prepare(job, function))


def outcome(source: Path, output: Path, engine: str, **fields: object) -> str:
    """Prepares a dataset in small units; returns its contents and rejected rows, or the refusal."""
    small = NativeSettings(unit_bytes=777, table_bytes=1) if engine == "native" else None
    if engine == "spark":
        conf = (("spark.sql.files.maxPartitionBytes", "777"),)
        fields["spark"] = SparkSettings(spark_conf=conf)
    try:
        made = run(source, output, engine, small, **fields)
    except UserError as error:
        assert not output.exists()
        return f"refused: {error}"
    return contents(output, made)


def contents(output: Path, made: Manifest) -> str:
    """Returns what identifies a dataset: its bytes, rows and rejected rows."""
    quarantine = output / QUARANTINE_FILE
    rejected = quarantine.read_text() if quarantine.exists() else ""
    return f"{made.fingerprint} {made.rows} {made.rejected}\n{rejected}"


def extend(
    folder: Path,
    source: Path,
    first: ClicksSemantics,
    prepare_day: Callable[..., Manifest] = run,
    **fields: object,
) -> Manifest:
    """Adds a day to a growing dataset and returns its manifest.

    Args:
        folder: the growing dataset.
        source: raw files of the day.
        first: semantics of the first day.
        prepare_day: called like `run`.
        fields: settings of the job.
    """
    day, last = next_day(folder)
    semantics = first if last is None else semantics_of_day(last, {})
    return prepare_day(source, day, extend=folder, semantics=semantics, **fields)


def assert_same(made: Manifest, expected: Manifest) -> None:
    """Compares two datasets in everything but their engines."""
    assert dataclasses.replace(made, engine={}) == dataclasses.replace(expected, engine={})


@contextlib.contextmanager
def stopped(target: object, name: str, after: int = 0) -> Iterator[None]:
    """Makes a function raise after some calls, and expects that this ends the block."""
    original, calls = getattr(target, name), itertools.count()

    def limited(*arguments: object, **options: object) -> object:
        if next(calls) >= after:
            raise OSError("stop")
        return original(*arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(target, name, limited)
        with pytest.raises(OSError, match="stop"):
            yield


def zstd_compress(text: bytes) -> bytes:
    packed = pa.BufferOutputStream()
    with pa.CompressedOutputStream(packed, "zstd") as stream:
        stream.write(text)
    return packed.getvalue().to_pybytes()
