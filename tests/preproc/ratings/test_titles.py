# SPDX-License-Identifier: Apache-2.0
"""Titles of items, from the three files that MovieLens ships, through the command line."""

import gzip
import json
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import csv, parquet

from recsys.data.manifest import TITLES_FILE, Manifest
from recsys.data.sequences.files import read_item_map
from recsys.data.sequences.titles import read_titles
from recsys.data.verify import run as verify
from tests.harness import assert_tells
from tests.preproc.programs import called
from tests.preproc.ratings.oracle import tree

ROWS = [(user, item, 4, user + item) for user in range(1, 5) for item in range(1, 7)]
RATINGS = {
    "u.data": "".join("\t".join(map(str, row)) + "\n" for row in ROWS),
    "ratings.dat": "".join("::".join(map(str, row)) + "\n" for row in ROWS),
    "ratings.csv": "userId,movieId,rating,timestamp\n"
    + "".join(",".join(map(str, row)) + "\n" for row in ROWS),
}
GENRES = "|0" * 19
U_ITEM = (
    f"1|Toy Story (1995)|01-Jan-1995||http://us.imdb.com/M/title-exact?Toy%20Story{GENRES}\n"
    f"2|Cité des enfants perdus, La (1995)|01-Jan-1995||http://x{GENRES}\n"
    f"3||||{GENRES}\n"
    f'4|"Hot" Pursuit (1987)|01-Jan-1987||http://x{GENRES}\n'
    f"900|Not rated (1990)|01-Jan-1990||http://x{GENRES}\n"
)
MOVIES_DAT = (
    "1::Toy Story (1995)::Animation|Children's|Comedy\n"
    "2::Cité des enfants perdus, La (1995)::Adventure\n"
    "4::Alien::Resurrection (1997)::Sci-Fi\r\n"
)
MOVIES_CSV = (
    "movieId,title,genres\n"
    "1,Toy Story (1995),Animation|Children\n"
    '2,"Cité des enfants perdus, La (1995)",Adventure\n'
    '4,"He said ""no"" (2001)",(no genres listed)\r\n'
)
ALIEN, NO = "Alien::Resurrection (1997)", 'He said "no" (2001)'
SHIPPED = {
    "ml-100k": ("u.data", "u.item", U_ITEM.encode("latin-1"), '"Hot" Pursuit (1987)'),
    "ml-1m": ("ratings.dat", "movies.dat", MOVIES_DAT.encode("latin-1"), ALIEN),
    "ml-10m": ("ratings.dat", "movies.dat", MOVIES_DAT.encode(), ALIEN),
    "ml-20m": ("ratings.csv", "movies.csv", MOVIES_CSV.encode(), NO),
    "packed": ("ratings.csv", "movies.csv.gz", gzip.compress(MOVIES_CSV.encode()), NO),
}


def raw_folder(folder: Path, ratings: str, name: str = "", content: bytes = b"") -> Path:
    """Returns a folder with a ratings file, and a file of titles if one is named."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / ratings).write_text(RATINGS[ratings])
    if name:
        (folder / name).write_bytes(content)
    return folder


def prepare(source: Path, output: Path, *flags: str, status: int = 0) -> str:
    paths = (f"--input={source}", f"--output={output}")
    return called("movielens", *paths, *flags, status=status)


def titles_by_raw_id(dataset: Path) -> dict[str, str]:
    raw = read_item_map(dataset).raw.to_pylist()
    titles = read_titles(dataset, len(raw))
    assert titles is not None
    return dict(zip(raw, titles, strict=True))


@pytest.mark.parametrize("release", SHIPPED)
def test_titles_beside_the_ratings_are_kept(tmp_path, release):
    ratings, name, content, fourth = SHIPPED[release]
    source = raw_folder(tmp_path / "raw", ratings, name, content)
    said = prepare(source, tmp_path / "with")
    assert f"titles of 3 of 6 items from {source / name}" in said
    titles = ["Toy Story (1995)", "Cité des enfants perdus, La (1995)", "", fourth, "", ""]
    by_raw_id = {str(number): title for number, title in enumerate(titles, 1)}
    assert titles_by_raw_id(tmp_path / "with") == by_raw_id
    assert verify.verify(tmp_path / "with")[0].problems == []
    made = Manifest.load(tmp_path / "with")
    assert [s["name"] for s in made.source_files] == [ratings, name]
    # The same dataset to a checkpoint: titles are no part of its fingerprint.
    prepare(source, tmp_path / "without", "--titles=none")
    without = Manifest.load(tmp_path / "without")
    assert made.fingerprint == without.fingerprint
    assert made.files.keys() - without.files.keys() == {TITLES_FILE}


def test_titles_may_lie_elsewhere_or_nowhere(tmp_path):
    source = raw_folder(tmp_path / "raw", "ratings.csv", "u.item", U_ITEM.encode("latin-1"))
    prepare(source, tmp_path / "none")
    assert TITLES_FILE not in tree(tmp_path / "none")  # u.item belongs to u.data
    prepare(source, tmp_path / "named", f"--titles={source / 'u.item'}")
    assert titles_by_raw_id(tmp_path / "named")["4"] == '"Hot" Pursuit (1987)'
    absent = f"--titles={tmp_path / 'no file'}"
    assert "--titles" in prepare(source, tmp_path / "absent", absent, status=2)


@pytest.mark.parametrize("form", ["json", "parquet", "another header"])
def test_titles_of_any_form_go_by_the_names_of_their_columns(tmp_path, form):
    rows = [{"year": 1995, "title": 'Toy "Story", a\tb'.replace("\t", " "), "movieId": 1}]
    rows += [{"year": 1997, "title": None, "movieId": 2}, {"year": 1, "title": "Ü", "movieId": 4}]
    named = tmp_path / "titles"
    if form == "json":
        named.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif form == "parquet":
        parquet.write_table(pa.Table.from_pylist(rows), named)
    else:
        csv.write_csv(pa.Table.from_pylist(rows), named)
    source = raw_folder(tmp_path / "raw", "ratings.csv")
    prepare(source, tmp_path / "made", f"--titles={named}")
    wanted = {"1": 'Toy "Story", a b', "4": "Ü"}
    assert titles_by_raw_id(tmp_path / "made") == {
        str(i): wanted.get(str(i), "") for i in range(1, 7)
    }


@pytest.mark.parametrize(
    ("content", "facts"),
    [
        (MOVIES_CSV.replace("2,", "1,", 1), ("line 3", "'1'")),
        (MOVIES_CSV.replace("(1995),Ani", "(1995)"), ("line 2", "2", "item,title,ignored")),
        (MOVIES_CSV.replace('""no""', 'x"no'), ("line 4", "quote")),
        (MOVIES_CSV.replace("movieId,title", "movieId,name"), ("line 1", "movieId,name,genres")),
        (MOVIES_CSV.partition("\n")[2], ("line 1", "1,Toy Story (1995),Animation|Children")),
        (MOVIES_CSV.encode("latin-1"), ("line 3", "title", "encoding")),
        (MOVIES_CSV.replace("\n2,", "\n,"), ("line 3", "item ''")),
        (b"", ("line 1",)),
        ('{"title": "x"}\n', ("line 1", "title")),
        (MOVIES_CSV.replace("\n1,", "\n71,").replace("\n2,", "\n72,").replace("\n4,", "\n74,"), ()),
    ],
)  # fmt: skip
def test_files_that_are_not_of_titles_are_refused(tmp_path, content, facts):
    content = content if isinstance(content, bytes) else content.encode()
    source = raw_folder(tmp_path / "raw", "ratings.csv", "movies.csv", content)
    said = prepare(source, tmp_path / "made", status=2)
    assert_tells(said, *facts, str(source / "movies.csv"), "--titles none")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["raw"]


@pytest.mark.parametrize(
    ("ratings", "name", "content", "facts"),
    [
        ("ratings.dat", "movies.dat", MOVIES_DAT.replace("::Adventure", ""), ("line 2", "2")),
        ("u.data", "u.item", U_ITEM.replace("|0", "", 1), ("line 1",)),
    ],
)
def test_rows_of_another_number_of_fields_are_refused(tmp_path, ratings, name, content, facts):
    source = raw_folder(tmp_path / "raw", ratings, name, content.encode())
    said = prepare(source, tmp_path / "made", status=2)
    assert_tells(said, *facts, str(source / name), "--titles none")
    assert not (tmp_path / "made").exists()
