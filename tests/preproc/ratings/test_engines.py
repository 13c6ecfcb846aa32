# SPDX-License-Identifier: Apache-2.0
"""Every engine of ratings makes the bytes of the embedded one; one Spark, one NVTabular for all."""

import csv
import gzip
from collections import Counter
from pathlib import Path

import pytest

from preproc.ratings.engines import nvtabular as nvtabular_ratings
from preproc.ratings.job import AMAZON
from preproc.spark import settings as spark_settings
from recsys.data.manifest import TITLES_FILE
from tests.harness import SHORT_LIVED_JAVA, refusal
from tests.preproc.nvtabular import environment
from tests.preproc.programs import called, program
from tests.preproc.ratings.oracle import assert_agrees, decode, expected, interactions, run
from tests.tools import needs

ENGINES = [
    pytest.param("spark", marks=needs("Spark")),
    pytest.param("nvtabular", marks=needs("NVTabular")),
]


@pytest.fixture
def requests(request, monkeypatch) -> Counter[str]:
    """Requests to the shared NVTabular."""
    return environment.share(
        request.getfixturevalue("nvtabular_process"), nvtabular_ratings, monkeypatch
    )


@pytest.fixture(params=ENGINES)
def engine(request) -> str:
    """The name of an engine that is running."""
    request.getfixturevalue("spark_session" if request.param == "spark" else "requests")
    return request.param


def write(path: Path, rows: list[tuple], separator: str) -> Path:
    """Writes ratings as lines of user, item, rating, timestamp."""
    path.write_text("".join(separator.join(map(str, row)) + "\n" for row in rows))
    return path


def with_filters(folder: Path) -> tuple[list, dict]:
    """More than ten chunks and several passes; a bad row is set aside."""
    rows = [(u, i, f"{r:g}", t) for u, i, r, t in interactions(1600, seed=1)]
    source = write(folder / "ratings.dat", [*rows[:700], ("not a row",), *rows[701:]], "::")
    titles = [(item, f"Film {item}", "Drama") for item in range(0, 120, 2)]
    write(folder / "movies.dat", titles, "::")
    settings = {"min_rating": 2.5, "min_user_count": 6, "min_item_count": 9, "chunk_bytes": 1500}
    settings |= {"max_bad_fraction": 0.01}
    kept = [(u, i, float(r), t) for u, i, r, t in rows[:700] + rows[701:]]
    return [kept, {"min_rating": 2.5, "min_users": 6, "min_items": 9}], settings | {
        "source": source
    }


def of_another_dataset(folder: Path) -> tuple[list, dict]:
    """Ids that are not numbers, a temporal split, the items of another dataset."""
    rows = [
        (f"A{u}X", f"B00000{int(i):04d}", r, 1400000000 + t) for u, i, r, t in interactions(300, 2)
    ]
    settings = {"family": AMAZON, "min_user_count": 3, "min_item_count": 0, "split": "temporal:0.6"}
    earlier = write(folder / "earlier.csv", rows[:100], ",")
    settings["dictionaries"] = run(earlier, folder / "earlier", **settings)
    source = write(folder / "ratings.csv", rows, ",")
    source.write_bytes(gzip.compress(source.read_bytes()))
    return [], settings | {"source": source}


def with_quotes(folder: Path) -> tuple[list, dict]:
    """Rows that Python reads, among those that Arrow reads; times with decimals; one pass."""
    words = ["zoë", "李,四", 'a "b"', "A1", "B2", "x y"]
    rows = [
        (words[int(u) % 6] + u, words[int(i) % 6] + i, r, t / 4 if t % 3 else t)
        for u, i, r, t in interactions(500, seed=6)
    ]
    with (folder / "ratings.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(rows)
    settings = {"columns": "user,item", "min_rating": 2.5, "min_item_count": 4, "kcore": "once"}
    settings |= {"source": folder / "ratings.csv", "family": AMAZON, "chunk_bytes": 3000}
    return [rows, {"min_rating": 2.5, "min_users": 5, "min_items": 4, "kcore": "once"}], settings


def without_times(folder: Path) -> tuple[list, dict]:
    """Histories in file order."""
    rows = sorted(interactions(200, seed=3), key=lambda row: int(row[0]))
    return [], {"source": write(folder / "ml.txt", [(u, i) for u, i, *_ in rows], " ")}


LOGS = (with_filters, of_another_dataset, with_quotes, without_times)


@pytest.mark.parametrize("log", LOGS, ids=lambda log: log.__name__)
def test_bytes_of_the_embedded_engine(engine, log, tmp_path, monkeypatch, request):
    """Users lie in several files of Spark's, values in several groups of NVTabular's."""
    monkeypatch.setattr(nvtabular_ratings, "MAX_GROUP_PARTS", 8)
    oracle, settings = log(tmp_path)
    if log is with_filters and engine == "spark":
        conf = {"shuffle.partitions": "3", "adaptive.enabled": "false"}  # else a small file is one
        pairs = tuple((f"spark.sql.{key}", value) for key, value in conf.items())
        settings["spark"] = spark_settings.SparkSettings(spark_conf=pairs)
    made = assert_agrees(engine, settings.pop("source"), tmp_path, **settings)
    if oracle:
        rows, limits = oracle
        histories, items, fingerprint = expected(rows, **limits)
        assert decode(tmp_path / "made") == (histories, items)
        assert made.statistics["split_fingerprint"] == fingerprint
    if log is with_filters:
        assert made.statistics["kcore_passes"] == pytest.approx(4, abs=2)
        assert sum(made.rejected.values()) == 1
        assert TITLES_FILE in made.files
        if engine == "nvtabular":
            assert request.getfixturevalue("requests")["filter"] > 2
    if log is of_another_dataset:
        assert made.statistics["cut"] > 1_400_000_000


@pytest.mark.parametrize(
    ("engine", "settings"),
    [
        pytest.param("spark", {"min_rating": 5.5}, marks=needs("Spark")),
        pytest.param("nvtabular", {"min_rating": 5.5}, marks=needs("NVTabular")),
        pytest.param("nvtabular", {"min_user_count": 1000}, marks=needs("NVTabular")),
    ],
    indirect=["engine"],
)
def test_nothing_is_left(engine, tmp_path, settings):
    """Filters that drop every row end the run, which leaves nothing behind."""
    source = write(tmp_path / "ratings.dat", interactions(50, 4), "::")
    limits = ("min_rating", "min_user_count", "min_item_count")
    with refusal(50, *settings.values(), settings=limits):
        run(source, tmp_path / "made", engine=engine, **settings)
    assert [p.name for p in tmp_path.iterdir()] == ["ratings.dat"]


@needs("Spark")
def test_the_command_line_makes_the_embedded_engines_files(tmp_path):
    """With a Spark of its own, which ends before the manifest is written."""
    source = write(tmp_path / "u.data", [(u, i, 4, t) for u, i, _, t in interactions(200, 7)], "\t")
    flags = (f"--input={source}", "--min_item_count=2")
    called("movielens", *flags, f"--output={tmp_path / 'pyarrow'}")
    spark = ("--engine=spark", "--spark_conf=spark.sql.shuffle.partitions=1")
    options = {"JAVA_TOOL_OPTIONS": SHORT_LIVED_JAVA}
    program("movielens", *flags, *spark, f"--output={tmp_path / 'spark'}", **options)
    made = [
        {path.name: path.read_bytes() for path in (tmp_path / engine).glob("*.parquet")}
        for engine in ("pyarrow", "spark")
    ]
    assert made[0] == made[1] != {}
