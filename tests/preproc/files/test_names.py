# SPDX-License-Identifier: Apache-2.0
"""Paths that are unusual, and readers that go away."""

import contextlib
import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest

from preproc.files.quarantine import QUARANTINE_FILE
from recsys.data.manifest import Manifest
from tests import harness
from tests.preproc.clicks.rows import good_text, write_days
from tests.preproc.programs import called, program


@pytest.mark.parametrize("engine", ["native", "reference"])
def test_names_in_utf8_and_not(tmp_path, engine):
    name = b"tr\xc3\xa9s \xe2\x82\xac nam\xffe 1.txt"
    source = tmp_path / os.fsdecode(name)
    source.write_bytes(good_text(300, seed=1) + b"bad\n")
    output = tmp_path / os.fsdecode(b"made " + name)
    flags = (f"--engine={engine}", "--preset=kaggle", "--max_bad_fraction=0.1")
    paths = (f"--input={source}", f"--output={output}", "--format=split,parquet")
    program("clicks", *paths, *flags, PYTHONIOENCODING="utf-8:strict")
    assert Manifest.load(output).rejected["columns"] == 1
    assert name in (output / QUARANTINE_FILE).read_bytes()


def test_ratings_of_a_name_that_is_not_utf8(tmp_path):
    source = os.fsencode(tmp_path / "r") + b"\xff.dat"
    sizes = ("--users=20", "--items=20", "--interactions=300", "--format=movielens_dat")
    variables = {"PYTHONIOENCODING": "utf-8:strict"}
    program("generate_ratings", f"--output={os.fsdecode(source)}", *sizes, **variables)
    output = os.fsdecode(os.fsencode(tmp_path / "m") + b"\xfe")
    paths = (f"--input={os.fsdecode(source)}", f"--output={output}")
    program("movielens", *paths, "--min_item_count=0", **variables)
    assert Manifest.load(Path(output)).kind == "sequences"


@pytest.mark.parametrize(
    ("name", "flag"),
    [
        *itertools.product(["clicks", "movielens"], ["input", "output"]),
        *(("generate_criteo", "output"), ("generate_ratings", "output")),
    ],
)
def test_loops_of_links_and_what_is_no_file(tmp_path, name, flag):
    (tmp_path / "loop").symlink_to("loop")
    os.mkfifo(tmp_path / "fifo")
    flags = {"input": write_days(tmp_path / "days", rows=20), "output": tmp_path / "made"}
    sizes = {
        "generate_criteo": ("--rows=10",),
        "generate_ratings": ("--users=5", "--items=5", "--interactions=30"),
    }.get(name, ())
    for path in (
        tmp_path / "loop",
        tmp_path / "loop" / "made",
        tmp_path / "fifo",
        Path("/dev/null"),
    ):
        changed = flags | {flag: path}
        given = [f"--{key}={value}" for key, value in changed.items()]
        if name.startswith("generate"):
            given = [given[1], "--overwrite"]
        error = called(name, *given, *sizes, status=2)
        assert len(error.splitlines()) == 1
        assert error.startswith("error: ")
        assert str(path).removesuffix("/made") in error


def test_overwriting_generated_days_removes_those_and_no_other_files(tmp_path, rough_calibration):
    flags = ("generate_criteo", f"--output={tmp_path}", "--rows=30")
    called(*flags, "--days=3")
    for name in ("day_notes.txt", "day_1.txt"):
        (tmp_path / name).write_text("keep")
    assert "--overwrite" in called(*flags, "--days=2", status=2)
    called(*flags, "--days=2", "--overwrite")
    names = {"day_0", "day_1", "planted.json", "day_notes.txt", "day_1.txt"}
    assert {path.name for path in tmp_path.iterdir()} == names


@pytest.mark.parametrize(
    ("arguments", "joined"),
    [
        (("preproc.clicks", "--help"), False),
        (("preproc.movielens", "--help"), True),
        (("preproc.generate_criteo", "--rows=99", "--output={}/g"), False),
        (("preproc.clicks", "--input={}/days", "--output={}/made", "--progress=json"), True),
    ],
)
def test_reader_that_goes_away(tmp_path, arguments, joined):
    """As in `| true`: no traceback, and the work is done."""
    write_days(tmp_path / "days", rows=50)
    reading, writing = os.pipe()
    os.close(reading)
    with contextlib.closing(os.fdopen(writing, "wb")) as pipe:
        done = subprocess.run(
            [sys.executable, "-m", *(a.format(tmp_path) for a in arguments)],
            stdout=pipe,
            stderr=pipe if joined else subprocess.PIPE,
            cwd=harness.REPOSITORY,
            check=False,
        )
    assert done.returncode == 0
    assert joined or b"Broken" not in done.stderr
    assert "--help" in arguments or {"g", "made"} & {p.name for p in tmp_path.iterdir()}
