# SPDX-License-Identifier: Apache-2.0
"""Every Criteo engine makes the same bytes and refuses the same files: engines x cases.

`RECIPES_REWRITE_GOLDEN=1 pytest tests/preproc/clicks/test_engines.py` writes the recorded checksums
anew, from the reference engine; the diff is for review.
"""

import bz2
import dataclasses
import functools
import gzip
import json
import lzma
import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from preproc.clicks import shuffle as shuffle_columns
from preproc.clicks.applied import semantics_of_dataset
from preproc.clicks.engines.native.units import NativeSettings
from preproc.clicks.engines.nvtabular import rows as nvtabular_rows
from preproc.clicks.engines.nvtabular import run as nvtabular_criteo
from preproc.clicks.job import PRESETS, semantics_of
from preproc.files import input_file
from preproc.files.errors import PreprocError, TooManyRejectedRowsError
from preproc.nvtabular import counts as nvtabular_counts
from preproc.spark.settings import SparkSettings
from recsys.data.manifest import Manifest
from tests.preproc.clicks.rows import (
    assert_same,
    good_text,
    run,
    without_labels,
    write_days,
    zstd_compress,
)
from tests.preproc.nvtabular import environment
from tests.tools import needs

CONFORMANCE = Path(__file__).parents[1] / "conformance"
"""Three days of rows with every edge case: numbers and categories at their limits and in every
spelling, bad rows of each reason, CRLF in one day, no last line end in another."""
RECORDED = CONFORMANCE / "expected.json"
EXPECTED = json.loads(RECORDED.read_text())
BOTH = ("split", "parquet")

NEEDS_KERNEL = needs("compiled Criteo kernel")
SPARK = needs("Spark", "compiled Criteo kernel")
ENGINES = {
    "reference": (),
    "native": NEEDS_KERNEL,
    "spark": SPARK,
    "nvtabular": needs("NVTabular"),
}


def matrix(cases: Iterable[str], *, reference: bool = True) -> pytest.MarkDecorator:
    """Returns the parameters `engine` and `case` of a test.

    Args:
        cases: names.
        reference: whether the reference engine is among the engines.
    """
    engines = list(ENGINES.items())[not reference :]
    pairs = [pytest.param(engine, case, marks=marks) for engine, marks in engines for case in cases]
    return pytest.mark.parametrize(("engine", "case"), pairs, indirect=["engine"])


EVERY = [pytest.param(engine, marks=marks) for engine, marks in ENGINES.items()]
every_engine = pytest.mark.parametrize("engine", EVERY, indirect=True)


class Engine:
    """An engine that is ready to run."""

    def __init__(self, label: str) -> None:
        self.name = label
        self.unit_bytes = 50_000  # of text

    def __call__(self, source: Path, output: Path, **fields: Any) -> Manifest:
        """Prepares a dataset and returns its manifest."""
        if self.name == "native":
            fields["settings"] = NativeSettings(unit_bytes=self.unit_bytes)
        if self.name == "spark":
            conf = (("spark.sql.files.maxPartitionBytes", str(self.unit_bytes)),)
            fields["spark"] = SparkSettings(spark_conf=conf)
        return run(source, output, self.name, **fields)


@pytest.fixture
def engine(request, monkeypatch) -> Engine:
    label = request.param
    if label == "spark":
        request.getfixturevalue("spark_session")
    if label == "nvtabular":
        process = request.getfixturevalue("nvtabular_process")
        environment.share(process, nvtabular_criteo, monkeypatch)
    return Engine(label)


@pytest.fixture
def small_units(engine, monkeypatch) -> None:
    """Several units and buckets even of few rows."""
    engine.unit_bytes = 20_000
    for module, name, size in (
        (nvtabular_rows, "CHUNK_BYTES", 22_000),
        (nvtabular_counts, "MAX_GROUP_PARTS", 12),
        (input_file, "_BLOCK_BYTES", 22_000),
        (shuffle_columns, "LEAST_UNIT_ROWS", 128),
        (shuffle_columns, "_READ_ROWS", 1),
    ):
        monkeypatch.setattr(module, name, size)


@pytest.fixture(scope="module")
def work(tmp_path_factory) -> Path:
    """Work folders, in which the presets use what they have in common."""
    return tmp_path_factory.mktemp("work")


@matrix(PRESETS.names())
def test_recorded_bytes(engine, work, tmp_path, case):
    fields = {"semantics": semantics_of(case), "preset": case, "max_bad_fraction": 0.2}
    folder = work / engine.name
    manifest = engine(CONFORMANCE, tmp_path / "made", work_dir=folder, **fields)
    made = {name: getattr(manifest, name) for name in ("rows", "rejected", "cardinalities")}
    made["files"] = {name: entry["xxh3_128"] for name, entry in manifest.files.items()}
    if engine.name == "reference" and "RECIPES_REWRITE_GOLDEN" in os.environ:
        EXPECTED[case] = made
        RECORDED.write_text(json.dumps(EXPECTED, indent=0) + "\n")
    assert made == EXPECTED[case]
    assert manifest.engine["name"] == engine.name


def write_oddly(folder: Path, crlf: bytes, packed: bytes, cut: bytes) -> Path:
    """Writes days as they may come: CRLF, gzip by name or magic alone, no last line end."""
    folder.mkdir()
    (folder / "day_0.tsv.gz").write_bytes(crlf.replace(b"\n", b"\r\n"))
    members = (packed[:9999], packed[9999:])  # as parallel gzip tools write them
    (folder / "day_1").write_bytes(b"".join(map(gzip.compress, members)))
    (folder / "day_2").write_bytes(cut.removesuffix(b"\n"))
    (folder / "._day_2").write_bytes(b"\0\5\26\7")  # as macOS leaves them
    return folder


def odd_days(folder: Path, _: Callable[[], Path]) -> Path:
    """Days as they may come, with bad rows of several reasons."""
    lines = good_text(140, seed=2).split(b"\n")
    lines[0] = b"1\tbad"
    lines[17] = b"\xff" + lines[17] + b"\r"
    lines[100] = lines[100] + b"\r\r"  # one CR belongs to the line end, the other to the row
    lines[101] = b""
    lines[102] = lines[102].replace(b"\t", b"\t99999999999", 1)
    lines[138] = b"\xe2\r"
    last = good_text(71, seed=3) + b"2" + b"\t" * 39
    return write_oddly(folder, good_text(150, seed=1), b"\n".join(lines), last)


def plain_days(folder: Path, _: Callable[[], Path]) -> Path:
    return write_days(folder, rows=450)


def real_rows(path: Path, real_data: Callable[[], Path]) -> Path:
    packed = (real_data() / "criteo_kaggle" / "sample_100k.tsv.gz").read_bytes()
    path.write_bytes(b"".join(gzip.decompress(packed).splitlines(keepends=True)[:2000]))
    return path


def unlabelled_days(folder: Path, _: Callable[[], Path]) -> Path:
    odd_days(folder, _)
    for day in folder.iterdir():
        text = day.read_bytes()
        text = gzip.decompress(text) if text[:2] == b"\x1f\x8b" else text
        day.write_bytes(without_labels(text))
    (folder / "day_0.tsv.gz").rename(folder / "day_0")
    return folder


def semantics(preset: str = "dlrm", **changes: object) -> dict[str, object]:
    return {"semantics": dataclasses.replace(semantics_of(preset), **changes), "format": BOTH}


TRAIN_ONLY = {"dictionary_days": "train", "frequency_limit": 2}
CASES = {
    "odd spelling": (
        odd_days,
        semantics(split_fractions=(0.61, 0.2, 0.19), shuffle_seed=7, **TRAIN_ONLY),
    ),
    "TorchRec's layout": (odd_days, semantics("nvidia", shuffle_seed=3) | {"layout": "torchrec"}),
    "TorchRec's layout in input order": (
        plain_days,
        semantics(**TRAIN_ONLY) | {"layout": "torchrec"},
    ),
    "numbers of rows": (plain_days, semantics(split_rows=(700, 500, -1), **TRAIN_ONLY)),
    "numbers of days": (plain_days, semantics(split_days=(1, -1, 0), **TRAIN_ONLY)),
    "no training rows": (
        odd_days,
        semantics(split_fractions=(0.0, 0.5, 0.5), shuffle_seed=0, **TRAIN_ONLY),
    ),
    "only training rows": (
        odd_days,
        semantics(split_fractions=(1.0, 0.0, 0.0), shuffle_seed=2**64 - 1),
    ),
    "real rows": (real_rows, semantics("kaggle") | {"max_bad_fraction": 0.0}),
    "bins of real numbers": (
        real_rows,
        semantics("kaggle", bin_numerical=True, numerical_offset=4, numerical_min=-3),
    ),
    "no labels, bins": (
        unlabelled_days,
        semantics("mlperf", unlabelled=True, bin_numerical=True, frequency_limit=3),
    ),
}


@pytest.fixture(scope="module")
def expected(request, tmp_path_factory) -> Callable[[str], tuple[Path, Manifest]]:
    """Returns the input of a case and what the reference engine makes of it."""

    @functools.cache
    def prepared(case: str) -> tuple[Path, Manifest]:
        folder = tmp_path_factory.mktemp("case")
        write, fields = CASES[case]
        source = write(folder / "in", lambda: request.getfixturevalue("real_data"))
        return source, run(source, folder / "expected", "reference", **fields)

    return prepared


@matrix(CASES, reference=False)
def test_bytes_of_the_reference_engine(engine, small_units, expected, tmp_path, case):
    source, wanted = expected(case)
    made = engine(source, tmp_path / "made", **CASES[case][1])
    assert_same(made, wanted)
    assert [p.name for p in tmp_path.iterdir()] == ["made"]


@pytest.fixture(scope="module")
def taught(tmp_path_factory) -> tuple[Path, Path]:
    """A log, and the dataset of it whose dictionaries know the first rows alone."""
    folder = tmp_path_factory.mktemp("taught")
    log = folder / "log"
    log.write_bytes(good_text(900, seed=5, vocabulary=300))
    rules = semantics("mlperf", split_rows=(500, 100, -1), bin_numerical=True, **TRAIN_ONLY)
    run(log, folder / "dataset", "reference", **rules)
    return log, folder / "dataset"


@every_engine
@pytest.mark.parametrize("unlabelled", [False, True])
def test_applied_dictionaries_give_the_rows_of_the_whole(engine, taught, tmp_path, unlabelled):
    log, dataset = taught
    text = b"".join(log.read_bytes().splitlines(keepends=True)[600:])
    (tmp_path / "later").write_bytes(without_labels(text) if unlabelled else text)
    rules = semantics_of_dataset(dataset, {"unlabelled": unlabelled})
    fields = {"semantics": rules, "dictionaries": dataset, "format": BOTH}
    made = engine(tmp_path / "later", tmp_path / "made", **fields)
    whole = Manifest.load(dataset)
    assert made.rows == {"train": 0, "validation": 0, "test": 300}
    assert made.cardinalities == whole.cardinalities
    for name, entry in whole.files.items():
        if name.startswith(("dictionaries/", "test/cat", "test/num")) or (
            name.startswith(("test/", "parquet/test/")) and not unlabelled
        ):
            assert made.files[name] == entry, name
    labels = (tmp_path / "made" / "test" / "label.bin").read_bytes()
    assert not unlabelled or labels == bytes(300)
    assert made.semantics["applied"]["unlabelled"] is unlabelled
    assert made.semantics["split_rows"] == [500, 100, -1]


def test_applied_dictionaries_leave_the_split_to_the_user(taught, tmp_path):
    log, dataset = taught
    rules = semantics_of_dataset(dataset, {"split_fractions": (0.5, 0.25, 0.25)})
    made = run(log, tmp_path / "made", dictionaries=dataset, semantics=rules)
    assert made.rows == {"train": 450, "validation": 225, "test": 225}


def test_applied_dictionaries_are_checked(taught, tmp_path):
    log, dataset = taught
    with pytest.raises(PreprocError, match="brings its own rules; drop `numerical_min`"):
        semantics_of_dataset(dataset, {"numerical_min": 0})
    with pytest.raises(PreprocError, match="prepared by other rules"):
        run(log, tmp_path / "made", dictionaries=dataset, **semantics(split_rows=(0, 0, -1)))
    damaged = shutil.copytree(dataset, tmp_path / "damaged")
    (damaged / "dictionaries" / "cat_3.bin").write_bytes(b"12345678")
    rules = semantics_of_dataset(damaged, {})
    with pytest.raises(PreprocError, match=r"cat_3\.bin: is missing, or not the file"):
        run(log, tmp_path / "made", dictionaries=damaged, semantics=rules)


@every_engine
def test_spelling_of_the_input_changes_nothing(engine, tmp_path):
    days = write_days(tmp_path / "days", rows=150)
    texts = [(days / f"day_{day}").read_bytes() for day in range(3)]
    made = engine(write_oddly(tmp_path / "other", *texts), tmp_path / "made")
    assert made.files == run(days, tmp_path / "expected", "reference").files


@needs("compiled Criteo kernel")
def test_compressed_days_are_read_as_plain_ones(tmp_path):
    """Two streams follow each other in each file."""
    texts = [good_text(200, seed=seed) for seed in range(3)]
    for name, packs in (
        ("plain", [("", bytes)] * 3),
        ("packed", [(".bz2", bz2.compress), (".xz", lzma.compress), (".zst", zstd_compress)]),
    ):
        (tmp_path / name).mkdir()
        for day, (text, (ending, pack)) in enumerate(zip(texts, packs, strict=True)):
            path = tmp_path / name / f"day_{day}{ending}"
            path.write_bytes(pack(text[:7777]) + pack(text[7777:]))
    plain, packed = (run(tmp_path / n, tmp_path / f"made_{n}") for n in ("plain", "packed"))
    assert packed.files == plain.files


GOOD = good_text(200, seed=1)
HEADER = b"\t".join([b"label", *(b"I%d" % i for i in range(13)), *(b"C%d" % i for i in range(26))])
UNLABELLED = b"\n".join(line[2:] for line in GOOD.split(b"\n"))
ENDLESS = b"0" * (2**20 + 1) + b"\n"

HOSTILE = {  # the bytes of day_1, and what is said of it
    "unlabelled": (UNLABELLED, "39 tab-separated fields: looks like Kaggle test.txt"),
    "commas": (GOOD.replace(b"\t", b","), "40 comma-separated fields: .* convert them to tabs"),
    "semicolons": (GOOD.replace(b"\t", b";"), "separated by semicolons"),
    "header": (HEADER + b"\n" + GOOD, "begins with a header line"),
    "only a header": (HEADER + b"\n", "begins with a header line"),
    "byte order mark": (b"\xef\xbb\xbf" + GOOD, r"begins with a byte order mark.*tail -c \+4"),
    "packed mark": (gzip.compress(b"\xef\xbb\xbf" + GOOD), "begins with a byte order mark"),
    "prose": (b"once upon a time\n" * 50, "this is not a Criteo log"),
    "numbers": (b"1\t2\t3\n" * 500, "3 tab-separated fields: this is not a Criteo log"),
    "labels": (GOOD.replace(b"\n0", b"\n5").replace(b"\n1", b"\n6")[1:], r"40 fields as .*label"),
    "blank": (b"\n" * 300, "none of the first 100 rows is valid"),
    "zstd": (b"\x28\xb5\x2f\xfd" + bytes(100), "the zstd data are damaged or end early"),
    "bzip2": (b"BZh9" + bytes(100), "the bzip2 data are damaged or end early"),
    "xz": (b"\xfd7zXZ\x00" + bytes(100), "the xz data are damaged or end early"),
    "zip": (b"PK\x03\x04" + bytes(100), "is zip-compressed.*unzip"),
    "empty": (b"", "is empty"),
    "gzip of nothing": (gzip.compress(b""), "none of the first"),
    "damaged gzip": (gzip.compress(GOOD)[:50] + b"\xff" * 500, "gzip data are damaged"),
    "gzip cut in the first row": (gzip.compress(GOOD)[:66], "the gzip data end early"),
    "no line end": (b"0" * (2**20 + 2**19), "does not end within 512 KiB"),
    # only reading to the end finds these
    "cut gzip": (
        gzip.compress(good_text(3000, seed=2))[:-60_000],
        "the gzip data end early|EOFException: Unexpected end",
    ),
    "endless line": (GOOD + ENDLESS + GOOD, f"the line at byte {len(GOOD)} is longer than 1 MiB"),
    "endless last line": (
        GOOD + ENDLESS[:-1],
        f"the line at byte {len(GOOD)} is longer than 1 MiB",
    ),
}


@matrix(HOSTILE)
def test_hostile_files(engine, tmp_path, case):
    """A day that is something else is named, and nothing of a dataset is visible."""
    text, message = HOSTILE[case]
    days = write_days(tmp_path / "days", rows=20)
    (days / "day_1").write_bytes(text)
    with pytest.raises(PreprocError, match=f"(?s)day_1.*({message})"):
        engine(days, tmp_path / "made")
    assert not (tmp_path / "made").exists()


@every_engine
def test_too_many_bad_rows_and_then_enough(engine, tmp_path):
    days = write_days(tmp_path / "days", rows=300)
    for day in (1, 2):
        lines = (days / f"day_{day}").read_bytes().split(b"\n")
        for i in range(4):
            lines[150 + 10 * i] = b"bad\trow %d of day %d \xff" % (i, day)
        (days / f"day_{day}").write_bytes(b"\n".join(lines))
    with pytest.raises(TooManyRejectedRowsError) as caught:
        engine(days, tmp_path / "made", max_bad_fraction=0.005)
    message = str(caught.value)
    shown = [line for line in message.splitlines() if line.startswith("  ")]
    assert [s.split(",")[0].strip() for s in shown] == ["day_1"] * 4 + ["day_2"]
    assert "line 151, byte " in shown[0]
    assert r"columns: bad\trow 0 of day 1 \xff" in shown[0]
    assert "8 bad rows" in message
    assert caught.value.exit_code == 3
    assert not (tmp_path / "made").exists()
    made = engine(days, tmp_path / "made", max_bad_fraction=0.01)
    assert made.rejected["columns"] == 8
    assert [s["rejected"] for s in made.source_files] == [0, 4, 4]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["days", "made"]


@pytest.mark.parametrize("engine", [pytest.param("spark", marks=SPARK)], indirect=True)
def test_dictionaries_that_do_not_fit_an_executor(engine, tmp_path):
    days = write_days(tmp_path / "days", rows=100)
    with pytest.raises(PreprocError, match=r"`memory_limit` 30\.0 MiB is too small"):
        engine(days, tmp_path / "made", memory_limit=30 * 2**20)
