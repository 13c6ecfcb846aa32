# SPDX-License-Identifier: Apache-2.0
"""Public logs: what is a click, and that everyone makes the same file of a source."""

import dataclasses
import hashlib
import itertools
import zipfile

import pytest
import yaml

from benchmark.own_logs import films, ids, make, mixed, next_items, numbers
from benchmark.own_logs.catalogue import LOGS
from benchmark.own_logs.tables import shuffled
from preproc.clicks.schema.read import load_schema
from recsys.errors import UserError
from tests.harness import REPOSITORY

CLICK_LOGS = [log for log in LOGS.values() if log.kind != "next_item"]


def write(folder, **files):
    """Writes files in the order of a log's sources; returns their paths."""
    paths = [folder / name.replace("__", ".") for name in files]
    for path, text in zip(paths, files.values(), strict=True):
        path.write_text(text, encoding="latin-1")
    return paths


def rows(log, *paths):
    return [",".join(row) for row in log.make(*paths)]


def test_a_film_of_four_stars_is_a_click(tmp_path):
    flags = "|".join("1" if number in (5, 14) else "0" for number in range(19))
    paths = write(
        tmp_path,
        u__data="7\t9\t4\t100\n7\t8\t3\t90\n",
        u__user="7|33|F|artist|90210\n",
        u__item=f"9|Nine (1995)|01-Jan-1995||http://nine|{flags}\n8|caf\xe9||||{flags}\n",
    )
    header, *found = rows(films.ML_100K, *paths)
    assert header == "user,age,gender,occupation,zip,film,year,genres,click"
    assert sorted(found) == [
        "7,33,F,artist,90210,8,,Comedy|Romance,0",
        "7,33,F,artist,90210,9,1995,Comedy|Romance,1",
    ]


def test_a_history_holds_what_was_liked_before_the_time_of_the_rating():
    ratings = [
        ("1", "c", "5", 20),  # of the same second as b
        ("1", "a", "4", 10),
        ("2", "z", "5", 11),
        ("1", "b", "3", 20),
        ("1", "d", "1", 30),
    ]
    of_film = {film: liked for _, film, _, _, liked in films.with_histories(ratings)}
    assert of_film == {"a": "", "z": "", "c": "a", "b": "a", "d": "a|c"}


def test_a_history_keeps_the_last_liked_films():
    many = [("1", str(film), "5", film) for film in range(30)]
    *_, (_, film, _, _, liked) = films.with_histories(many)
    assert film == "29"
    assert liked.split("|") == [str(number) for number in range(29 - films.KEPT, 29)]


def test_draws_are_of_apps_that_the_user_never_used():
    context = dict.fromkeys(
        ("daytime", "weekday", "isweekend", "homework", "cost", "weather", "country", "city"), "x"
    )
    uses = [{"user": str(n % 3), "item": str(n % 7), **context} for n in range(21)]
    uses += [{"user": "9", "item": "7", **context}]
    uses = [use for use in uses if int(use["item"]) % 3 == int(use["user"]) % 3]
    drawn = list(ids.uses_and_draws(uses))
    used = {(use["user"], use["item"]) for use in uses}
    assert [row[-1] for row in drawn] == ["1", "0", "0"] * len(uses)
    assert all(((row[0], row[1]) in used) == (row[-1] == "1") for row in drawn)
    assert drawn == list(ids.uses_and_draws(uses))
    assert drawn != list(ids.uses_and_draws(uses, seed=1))


def test_features_of_libfm_are_their_numbers(tmp_path):
    (path,) = write(tmp_path, f__libfm="1 12:1 34:1\n-1 13:1 35:1 \n")
    assert list(ids.libfm(path))[1:] == [["12", "34", "1"], ["13", "35", "0"]]


def test_adult_has_one_spelling_of_its_labels(tmp_path):
    row = ", ".join(str(n) for n in range(14))
    paths = write(
        tmp_path,
        adult__data=f"{row}, <=50K\n\n",
        adult__test=f"|1x3 Cross validator\n{row}, >50K.\n",
    )
    _, *found = list(mixed.ADULT.make(*paths))
    plain = [str(n) for n in range(14)]
    assert sorted(found) == [[*plain, "<=50K"], [*plain, ">50K"]]


def test_arrivals_have_a_date():
    header = ["hotel", "arrival_date_year", "arrival_date_month", "arrival_date_day_of_month"]
    found = list(mixed.arrivals(header, iter([["City", "2016", "February", "9"]])))
    assert found == [["arrival_date", *header], ["2016-02-09", "City", "2016", "February", "9"]]


def test_archives_hold_the_rows_of_bank(tmp_path):
    with zipfile.ZipFile(tmp_path / "bank.zip", "w") as archive:
        archive.writestr("bank-full.csv", '"age";"job"\r\n58;"a, b"\r\n')
    assert list(mixed.BANK.make(tmp_path / "bank.zip")) == [["age", "job"], ["58", "a, b"]]


def test_shuffled_rows_are_the_same_for_everyone():
    numbers_of = [["n"], *([str(n)] for n in range(100))]
    first = list(shuffled(lambda: numbers_of)())
    assert first[0] == ["n"]
    assert sorted(first) == sorted(numbers_of)
    assert first[1:4] == [["40"], ["35"], ["52"]]
    assert first == list(shuffled(lambda: numbers_of)())


def test_shuffled_rows_of_one_value_stay_together():
    patients = [["patient", "n"], *([str(n % 5), str(n)] for n in range(50))]
    _, *found = list(shuffled(lambda: patients, by="patient")())
    assert [patient for patient, _ in itertools.groupby(row[0] for row in found)] != list("01234")
    assert len(list(itertools.groupby(row[0] for row in found))) == 5


def test_rows_come_in_the_order_of_their_times(tmp_path):
    (path,) = write(
        tmp_path,
        train_sample__csv="app,click_time\n1,2017-11-07 9:30\n2,2017-11-07 10:00\n"
        "3,2017-11-06 23:59\n4,2017-11-07 9:30\n",
    )
    assert [row[0] for row in ids.TALKINGDATA.make(path)] == ["app", "3", "1", "4", "2"]


def test_attributes_of_weka_are_the_header(tmp_path):
    text = "@relation x\n\n@attribute date numeric\n@attribute class {UP,DOWN}\n\n@data\n0,UP\n\n"
    (path,) = write(tmp_path, e__arff=text)
    assert rows(numbers.ELECTRICITY, path) == ["date,class", "0,UP"]


def test_items_of_a_user_come_in_their_order(tmp_path):
    users, sessions = write(tmp_path, users__txt="1 5 3\n2 5\n", sessions__csv="0,0,4,4\n7,6\n")
    assert rows(next_items.TOYS, users) == ["user,item", "1,5", "1,3", "2,5"]
    assert rows(next_items.YOOCHOOSE, sessions) == ["user,item", "1,4", "1,4", "2,7", "2,6"]


def made(tmp_path, sha256=None):
    """Returns a log of one file, that file, and what is made of it."""
    (source,) = write(tmp_path, source__csv="a;click\r\n1;0\r\n")
    sha256 = sha256 or hashlib.sha256(b"a,click\n1,0\n").hexdigest()
    return dataclasses.replace(LOGS["shoppers"], rows=1, sha256=sha256), source


def test_a_file_is_made_whole_and_the_same(tmp_path):
    log, source = made(tmp_path)
    log.write(source, tmp_path / "log.csv")
    assert (tmp_path / "log.csv").read_bytes() == b"a,click\n1,0\n"


def test_another_source_leaves_no_file(tmp_path):
    log, source = made(tmp_path, "0" * 64)
    with pytest.raises(UserError, match="`source`"):
        log.write(source, tmp_path / "log.csv")
    assert [path.name for path in tmp_path.iterdir()] == ["source.csv"]


def test_several_sources_lie_in_one_folder(tmp_path):
    (tmp_path / "u.data").touch()
    with pytest.raises(UserError, match=r"`source`.*u\.user, u\.item"):
        LOGS["ml_100k"].sources(tmp_path)
    for name in ("u.user", "u.item"):
        (tmp_path / name).touch()
    names = [path.name for path in LOGS["ml_100k"].sources(tmp_path)]
    assert names == ["u.data", "u.user", "u.item"]


def test_the_command_lists_the_logs(capsys):
    assert make.main(["make"]) == 0
    listed = capsys.readouterr().out
    assert [name for name in LOGS if name not in listed] == []


def test_the_command_refuses_other_logs_and_other_sources(tmp_path):
    (source,) = write(tmp_path, coupon__csv="Y\n1\n")
    output = tmp_path / "log.csv"
    assert make.main(["make", "--log=coupon", f"--source={source}", f"--output={output}"]) == 2
    assert make.main(["make", "--log=coupon", f"--source={source}"]) == 2
    assert make.main(["make", "--log=none", f"--source={source}", f"--output={output}"]) == 2
    assert not output.exists()


@pytest.mark.parametrize("log", CLICK_LOGS, ids=lambda log: log.name)
def test_every_click_log_has_a_schema_that_is_read(log):
    load_schema(log.schema)
    assert len(yaml.safe_load(log.schema.read_text())["split"]) == 1


def test_every_schema_is_that_of_a_log():
    folder = REPOSITORY / "benchmark" / "own_logs" / "schemas"
    assert sorted(folder.rglob("*.yaml")) == sorted(log.schema for log in CLICK_LOGS)


@pytest.mark.parametrize("log", LOGS.values(), ids=lambda log: log.name)
def test_every_log_says_where_it_is_from(log):
    assert log.origin
    assert log.licence
    assert log.rows >= 5_000
    assert len(log.sha256) == 64
    assert all(file.startswith("github.com/") and ": " in file for file in log.files)
    assert log.label or log.kind == "next_item"
