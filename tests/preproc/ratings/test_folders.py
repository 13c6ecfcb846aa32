# SPDX-License-Identifier: Apache-2.0
"""Folders of parts of ratings, as Spark and others leave them."""

import gzip
import io
import json

import pyarrow.csv
import pyarrow.parquet
import pytest

from recsys.data.manifest import Manifest
from tests.harness import assert_tells
from tests.preproc.programs import called

COLUMNS = ("--columns=user=userId,item=movieId,rating=rating", "--min_item_count=0")
HEADER = "userId,movieId,rating\n"
ROWS = [f"{user},{(user * 7 + step * 3) % 11},4.0\n" for step in range(9) for user in range(1, 14)]
"""Without times: histories are in the order of the files."""
NAMES = [f"part_{number}" for number in range(13)]


def as_csv(rows):
    return (HEADER + "".join(rows)).encode()


def as_parquet(rows):
    packed = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.csv.read_csv(io.BytesIO(as_csv(rows))), packed)
    return packed.getvalue()


def as_json(rows):
    keys = HEADER.strip().split(",")
    objects = (zip(keys, row.strip().split(","), strict=True) for row in rows)
    lines = [{key: json.loads(value) for key, value in each} for each in objects]
    return "".join(json.dumps(line) + "\n" for line in lines).encode()


FORMS = {
    ".csv": as_csv,
    ".csv.gz": lambda rows: gzip.compress(as_csv(rows) + b"\n"),
    ".parquet": as_parquet,
    ".json": as_json,
}


def made(tmp_path, source, name, *flags):
    """Returns the dataset of some ratings, and what was printed."""
    words = (f"--input={source}", f"--output={tmp_path / name}")
    errors = called("movielens", *words, *COLUMNS, *flags)
    return Manifest.load(tmp_path / name), errors


@pytest.fixture
def whole(tmp_path):
    (tmp_path / "whole.csv").write_bytes(as_csv(ROWS))
    return made(tmp_path, tmp_path / "whole.csv", "whole")[0]


@pytest.fixture(params=FORMS)
def parts(tmp_path, request):
    folder = tmp_path / "parts"
    folder.mkdir()
    for number, name in enumerate(NAMES):
        rows = ROWS[9 * number :][:9]
        (folder / f"{name}{request.param}").write_bytes(FORMS[request.param](rows))
    for mark in ("_SUCCESS", "_committed_1", "._SUCCESS.crc", ".part_0.csv.crc"):
        (folder / mark).write_bytes(b"crc\0")
    (folder / f"part_99{request.param}").touch()
    if request.param.startswith(".csv"):
        (folder / "part_98.csv").write_text(HEADER)
        (folder / "part_97.csv").write_text("\n\n")
    return folder


def test_parts_are_one_file_in_the_order_of_their_numbers(tmp_path, parts, whole):
    dataset, errors = made(tmp_path, parts, "of_parts")
    assert dataset.files == whole.files
    rows = {source["name"].partition(".")[0]: source["rows"] for source in dataset.source_files}
    assert [name for name, count in rows.items() if count] == NAMES
    assert sum(rows.values()) == len(ROWS)
    assert next(line for line in errors.splitlines() if str(parts) in line).find("part_0") > 0
    applied, _ = made(tmp_path, parts, "applied", f"--dictionaries={tmp_path / 'whole'}")
    assert sum(source["rows"] for source in applied.source_files) == len(ROWS)


def test_a_bad_row_names_its_part(tmp_path):
    folder = tmp_path / "parts"
    folder.mkdir()
    for name in ("part_2.csv", "part_10.csv"):
        (folder / name).write_bytes(as_csv(ROWS))
    (folder / "part_10.csv").write_bytes(as_csv([*ROWS[:3], "1,2\n", *ROWS[3:]]))
    words = (f"--input={folder}", f"--output={tmp_path / 'made'}")
    error = called("movielens", *words, *COLUMNS, status=3)
    assert str(folder / "part_10.csv") in error
    assert "line 5" in error
    quarantine = ("--max_bad_fraction=0.1",)
    dataset, _ = made(tmp_path, folder, "kept", *quarantine)
    assert [source["rejected"] for source in dataset.source_files] == [0, 1]


@pytest.mark.parametrize("name", ["day=0", "more"])
def test_folders_within_a_folder_are_refused(tmp_path, name):
    (tmp_path / "parts" / name).mkdir(parents=True)
    (tmp_path / "parts" / "part_0.csv").write_bytes(as_csv(ROWS))
    words = (f"--input={tmp_path / 'parts'}", f"--output={tmp_path / 'made'}")
    assert name in called("movielens", *words, status=2)


def test_parts_with_their_columns_in_another_order_are_refused(tmp_path):
    """They would be read with users as items."""
    folder = tmp_path / "parts"
    folder.mkdir()
    swapped = [",".join(row.split(",")[i] for i in (1, 0)) + "\n" for row in ROWS[:5]]
    (folder / "a.csv").write_text("userId,movieId\n" + "".join(ROWS).replace(",4.0", ""))
    (folder / "b.csv").write_text("movieId,userId\n" + "".join(swapped))
    words = (f"--input={folder}", f"--output={tmp_path / 'made'}", "--min_item_count=0")
    columns = "--columns=user=userId,item=movieId"
    errors = called("movielens", *words, columns, "--id_type=string", status=2)
    assert_tells(errors, str(folder / "b.csv"), "movieId,userId", "userId,movieId")
    assert not (tmp_path / "made").exists()


def test_parts_of_any_form_are_one_file(tmp_path, whole):
    """Objects and tables go by their names, whatever their order."""
    folder = tmp_path / "parts"
    folder.mkdir()
    turned = [json.loads(line) for line in as_json(ROWS[30:60]).splitlines()]
    objects = "".join(json.dumps(dict([*row.items()][::-1])) + "\n" for row in turned)
    (folder / "part_1.csv").write_bytes(as_csv(ROWS[:30]))
    (folder / "part_2.json").write_text(objects)
    (folder / "part_3.parquet").write_bytes(as_parquet(ROWS[60:90]))
    (folder / "part_4.csv").write_bytes(as_csv(ROWS[90:]).replace(b",", b";"))
    assert made(tmp_path, folder, "of_parts")[0].files == whole.files


@pytest.mark.parametrize("is_dictionary", [False, True])
def test_times_of_parts_are_read_alike_if_one_has_fractions(tmp_path, is_dictionary):
    folder = tmp_path / "parts"
    folder.mkdir()
    users, items = zip(*(row.split(",")[:2] for row in ROWS), strict=True)
    for number, shift in enumerate((0, 500)):
        times = [1000 * i + shift * (i == 7) for i in range(len(ROWS) >> number)]
        stamps = pyarrow.array(times, pyarrow.timestamp("ms"))
        table = {
            "userId": pyarrow.array([*map(int, users)])[: len(times)],
            "movieId": pyarrow.array([*map(int, items)])[: len(times)],
            "timestamp": stamps.dictionary_encode() if is_dictionary else stamps,
        }
        pyarrow.parquet.write_table(pyarrow.table(table), folder / f"part_{number}.parquet")
    words = (f"--input={folder}", f"--output={tmp_path / 'made'}", "--min_item_count=0")
    called("movielens", *words, "--columns=user=userId,item=movieId,timestamp=timestamp")
    manifest = Manifest.load(tmp_path / "made")
    assert [source["rows"] for source in manifest.source_files] == [len(ROWS), len(ROWS) // 2]
