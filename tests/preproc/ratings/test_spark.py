# SPDX-License-Identifier: Apache-2.0
"""Ratings through Spark: the bytes of the embedded engine; one local session for all."""

import subprocess
import sys
from pathlib import Path

import pytest

from preproc.ratings.engines import spark as spark_ratings
from preproc.spark import settings as spark_settings
from tests.preproc.ratings import oracle as ratings_oracle
from tests.preproc.spark.local import local_spark

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(900),  # a loaded machine; none takes more than a minute on a quiet one
]


@pytest.fixture(scope="module", autouse=True)
def session():
    with local_spark() as runner:
        yield runner


@pytest.mark.parametrize("kcore", ["iterated", "once"])
def test_movielens(tmp_path, kcore):
    ratings_oracle.check_movielens("spark", tmp_path, kcore)


def test_amazon_packed_and_without_filters(tmp_path):
    ratings_oracle.check_amazon_packed_and_without_filters("spark", tmp_path)


def test_text_without_times(tmp_path):
    ratings_oracle.check_text_without_times("spark", tmp_path)


@pytest.mark.parametrize("settings", [{"min_rating": 5.5}, {"min_user_count": 1000}])
def test_nothing_is_left(tmp_path, settings):
    ratings_oracle.check_nothing_is_left("spark", tmp_path, **settings)


def test_users_in_several_parts(tmp_path, session, monkeypatch):
    """Spark writes a part for each range of users, and the batches cut them anew."""
    monkeypatch.setattr(spark_ratings, "_BATCH_ROWS", 7)
    parts = []
    load = spark_ratings._load_items

    def counted(rows, users):
        parts.append(len(list(rows.folder.glob("*.parquet"))))
        return load(rows, users)

    monkeypatch.setattr(spark_ratings, "_load_items", counted)
    rows = ratings_oracle.interactions(400, seed=5)
    source = tmp_path / "u.data"
    source.write_text("".join(f"{u}\t{i}\t{int(r)}\t{t}\n" for u, i, r, t in rows))
    conf = {"shuffle.partitions": "5", "adaptive.enabled": "false"}
    settings = spark_settings.SparkSettings(
        spark_mode="dataframe", spark_conf=tuple((f"spark.sql.{k}", v) for k, v in conf.items())
    )
    ratings_oracle.assert_agrees("spark", source, tmp_path, spark=settings, min_user_count=3)
    assert parts == [5]


def test_real_ratings(tmp_path, real_data):
    """MovieLens-100k, 5-core: the published counts."""
    settings = {"min_user_count": 5, "min_item_count": 5}
    source = real_data / "ml-100k" / "u.data.gz"
    made = ratings_oracle.assert_agrees("spark", source, tmp_path, **settings)
    assert (made.statistics["items"], made.statistics["interactions"]) == (1349, 99_287)


def test_the_command_line_makes_the_embedded_engines_files(tmp_path):
    """With a Spark of its own, which ends before the manifest is written."""
    source = tmp_path / "u.data"
    rows = ratings_oracle.interactions(400, seed=7)
    source.write_text("".join(f"{u}\t{i}\t{int(r)}\t{t}\n" for u, i, r, t in rows))
    made = {}
    for engine in ("pyarrow", "spark"):
        output = tmp_path / engine
        done = subprocess.run(
            [
                *(sys.executable, "-m", "preproc.movielens", f"--engine={engine}"),
                *(f"--input={source}", f"--output={output}", "--min_item_count=2"),
            ],
            cwd=Path(__file__).parents[3],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        made[engine] = {path.name: path.read_bytes() for path in output.glob("*.parquet")}
    assert made["spark"] == made["pyarrow"] != {}
