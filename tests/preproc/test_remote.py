# SPDX-License-Identifier: Apache-2.0
"""Logs and ratings from the standard input and from URLs."""

import gzip
import subprocess
import sys

import fsspec
import pytest

from preproc.clicks.__main__ import main
from preproc.files.errors import PreprocError
from preproc.files.progress import ProgressReporter
from preproc.files.remote import local_copy
from recsys.data.manifest import Manifest
from recsys_recipes import clicks
from tests import harness
from tests.harness import refusal
from tests.preproc.clicks.schema_log import rows, text_of, write_log, write_schema
from tests.tools import needs

pytestmark = needs("compiled Criteo kernel")


@pytest.fixture
def log(tmp_path):
    """A compressed log, its schema, and the fingerprint of its dataset."""
    write_log(tmp_path, 200, seed=4)
    path = tmp_path / "log.csv.gz"
    path.write_bytes(gzip.compress((tmp_path / "log.csv").read_bytes()))
    schema = write_schema(tmp_path)
    assert main(["", f"--input={path}", f"--schema={schema}", f"--output={tmp_path / 'a'}"]) == 0
    return path, schema, Manifest.load(tmp_path / "a").fingerprint


def piped(text, flags):
    """Returns exit status and errors of a run that reads a text from a pipe."""
    words = [sys.executable, "-m", "preproc.clicks", *flags]
    done = subprocess.run(words, input=text, capture_output=True, cwd=harness.REPOSITORY)
    return done.returncode, done.stderr.decode()


def test_a_log_comes_through_a_pipe(log, tmp_path):
    path, schema, fingerprint = log
    flags = ("--input=-", f"--schema={schema}", f"--output={tmp_path / 'piped'}")
    assert piped(path.read_bytes(), flags)[0] == 0
    assert Manifest.load(tmp_path / "piped").fingerprint == fingerprint
    assert not (tmp_path / "piped.input").exists()
    status, errors = piped(b"x\n", flags)
    assert status == 2
    assert "--output" in errors
    assert "copy" not in errors  # of its progress: nothing was read
    status, errors = piped(b"x\n", (*flags, "--overwrite", "--progress=json"))
    assert status == 2
    assert "standard_input" in errors
    assert not (tmp_path / "piped.input").exists()


@pytest.mark.parametrize("url", ["memory://shop/log.csv.gz", "memory://shop"])
def test_a_log_is_read_from_a_url(log, tmp_path, url):
    path, schema, fingerprint = log
    with fsspec.open("memory://shop/log.csv.gz", "wb") as file:
        file.write(path.read_bytes())
    output = tmp_path / "remote"
    flags = ["", f"--input={url}", f"--schema={schema}", f"--output={output}"]
    assert main([*flags, "--memory_limit=1KiB"]) == 2
    assert (tmp_path / "remote.input").exists(), "kept for the next run"
    assert main(flags) == 0
    assert Manifest.load(output).fingerprint == fingerprint
    assert not (tmp_path / "remote.input").exists()
    made = clicks.prepare(url, tmp_path / "python", schema=schema)
    assert Manifest.load(made).fingerprint == fingerprint


@pytest.mark.parametrize("names", [("_train.csv", ".val.csv", "day/test.crc"), ("a", "b", "c")])
def test_files_of_splits_are_those_of_a_local_folder(tmp_path, names):
    """The schema names them, so that no rule about names leaves one out; others are not copied."""
    split = {"files": dict(zip(("train", "validation", "test"), names, strict=True))}
    schema = write_schema(tmp_path, split=split)
    folder = tmp_path / "raw"
    for seed, name in enumerate((*names, "other.csv")):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(text_of(rows(60 + seed, seed)))
        fsspec.filesystem("memory").pipe(f"/{tmp_path.name}/{name}", (folder / name).read_bytes())
    url, made = f"memory://{tmp_path.name}", []
    for source in (folder, url):
        output = tmp_path / f"of {len(made)}"
        assert main(["", f"--input={source}", f"--schema={schema}", f"--output={output}"]) == 0
        made.append(Manifest.load(output))
    made.append(Manifest.load(clicks.prepare(url, tmp_path / "python", schema=schema)))
    assert [each.fingerprint for each in made] == [made[0].fingerprint] * 3
    assert [[file["name"] for file in each.source_files] for each in made] == [[*names]] * 3


def test_what_is_wrong_with_a_copy_is_told_of_the_url(tmp_path):
    split = {"files": {"train": "a.csv", "test": "b.csv"}}
    fsspec.filesystem("memory").pipe("/damaged/a.csv", text_of(rows(60, 1)))
    fsspec.filesystem("memory").pipe("/damaged/b.csv", b"bought;nothing\n1;2\n")
    schema = write_schema(tmp_path, split=split)
    with pytest.raises(PreprocError, match=r"^memory://damaged/b\.csv"):
        clicks.prepare("memory://damaged", tmp_path / "x", schema=schema)


def test_only_a_file_that_changed_is_copied_again(tmp_path):
    source, folder = tmp_path / "log", tmp_path / "copies"
    source.write_text("1\n")
    quiet = ProgressReporter("none")
    first = local_copy(f"file://{source}", folder, quiet)
    inode = first.stat().st_ino
    assert local_copy(f"file://{source}", folder, quiet).stat().st_ino == inode
    source.write_text("22\n")
    again = local_copy(f"file://{source}", folder, quiet)
    assert (first.read_text(), again.read_text()) == ("1\n", "22\n")


@pytest.mark.parametrize(
    ("url", "fact"),
    [("memory://shop/nowhere", "FileNotFoundError"), ("nonesuch://shop/log", "nonesuch")],
)
def test_a_url_that_cannot_be_read_is_named(tmp_path, url, fact):
    with refusal(url, fact, kind=PreprocError, settings=("input",)):
        local_copy(url, tmp_path / "copies", ProgressReporter("none"))
