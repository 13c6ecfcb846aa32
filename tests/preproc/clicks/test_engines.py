# SPDX-License-Identifier: Apache-2.0
"""Every engine of click logs makes the same bytes and refuses the same files.

`RECIPES_REWRITE_GOLDEN=1 pytest tests/preproc/clicks/test_engines.py` writes the recorded checksums
anew, from the reference engine; the diff is for review.
"""

import bz2
import dataclasses
import datetime
import functools
import gzip
import json
import lzma
import os
import random
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from preproc.clicks import shuffle as shuffle_columns
from preproc.clicks.applied import semantics_of_dataset
from preproc.clicks.engines.native.units import NativeSettings
from preproc.clicks.engines.nvtabular import rows as nvtabular_rows
from preproc.clicks.engines.nvtabular import run as nvtabular_criteo
from preproc.clicks.job import PRESETS, semantics_of, semantics_of_schema
from preproc.files import input_file
from preproc.files.errors import PreprocError, TooManyRejectedRowsError
from preproc.nvtabular import counts as nvtabular_counts
from preproc.spark.settings import SparkSettings
from recsys.data.manifest import Manifest
from tests.harness import assert_tells, refusal
from tests.preproc.clicks import schema_log
from tests.preproc.clicks.rows import (
    assert_same,
    extend,
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


def only(*engines: str) -> pytest.MarkDecorator:
    """Returns the parameter `engine` of a test."""
    params = [pytest.param(engine, marks=ENGINES[engine]) for engine in engines]
    return pytest.mark.parametrize("engine", params, indirect=True)


def pairs(cases: Mapping[str, Iterable[str]]) -> pytest.MarkDecorator:
    """Returns the parameters `engine` and `case` of a test, from the engines of each case."""
    params = [
        pytest.param(engine, case, marks=ENGINES[engine])
        for case, engines in cases.items()
        for engine in engines
    ]
    return pytest.mark.parametrize(("engine", "case"), params, indirect=["engine"])


every_engine = only(*ENGINES)


class Engine:
    """An engine that is ready to run."""

    def __init__(self, label: str) -> None:
        self.name = label
        self.unit_bytes = 50_000  # of text
        self.of_native: dict[str, int] = {}

    def __call__(self, source: Path, output: Path, **fields: Any) -> Manifest:
        """Prepares a dataset and returns its manifest."""
        if self.name == "native":
            fields["settings"] = NativeSettings(unit_bytes=self.unit_bytes, **self.of_native)
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
    engine.unit_bytes, engine.of_native = 20_000, {"table_bytes": 1}
    for module, name, size in (
        (nvtabular_rows, "CHUNK_BYTES", 30_000),
        (nvtabular_counts, "MAX_GROUP_PARTS", 4),
        (input_file, "BLOCK_BYTES", 30_000),
        (shuffle_columns, "LEAST_UNIT_ROWS", 128),
        (shuffle_columns, "_READ_ROWS", 1),
    ):
        monkeypatch.setattr(module, name, size)


@pytest.fixture(scope="module")
def work(tmp_path_factory) -> Path:
    """Work folders, in which the presets use what they have in common."""
    return tmp_path_factory.mktemp("work")


OF_OTHERS = {"mlperf": ["spark"], "nvidia": ["nvtabular"], "torchrec_nvt": ["nvtabular"]}


@pairs({name: ["reference", "native", *OF_OTHERS.get(name, ())] for name in PRESETS.names()})
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
    return write_days(folder, rows=250)


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


def damaged_days(folder: Path, _: Callable[[], Path]) -> Path:
    """Days of rows of which every third one has bytes changed, one of them packed."""
    draw = random.Random(9)
    folder.mkdir()
    for day, pack in enumerate((bytes, gzip.compress)):
        lines = good_text(300, seed=day).splitlines()
        for number in range(1, len(lines), 3):
            line, at = lines[number], draw.randrange(len(lines[number]))
            damage = draw.choice([b"\t", b"\r", b"-", b"\0", b" ", b"g", b"9", b"\xff", b"\t\t"])
            lines[number] = line[:at] + damage + line[at + draw.randrange(3) :]
        lines[7::90] = [draw.randbytes(40).replace(b"\n", b"") for _ in lines[7::90]]
        ends = (draw.choice([b"\n", b"\n", b"\r\n"]) for _ in lines)
        text = b"".join(line + end for line, end in zip(lines, ends, strict=True))
        (folder / f"day_{day}").write_bytes(pack(text))
    return folder


def files_of_a_schema(folder: Path, _: Callable[[], Path]) -> Path:
    """Files with columns in other orders, values of every reason, CRLF, gzip, no last line end."""
    folder.mkdir()
    bad = [(column, value) for column, values in schema_log.BAD.items() for value in values]
    for i, end in enumerate(["\n", "\r\n", "\n"]):
        table = schema_log.rows(300, seed=i)
        for number, (column, value) in enumerate(bad):
            table[7 * number + i] |= {"when": "28.02.2026 10:00", column: value}
        table[-1]["shop"] = "€" * 341
        table[-2] |= {"bought": "später", "C3": "größe", "C1": "n/a", "seen": "-1"}
        table[-3]["rate"] = "3.40282356e38"
        names = random.Random(i).sample(schema_log.NAMES, len(schema_log.NAMES))
        is_quoted = schema_log.may_be_quoted if i else schema_log.must_be_quoted
        text = schema_log.text_of(table, names, end, is_quoted)
        text += "".join(line + end for line in schema_log.BAD_LINES).encode()
        text = text.removesuffix(b"\n") if i == 2 else text
        (folder / f"{i}.csv").write_bytes(gzip.compress(text) if i == 1 else text)
    return folder


def tables_of_a_schema(folder: Path, _: Callable[[], Path]) -> Path:
    """Parquet of texts, lists and times, a csv file between, with line ends and bars in cells."""
    folder.mkdir()
    for i in range(3):
        table = schema_log.rows(300, seed=i)
        if i == 1:
            (folder / "1.csv").write_bytes(schema_log.text_of(table))
            continue
        columns: dict[str, Any] = {name: [row[name] for row in table] for name in table[0]}
        columns["brand"][5:293:9] = ["a\nb", "\t", "\\N", "x\r\n"] * 8
        columns["price"][20], columns["shop"][30] = "1.5\n", "x" * 1025
        columns["tags"] = [
            [] if text == "n/a" else [f"{each}\n|" for each in text.split(" ")]
            for text in columns["tags"]
        ]
        moments = [
            datetime.datetime(2026, 2, 1 + n % 28, n % 24, tzinfo=datetime.UTC) for n in range(300)
        ]
        columns["when"] = pa.array(moments, pa.timestamp("ns", "UTC"))
        pq.write_table(pa.table(columns), folder / f"{i}.parquet", row_group_size=70)
    return folder


@dataclasses.dataclass(frozen=True)
class Case:
    """A log and settings; engines that are compared on it with the reference engine.

    The executors of Spark do the native engine's units with its kernel: what its module does
    itself needs few of them. `schema` are values of the schema that differ.
    """

    write: Callable[[Path, Callable[[], Path]], Path]
    fields: dict[str, Any]
    engines: tuple[str, ...] = ("native",)
    schema: dict[str, Any] | None = None


def of_schema(*engines: str, overrides: dict[str, Any] | None = None, **changes: Any) -> Case:
    """Returns a case of the log with a schema."""
    has_lists = "columns" not in changes
    fields = {"overrides": overrides or {}, "format": BOTH[: 2 - has_lists]}
    return Case(files_of_a_schema, fields, ("native", *engines), changes)


TRAIN_ONLY = {"dictionary_days": "train", "frequency_limit": 2}
TIME = {"validation": "2026-02-12", "test": "2026-02-20T12:00"}
CASES = {
    "odd spelling": Case(
        odd_days,
        semantics(split_fractions=(0.61, 0.2, 0.19), shuffle_seed=7, **TRAIN_ONLY),
        ("native", "spark", "nvtabular"),
    ),
    "damaged rows": Case(damaged_days, semantics(frequency_limit=2), ("native", "nvtabular")),
    "TorchRec's layout": Case(
        odd_days,
        semantics("nvidia", shuffle_seed=3) | {"layout": "torchrec"},
    ),
    "TorchRec's layout, not shuffled": Case(
        plain_days,
        semantics(split_days=(1, -1, 0), **TRAIN_ONLY) | {"layout": "torchrec"},
    ),
    "numbers of rows": Case(plain_days, semantics(split_rows=(400, 300, -1), **TRAIN_ONLY)),
    "no training rows": Case(
        odd_days,
        semantics(split_fractions=(0.0, 0.5, 0.5), shuffle_seed=0, **TRAIN_ONLY),
        ("native", "nvtabular"),
    ),
    "only training rows": Case(
        odd_days,
        semantics(split_fractions=(1.0, 0.0, 0.0), shuffle_seed=2**64 - 1),
    ),
    "bins of real numbers": Case(
        real_rows,
        semantics("kaggle", bin_numerical=True, numerical_offset=4, numerical_min=-3)
        | {"max_bad_fraction": 0.0},
    ),
    "no labels, bins": Case(
        unlabelled_days,
        semantics("mlperf", unlabelled=True, bin_numerical=True, frequency_limit=3),
        ("native", "spark", "nvtabular"),
    ),
    "schema": of_schema(),
    "schema, by time": of_schema("spark", overrides={"shuffle_seed": 3}, split={"time": TIME}),
    "schema, split by user": of_schema(
        "spark",
        split={"random": {"fractions": [0.6, 0.4, 0.0], "by": "user"}},
        numbers="float16",
        columns=schema_log.columns_without("float", "categorical_list"),
    ),
    "tables, split by row": Case(
        tables_of_a_schema,
        {"overrides": {}, "format": BOTH[:1], "max_bad_fraction": 0.5},
        ("native", "spark"),
        {"split": {"random": {"fractions": [0.7, 0.1, 0.2], "seed": 3}}},
    ),
    "schema, bins by quantiles": of_schema(
        "spark",
        overrides={"shuffle_seed": 1},
        split={"time": TIME},
        columns=schema_log.with_quantiles(schema_log.columns_without("categorical_list"), 12),
    ),
    "tables, bins by quantiles": Case(
        tables_of_a_schema,
        {"overrides": {}, "format": BOTH[:1], "max_bad_fraction": 0.5},
        ("native",),
        {"columns": schema_log.with_quantiles(schema_log.SCHEMA["columns"], 255)},
    ),
    "schema, split by row": of_schema(
        overrides={"shuffle_seed": 5},
        split={"random": {"fractions": [0.7, 0.1, 0.2], "seed": 2**64 - 1}},
        defaults={"frequency_limit": 2, "count": "all"},
        columns=schema_log.columns_without("categorical_list"),
    ),
}


def prepared(
    case: Case, source: Path, output: Path, run_engine: Callable[..., Manifest]
) -> Manifest:
    """Makes the dataset of a case with an engine."""
    fields = dict(case.fields)
    if case.schema is not None:
        fields["schema"] = schema_log.write_schema(source.parent, **case.schema)
        fields["semantics"] = semantics_of_schema(fields["schema"], fields.pop("overrides"))
    return run_engine(source, output, **fields)


@pytest.fixture(scope="module")
def expected(request, tmp_path_factory) -> Callable[[str], tuple[Path, Manifest]]:
    """Returns the input of a case and what the reference engine makes of it."""

    @functools.cache
    def made(name: str) -> tuple[Path, Manifest]:
        folder = tmp_path_factory.mktemp("case")
        case = CASES[name]
        source = case.write(folder / "in", lambda: request.getfixturevalue("real_data"))
        reference = functools.partial(run, engine="reference")
        return source, prepared(case, source, folder / "expected", reference)

    return made


@pairs({name: case.engines for name, case in CASES.items()})
def test_bytes_of_the_reference_engine(engine, small_units, expected, tmp_path, case):
    source, wanted = expected(case)
    made = prepared(CASES[case], source, tmp_path / "made", engine)
    assert_same(made, wanted)
    assert [p.name for p in tmp_path.iterdir()] == ["made"]


def test_values_are_refused_for_their_reasons(expected):
    _, made = expected("schema")
    assert made.kind == "clicks"
    rejected = {reason: count for reason, count in made.rejected.items() if count}
    assert rejected == {reason: 3 * count for reason, count in schema_log.REASONS.items()}
    _, split = expected("schema, by time")
    assert split.rejected["time"] > 300  # rows without a time
    assert "train/group.bin" in split.files


@pytest.fixture(scope="module")
def taught(tmp_path_factory) -> tuple[Path, Path]:
    """A log, and the dataset of it whose dictionaries know the first rows alone."""
    folder = tmp_path_factory.mktemp("taught")
    log = folder / "log"
    log.write_bytes(good_text(900, seed=5, vocabulary=300))
    rules = semantics("mlperf", split_rows=(500, 100, -1), bin_numerical=True, **TRAIN_ONLY)
    run(log, folder / "dataset", "reference", **rules)
    return log, folder / "dataset"


@pytest.mark.parametrize(
    ("engine", "unlabelled"),
    [
        *(("reference", False), ("reference", True)),
        pytest.param("native", False, marks=NEEDS_KERNEL),
        pytest.param("native", True, marks=NEEDS_KERNEL),
        pytest.param("spark", False, marks=SPARK),
        pytest.param("nvtabular", True, marks=needs("NVTabular")),
    ],
    indirect=["engine"],
)
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
    of_dictionaries = {"kind": PreprocError, "settings": ("dictionaries",)}
    with refusal(dataset, "numerical_min", **of_dictionaries):
        semantics_of_dataset(dataset, {"numerical_min": 0})
    with refusal(dataset, "semantics", **of_dictionaries):
        run(log, tmp_path / "made", dictionaries=dataset, **semantics(split_rows=(0, 0, -1)))
    damaged = shutil.copytree(dataset, tmp_path / "damaged")
    dictionary = damaged / "dictionaries" / "cat_3.bin"
    dictionary.write_bytes(b"12345678")
    rules = semantics_of_dataset(damaged, {})
    with refusal("manifest.json", kind=PreprocError, path=dictionary):
        run(log, tmp_path / "made", dictionaries=damaged, semantics=rules)


def test_spelling_of_the_input_changes_nothing(tmp_path):
    days = write_days(tmp_path / "days", rows=150)
    texts = [(days / f"day_{day}").read_bytes() for day in range(3)]
    odd = write_oddly(tmp_path / "other", *texts)
    plain, other = (run(d, tmp_path / f"made_{d.name}", "reference") for d in (days, odd))
    assert other.files == plain.files


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
    "unlabelled": (UNLABELLED, 39, "test.txt"),
    "commas": (GOOD.replace(b"\t", b","), 40, "tabs"),
    "semicolons": (GOOD.replace(b"\t", b";"), "semicolons"),
    "header": (HEADER + b"\n" + GOOD, "tail -n +2 day_1"),
    "only a header": (HEADER + b"\n", "tail -n +2 day_1"),
    "prose": (b"once upon a time\n" * 50, 1, "once upon a time"),
    "numbers": (b"1\t2\t3\n" * 500, 3, r"1\t2\t3"),
    "labels": (GOOD.replace(b"\n0", b"\n5").replace(b"\n1", b"\n6")[1:], 40, "(label)"),
    "blank": (b"\n" * 300,),
    "zstd": (b"\x28\xb5\x2f\xfd" + bytes(100), "zstd", "byte 0"),
    "bzip2": (b"BZh9" + bytes(100), "bzip2", "byte 0"),
    "xz": (b"\xfd7zXZ\x00" + bytes(100), "xz", "byte 0"),
    "zip": (b"PK\x03\x04" + bytes(100), "unzip day_1"),
    "empty": (b"",),
    "gzip of nothing": (gzip.compress(b""),),
    "damaged gzip": (gzip.compress(GOOD)[:50] + b"\xff" * 500, "gzip", "byte 0"),
    "gzip cut early": (gzip.compress(GOOD)[:66], "gzip", "byte 0"),
    "no line end": (b"0" * (2**20 + 2**19), "512 KiB"),
}
FOUND_BY_READING = {
    "cut gzip": (gzip.compress(good_text(3000, seed=2))[:-60_000],),
    "endless line": (GOOD + ENDLESS + GOOD, f"byte {len(GOOD)}", "1 MiB"),
    "endless last line": (GOOD + ENDLESS[:-1], f"byte {len(GOOD)}", "1 MiB"),
}


@pairs(dict.fromkeys(HOSTILE, ("reference",)) | dict.fromkeys(FOUND_BY_READING, ENGINES))
def test_hostile_files(engine, tmp_path, case):
    """A day that is something else is named, and nothing of a dataset is visible."""
    text, *facts = (HOSTILE | FOUND_BY_READING)[case]
    days = write_days(tmp_path / "days", rows=20)
    (days / "day_1").write_bytes(text)
    with refusal("day_1", *facts, kind=PreprocError):
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
    assert_tells(shown[0], "line 151", "byte", "columns", r"bad\trow 0 of day 1 \xff")
    assert_tells(message, 8, "max_bad_fraction", 0.005)
    assert caught.value.exit_code == 3
    assert not (tmp_path / "made").exists()
    made = engine(days, tmp_path / "made", max_bad_fraction=0.01)
    assert made.rejected["columns"] == 8
    assert [s["rejected"] for s in made.source_files] == [0, 4, 4]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["days", "made"]


@only("spark")
def test_dictionaries_that_do_not_fit_an_executor(engine, tmp_path):
    days = write_days(tmp_path / "days", rows=100)
    with refusal("`memory_limit` 30.0 MiB", kind=PreprocError):
        engine(days, tmp_path / "made", memory_limit=30 * 2**20)


@every_engine
def test_days_follow_days(engine, small_units, tmp_path):
    """Each engine adds days to what it made itself, with the bytes of the reference engine."""
    first = dataclasses.replace(semantics_of("dlrm"), frequency_limit=4, split_rows=(-1, 0, 0))
    days = write_days(tmp_path / "days", rows=120)
    for number in range(3):
        made = extend(tmp_path / "made", days / f"day_{number}", first, engine)
        if engine.name != "reference":
            expected = extend(
                tmp_path / "expected", days / f"day_{number}", first, Engine("reference")
            )
            assert_same(made, expected)
        assert len(made.history) == number
        assert made.engine["name"] == engine.name
