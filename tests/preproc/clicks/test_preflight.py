# SPDX-License-Identifier: Apache-2.0
"""What stops a run before it starts, and what the message says."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from preproc.files import disk
from preproc.files.errors import PreprocError
from recsys.errors import UserError
from recsys.settings import parse_with_unit
from recsys.sizes import format_bytes
from tests.mounts import tmpfs
from tests.preproc.clicks.rows import good_text, run, write_days
from tests.preproc.clicks.schema_log import prepare, write_log, write_schema


def remove(name: str) -> Callable[[Path], None]:
    return lambda days: (days / name).unlink()


def test_folders_that_are_incomplete(tmp_path):
    cases: list[tuple[Callable[[Path], object], str]] = [
        (remove("day_1"), "missing: day_1"),
        (remove("day_0"), "missing: day_0"),
        (lambda d: shutil.rmtree(d), "no such file or folder"),
        (lambda d: [f.unlink() for f in d.iterdir()], "no day_0 ... day_N file"),
        (lambda d: shutil.copy(d / "day_1", d / "day_1.tsv"), "day 1 is there twice"),
        (lambda d: [remove(f"day_{i}")(d) for i in (1, 2)], "only day_0 is there"),
        (lambda d: [f.rename(d / f"{f.name}.bak") for f in list(d.iterdir())], "no day_0"),
        (lambda d: (d / "day_3").mkdir(), "day_3: is not a regular file"),
    ]
    for index, (damage, message) in enumerate(cases):
        days = write_days(tmp_path / f"days_{index}", rows=20)
        damage(days)
        with pytest.raises(PreprocError, match=message):
            run(days, tmp_path / "made")
    (tmp_path / "kaggle").mkdir()
    (tmp_path / "kaggle" / "train.txt").write_bytes(good_text(200, seed=1))
    with pytest.raises(PreprocError, match=r"Give the path of train\.txt itself"):
        run(tmp_path / "kaggle", tmp_path / "made")
    with pytest.raises(PreprocError, match="one file cannot be split by days"):
        run(tmp_path / "kaggle" / "train.txt", tmp_path / "made")


def test_outputs_that_must_not_be_written(tmp_path):
    days = write_days(tmp_path / "days", rows=20)
    (tmp_path / "file").write_text("keep me")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "thesis.txt").write_text("keep me")
    cases = {
        tmp_path / "file": "is a file",
        tmp_path / "folder": "already exists; add `overwrite`",
        days / "made": "lies inside `input`",
        days: "lies inside `input`",
        tmp_path: "contains `input`",
    }
    for output, message in cases.items():
        with pytest.raises(PreprocError, match=message):
            run(days, output)
    with pytest.raises(PreprocError, match=r"is not a dataset .* `overwrite` will not remove it"):
        run(days, tmp_path / "folder", overwrite=True)
    with pytest.raises(PreprocError, match=r"`work_dir` .* lies inside `output`"):
        run(days, tmp_path / "made", work_dir=tmp_path / "made" / "work")
    with pytest.raises(PreprocError, match=r"`work_dir` .* lies inside `input`"):
        run(days, tmp_path / "made", work_dir=days / "work")
    with pytest.raises(PreprocError, match=r"`work_dir` .* lies inside .*made\.staging; choose"):
        run(days, tmp_path / "made", work_dir=tmp_path / "made.staging")
    assert (tmp_path / "folder" / "thesis.txt").read_text() == "keep me"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["days", "file", "folder"]
    (tmp_path / "empty").mkdir()
    run(days, tmp_path / "empty", "reference")


def test_full_disk(tmp_path, monkeypatch):
    days = write_days(tmp_path / "days", rows=100)
    usage = shutil.disk_usage(tmp_path)._replace(free=10_000)
    monkeypatch.setattr(disk.shutil, "disk_usage", lambda folder: usage)
    with pytest.raises(PreprocError, match=r"about .* KiB are needed for 3.. rows, 9\.8 KiB are"):
        run(days, tmp_path / "made")
    left = tmp_path / "made.staging"
    for folder in (left, tmp_path / "work"):
        folder.mkdir()
        (folder / "lock").touch()
        (folder / "unit").write_bytes(bytes(10**6))
    run(days, tmp_path / "made", "reference")  # what the interrupted run took counts as free
    too_small = pytest.raises(PreprocError, match=r"small: about .* KiB are needed for 3")
    with tmpfs(tmp_path / "small", "16k") as small, too_small:
        run(days, small / "made", work_dir=tmp_path / "work")


def test_the_disk_that_a_schema_needs(tmp_path, monkeypatch):
    """Numbers are float32, lists have offsets and weights, rows a group."""
    write_log(tmp_path, 3000, seed=1)
    made = prepare(tmp_path / "log.csv", write_schema(tmp_path), tmp_path / "made")
    size = sum(entry["bytes"] for name, entry in made.files.items() if name.endswith(".bin"))
    usage = shutil.disk_usage(tmp_path)._replace(free=int(0.9 * size))
    monkeypatch.setattr(disk.shutil, "disk_usage", lambda folder: usage)
    with pytest.raises(PreprocError, match="are needed for"):
        prepare(tmp_path / "log.csv", write_schema(tmp_path), tmp_path / "again")


def test_memory_sizes():
    sizes = {"4GiB": 2**32, "512M": 2**29, "1.5GB": 1_500_000_000, " 100 kb ": 100_000, "7": 7}
    for text, size in sizes.items():
        assert parse_with_unit("memory_limit", text, "bytes") == size
    for text in ("", "GiB", "-1G", "4 Gibi", "1e9", "4,5G", "nan"):
        with pytest.raises(UserError, match=r"must be a number with a unit.*got"):
            parse_with_unit("memory_limit", text, "bytes")
    assert [format_bytes(n) for n in (5, 2**20, 3 * 2**40)] == ["5 B", "1.0 MiB", "3.0 TiB"]
