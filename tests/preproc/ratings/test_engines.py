# SPDX-License-Identifier: Apache-2.0
"""Every engine of ratings makes the bytes of the embedded one; one Spark, one NVTabular for all."""

import csv
import gzip
from collections import Counter

import pytest

from preproc.files.errors import PreprocError
from preproc.ratings.engines import nvtabular as nvtabular_ratings
from preproc.ratings.engines import spark as spark_ratings
from preproc.ratings.job import AMAZON, MOVIELENS
from preproc.spark import settings as spark_settings
from recsys.data.manifest import TITLES_FILE
from tests.preproc.nvtabular import environment
from tests.preproc.programs import program
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


@pytest.mark.parametrize("kcore", ["iterated", "once"])
def test_movielens(engine, tmp_path, kcore, request):
    """More than ten parts and, iterated, several passes; bad rows are set aside."""
    rows = interactions(1600, seed=1)
    lines = [f"{u}::{i}::{r:g}::{t}" for u, i, r, t in rows]
    lines[700] = "not a row"
    source = tmp_path / "ratings.dat"
    source.write_text("\n".join(lines))
    titles = "".join(f"{item}::Film {item}::Drama\n" for item in range(0, 120, 2))
    (tmp_path / "movies.dat").write_text(titles)
    settings = {"min_rating": 2.5, "min_user_count": 6, "min_item_count": 9, "kcore": kcore}
    quarantine = {"bad_rows": "quarantine", "max_bad_fraction": 0.01, "chunk_bytes": 2000}
    made = assert_agrees(engine, source, tmp_path, **settings, **quarantine)
    assert made.statistics["kcore_passes"] == (1 if kcore == "once" else pytest.approx(4, abs=2))
    assert sum(made.rejected.values()) == 1
    assert TITLES_FILE in made.files
    kept = rows[:700] + rows[701:]
    limits = {"min_rating": 2.5, "min_users": 6, "min_items": 9, "kcore": kcore}
    histories, items, fingerprint = expected(kept, **limits)
    assert decode(tmp_path / "made") == (histories, items)
    assert made.statistics["split_fingerprint"] == fingerprint
    if engine == "nvtabular":
        assert request.getfixturevalue("requests")["filter"] > 2


@pytest.mark.parametrize("known", [False, True])
def test_amazon_packed_and_without_filters(engine, tmp_path, known):
    """Ids that are not numbers, CRLF, gzip, a temporal split, the items of another dataset."""
    rows = interactions(300, seed=2)
    lines = [f"A{u}X,B00000{int(i):04d},{r},{1400000000 + t}" for u, i, r, t in rows]
    source = tmp_path / "ratings.csv"
    source.write_bytes(gzip.compress("\r\n".join(lines).encode()))
    settings = {"min_user_count": 3, "min_item_count": 0, "split": "temporal:0.6"}
    if known:
        (tmp_path / "earlier.csv").write_text("\n".join(lines[:100]))
        earlier = run(tmp_path / "earlier.csv", tmp_path / "earlier", family=AMAZON, **settings)
        settings["dictionaries"] = earlier
    made = assert_agrees(engine, source, tmp_path, family=AMAZON, **settings)
    assert made.statistics["cut"] > 1_400_000_000


def test_quotes_unicode_and_decimals(engine, tmp_path):
    """Rows that Python reads, among those that Arrow reads."""
    words = ["zoë", "李,四", 'a "b"', "A1", "B2", "x y"]
    rows = [
        (words[int(u) % 6] + u, words[int(i) % 6] + i, r, t / 4 if t % 3 else t)
        for u, i, r, t in interactions(500, seed=6)
    ]
    source = tmp_path / "ratings.csv"
    with source.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(rows)
    settings = {"columns": "user,item", "min_rating": 2.5, "min_item_count": 4, "chunk_bytes": 3000}
    made = assert_agrees(engine, source, tmp_path, family=AMAZON, **settings)
    limits = {"min_rating": 2.5, "min_users": 5, "min_items": 4}
    histories, items, fingerprint = expected(rows, **limits)
    assert decode(tmp_path / "made") == (histories, items)
    assert made.statistics["split_fingerprint"] == fingerprint


def test_text_without_times(engine, tmp_path):
    """Histories in file order."""
    rows = sorted(interactions(200, seed=3), key=lambda row: int(row[0]))
    source = tmp_path / "ml.txt"
    source.write_text("".join(f"{int(u) + 1} {int(i) + 1}\n" for u, i, _, _ in rows))
    assert_agrees(engine, source, tmp_path, family=MOVIELENS)


@pytest.mark.parametrize("settings", [{"min_rating": 5.5}, {"min_user_count": 1000}])
def test_nothing_is_left(engine, tmp_path, settings):
    """Filters that drop every row end the run, which leaves nothing behind."""
    source = tmp_path / "ratings.dat"
    source.write_text("".join(f"{u}::{i}::{r:g}::{t}\n" for u, i, r, t in interactions(50, 4)))
    with pytest.raises(PreprocError, match=r"no interaction is left of 50 after `min_rating`"):
        run(source, tmp_path / "made", engine=engine, **settings)
    assert [p.name for p in tmp_path.iterdir()] == ["ratings.dat"]


@pytest.mark.parametrize("engine", ENGINES[:1], indirect=True)
def test_users_in_several_parts(engine, tmp_path, monkeypatch):
    """Spark writes a part for each range of users, and the batches cut them anew."""
    monkeypatch.setattr(spark_ratings, "_BATCH_ROWS", 7)
    parts = []
    load = spark_ratings._load

    def counted(rows, users, **options):
        parts.append(len(list(rows.folder.glob("*.parquet"))))
        return load(rows, users, **options)

    monkeypatch.setattr(spark_ratings, "_load", counted)
    rows = interactions(400, seed=5)
    source = tmp_path / "u.data"
    source.write_text("".join(f"{u}\t{i}\t{int(r)}\t{t}\n" for u, i, r, t in rows))
    conf = {"shuffle.partitions": "5", "adaptive.enabled": "false"}
    settings = spark_settings.SparkSettings(
        spark_conf=tuple((f"spark.sql.{k}", v) for k, v in conf.items())
    )
    assert_agrees(engine, source, tmp_path, spark=settings, min_user_count=3)
    assert parts == [5]


@needs("Spark")
def test_the_command_line_makes_the_embedded_engines_files(tmp_path):
    """With a Spark of its own, which ends before the manifest is written."""
    source = tmp_path / "u.data"
    rows = interactions(400, seed=7)
    source.write_text("".join(f"{u}\t{i}\t{int(r)}\t{t}\n" for u, i, r, t in rows))
    made = {}
    for engine in ("pyarrow", "spark"):
        output = tmp_path / engine
        paths = (f"--input={source}", f"--output={output}")
        program("movielens", *paths, f"--engine={engine}", "--min_item_count=2")
        made[engine] = {path.name: path.read_bytes() for path in output.glob("*.parquet")}
    assert made["spark"] == made["pyarrow"] != {}
