# SPDX-License-Identifier: Apache-2.0
"""What stops a run before it starts, and what the message says."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from preproc.files import disk
from preproc.files.errors import PreprocError
from recsys.settings import parse_with_unit
from recsys.sizes import format_bytes
from tests.harness import refusal
from tests.mounts import tmpfs
from tests.preproc.clicks.rows import good_text, run, write_days
from tests.preproc.clicks.schema_log import prepare, write_log, write_schema


def remove(*names: str) -> Callable[[Path], object]:
    return lambda days: [(days / name).unlink() for name in names]


NO_DAYS = ("input", "schema", "infer")


@pytest.mark.parametrize(
    ("damage", "settings", "facts"),
    [
        (remove("day_1"), ("input",), ["day_1"]),
        (remove("day_0"), ("input",), ["day_0"]),
        (shutil.rmtree, ("input",), []),
        (remove("day_0", "day_1", "day_2"), NO_DAYS, ["day_0"]),
        (lambda d: shutil.copy(d / "day_1", d / "day_1.tsv"), ("input",), ["day_1", "day_1.tsv"]),
        (remove("day_1", "day_2"), ("input", "split_fractions"), ["day_0"]),
        (lambda d: [f.rename(d / f"{f.name}.bak") for f in list(d.iterdir())], NO_DAYS, ["day_0"]),
        (lambda d: (d / "day_3").mkdir(), (), ["day_3"]),
        (
            lambda d: [(d / f"day_{i}").rename(d / "train.txt") for i in range(3)],
            NO_DAYS,
            ["train.txt"],
        ),
    ],
)
def test_folders_that_are_incomplete(tmp_path, damage, settings, facts):
    days = write_days(tmp_path / "days", rows=20)
    damage(days)
    with refusal(days, *facts, kind=PreprocError, settings=settings):
        run(days, tmp_path / "made")


def test_one_file_is_not_split_by_days(tmp_path):
    (tmp_path / "train.txt").write_bytes(good_text(200, seed=1))
    settings = ("input", "split_fractions", "preset", "schema", "infer")
    with refusal(tmp_path / "train.txt", kind=PreprocError, settings=settings):
        run(tmp_path / "train.txt", tmp_path / "made")


def test_outputs_that_must_not_be_written(tmp_path):
    days = write_days(tmp_path / "days", rows=20)
    (tmp_path / "file").write_text("keep me")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "thesis.txt").write_text("keep me")
    made, of_output = tmp_path / "made", ("output", "overwrite")
    for output, settings, fields, *facts in [
        (tmp_path / "file", ("output",), {}),
        (tmp_path / "folder", of_output, {}),
        (tmp_path / "folder", of_output, {"overwrite": True}, "manifest.json"),
        (days / "made", ("output", "input"), {}, days / "made"),
        (days, ("output", "input"), {}),
        (tmp_path, ("output", "input"), {}, days),
        (made, ("work_dir",), {"work_dir": made / "work"}, made / "work", "`output`"),
        (made, ("work_dir", "input"), {"work_dir": days / "work"}, days / "work"),
        (made, ("work_dir",), {"work_dir": tmp_path / "made.staging"}, tmp_path / "made.staging;"),
    ]:
        with refusal(*facts, kind=PreprocError, settings=settings):
            run(days, output, **fields)
    assert (tmp_path / "folder" / "thesis.txt").read_text() == "keep me"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["days", "file", "folder"]
    (tmp_path / "empty").mkdir()
    run(days, tmp_path / "empty", "reference")


def test_full_disk(tmp_path, monkeypatch):
    days = write_days(tmp_path / "days", rows=100)
    usage = shutil.disk_usage(tmp_path)._replace(free=10_000)
    monkeypatch.setattr(disk.shutil, "disk_usage", lambda folder: usage)
    with refusal(tmp_path, "9.8 KiB", kind=PreprocError):
        run(days, tmp_path / "made")
    left = tmp_path / "made.staging"
    for folder in (left, tmp_path / "work"):
        folder.mkdir()
        (folder / "lock").touch()
        (folder / "unit").write_bytes(bytes(10**6))
    run(days, tmp_path / "made", "reference")  # what the interrupted run took counts as free
    with (
        tmpfs(tmp_path / "small", "16k") as small,
        refusal(small, "9.8 KiB", kind=PreprocError),
    ):
        run(days, small / "made", work_dir=tmp_path / "work")


def test_the_disk_that_a_schema_needs(tmp_path, monkeypatch):
    """Numbers are float32, lists have offsets and weights, rows a group."""
    write_log(tmp_path, 3000, seed=1)
    made = prepare(tmp_path / "log.csv", write_schema(tmp_path), tmp_path / "made")
    size = sum(entry["bytes"] for name, entry in made.files.items() if name.endswith(".bin"))
    usage = shutil.disk_usage(tmp_path)._replace(free=int(0.9 * size))
    monkeypatch.setattr(disk.shutil, "disk_usage", lambda folder: usage)
    with refusal(tmp_path, format_bytes(usage.free), kind=PreprocError):
        prepare(tmp_path / "log.csv", write_schema(tmp_path), tmp_path / "again")


def test_memory_sizes():
    sizes = {"4GiB": 2**32, "512M": 2**29, "1.5GB": 1_500_000_000, " 100 kb ": 100_000, "7": 7}
    for text, size in sizes.items():
        assert parse_with_unit("memory_limit", text, "bytes") == size
    for text in ("", "GiB", "-1G", "4 Gibi", "1e9", "4,5G", "nan"):
        with refusal(repr(text), settings=("memory_limit",)):
            parse_with_unit("memory_limit", text, "bytes")
    assert [format_bytes(n) for n in (5, 2**20, 3 * 2**40)] == ["5 B", "1.0 MiB", "3.0 TiB"]
