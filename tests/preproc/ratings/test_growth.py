# SPDX-License-Identifier: Apache-2.0
"""Ratings that grow by a day: histories of all rows so far, item numbers that never move."""

import shutil
from pathlib import Path

import pytest

from preproc.files.days import next_day
from preproc.ratings import pipeline as ratings_pipeline
from preproc.ratings.growth import rules_of_day
from recsys.data.manifest import Manifest
from recsys.data.sequences.titles import read_titles
from tests.harness import assert_tells
from tests.preproc.clicks.rows import stopped
from tests.preproc.programs import called
from tests.preproc.ratings.oracle import decode, expected, interactions, run, tree
from tests.tools import needs

FILTERS = {"min_rating": 2.0, "min_user_count": 4, "min_item_count": 3}


def write_days(folder: Path, days: int = 3, rows: int = 350) -> tuple[list[Path], list[list]]:
    """Writes days of ratings; returns the files and their rows."""
    folder.mkdir()
    files, of_days = [], []
    for day in range(days):
        of_day = [(u, i, r, t + 30 * day) for u, i, r, t in interactions(rows, seed=day)]
        path = folder / f"day_{day}.dat"
        path.write_text("".join(f"{u}::{i}::{r:g}::{t}\n" for u, i, r, t in of_day))
        files.append(path)
        of_days.append(of_day)
    return files, of_days


def extend(folder: Path, source: Path, **settings: object) -> Manifest:
    """Adds a day and returns its manifest."""
    day, last = next_day(folder)
    rules = FILTERS if last is None else rules_of_day(last)
    run(source, day, extend=folder, **{**rules, **settings})
    return Manifest.load(day)


def test_histories_are_those_of_all_rows_and_numbers_stay(tmp_path):
    files, of_days = write_days(tmp_path / "logs")
    rows, numbered = [], list[str]()
    for number, (file, of_day) in enumerate(zip(files, of_days, strict=True)):
        manifest = extend(tmp_path / "days", file, chunk_bytes=500)
        rows += of_day
        histories, items, fingerprint = expected(rows, min_rating=2.0, min_users=4, min_items=3)
        numbered += [item for item in items if item not in numbered]
        day = tmp_path / "days" / f"day_{number:04d}"
        assert decode(day) == (histories, numbered)
        statistics = manifest.statistics
        assert statistics["split_fingerprint"] == fingerprint
        assert statistics["dropped_by_min_rating"] == sum(row[2] < 2.0 for row in rows)
        kept = statistics["interactions"] + statistics["dropped_by_kcore"]
        assert kept + statistics["dropped_by_min_rating"] == len(rows)
        assert len(manifest.history) == number
        called_verify(day)


def called_verify(dataset: Path) -> None:
    """Refuses a dataset in which verify finds a problem."""
    from recsys.data.verify.run import verify

    assert verify(dataset)[0].problems == []


@pytest.mark.parametrize(
    "engine",
    [
        pytest.param("spark", marks=needs("Spark")),
        pytest.param("nvtabular", marks=needs("NVTabular")),
    ],
)
def test_engines_agree(engine, tmp_path, request):
    if engine == "spark":
        request.getfixturevalue("spark_session")
    files, _ = write_days(tmp_path / "logs", days=2)
    for file in files:
        made = extend(tmp_path / engine, file, engine=engine)
        embedded = extend(tmp_path / "pyarrow", file)
        assert (made.files, made.history) == (embedded.files, embedded.history)


@pytest.mark.parametrize("split", ["temporal:0.7"])
def test_a_cut_in_time_moves_no_number(tmp_path, split):
    files, _ = write_days(tmp_path / "logs")
    items = []
    for file in files:
        extend(tmp_path / "days", file, split=split)
        items.append(decode(next_day(tmp_path / "days")[1])[1])
    assert items[1][: len(items[0])] == items[0]
    assert items[2][: len(items[1])] == items[1]
    assert len(items[2]) > len(items[0])


def test_titles_of_earlier_days_stay(tmp_path):
    files, _ = write_days(tmp_path / "logs", days=2)
    for number, file in enumerate(files):
        titles = tmp_path / f"movies_{number}.dat"
        known = range(number, 120, 2)
        titles.write_text("".join(f"{i}::Film {i} of {number}::Drama\n" for i in known))
        extend(tmp_path / "days", file, titles=str(titles))
    day = tmp_path / "days" / "day_0001"
    raw = decode(day)[1]
    titles = read_titles(day, len(raw))
    first = decode(tmp_path / "days" / "day_0000")[1]
    for item, title in zip(raw, titles, strict=True):
        of_first = int(item) % 2 == 0 and item in first
        wanted = f"Film {item} of 1" if int(item) % 2 else f"Film {item} of 0" * of_first
        assert title == wanted


def test_the_command_adds_a_day_and_refuses_others(tmp_path):
    files, _ = write_days(tmp_path / "logs")
    made = tmp_path / "days"
    flags = ("--min_user_count=3", "--split=temporal:0.8")
    called("movielens", "--extend", made, "--input", files[0], *flags)
    called("movielens", "--extend", made, "--input", files[1])
    assert Manifest.load(made / "day_0001").semantics["split"] == "temporal:0.8"
    before = tree(made)
    again = tmp_path / "logs" / "again.dat"
    shutil.copyfile(files[0], again)
    refusals = {
        ("--input", again): (again, "day_0000"),
        ("--input", files[2], "--min_rating=3"): ("--min_rating", made),
        ("--input", files[2], "--output", tmp_path / "x"): ("--output", "--extend"),
    }
    for arguments, facts in refusals.items():
        errors = called("movielens", "--extend", made, *arguments, status=2)
        assert_tells(errors, *facts)
    timeless = tmp_path / "logs" / "timeless.csv"
    timeless.write_text("user,item\n" + "".join(f"{u},{i}\n" for u in range(9) for i in range(9)))
    columns = "--columns=user=user,item=item"
    errors = called("movielens", "--extend", made, "--input", timeless, columns, status=2)
    assert_tells(errors, "--split")
    assert tree(made) == before


def test_a_day_that_adds_nothing_is_refused(tmp_path):
    (first, _), _ = write_days(tmp_path / "logs", days=2)
    low, made = tmp_path / "logs" / "low.dat", tmp_path / "days"
    low.write_text("1::2::1::300\n")
    extend(made, first)
    before = tree(made)
    errors = called("movielens", "--extend", made, "--input", low, status=2)
    assert_tells(errors, low, "--min_rating", "--extend", made)
    assert tree(made) == before


def test_a_stopped_day_changes_nothing(tmp_path):
    files, _ = write_days(tmp_path / "logs", days=2)
    extend(tmp_path / "days", files[0])
    before = tree(tmp_path / "days")
    with stopped(ratings_pipeline, "write_sequences"):
        extend(tmp_path / "days", files[1])
    assert tree(tmp_path / "days") == before
    extend(tmp_path / "days", files[1])
    for file in files:
        extend(tmp_path / "whole", file)
    assert tree(tmp_path / "days") == tree(tmp_path / "whole")
