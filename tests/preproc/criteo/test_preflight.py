# SPDX-License-Identifier: Apache-2.0
"""What stops a run before it starts, and what the message says."""

import gzip
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from preproc.criteo import preflight as criteo_preflight
from preproc.criteo.engines.native.kernel import binding
from preproc.criteo.job import CriteoJob, semantics_of
from preproc.files import workspace
from preproc.files.errors import PreprocError, TooManyRejectedRowsError
from recsys.errors import UserError
from recsys.settings import parse_bytes
from recsys.sizes import format_bytes
from tests.preproc.criteo.rows import good_text, run, write_days

GOOD = good_text(200, seed=1)
HEADER = b"\t".join(
    [b"label", *(b"I%d" % i for i in range(1, 14)), *(b"C%d" % i for i in range(1, 27))]
)


def without_label(text: bytes) -> bytes:
    return b"\n".join(line[2:] for line in text.split(b"\n"))


FILES: dict[str, tuple[bytes, str]] = {
    "unlabelled": (without_label(GOOD), "39 tab-separated fields: looks like Kaggle test.txt"),
    "commas": (GOOD.replace(b"\t", b","), "40 comma-separated fields: .* convert them to tabs"),
    "semicolons": (GOOD.replace(b"\t", b";"), "separated by semicolons"),
    "header": (HEADER + b"\n" + GOOD, "begins with a header line"),
    "only a header": (HEADER + b"\n", "begins with a header line"),
    "prose": (b"once upon a time\n" * 50, "this is not a Criteo log"),
    "numbers": (b"1\t2\t3\n" * 500, "3 tab-separated fields: this is not a Criteo log"),
    "labels": (GOOD.replace(b"\n0", b"\n5").replace(b"\n1", b"\n6")[1:], r"40 fields as .*label"),
    "blank": (b"\n" * 300, "none of the first 100 rows is valid"),
    "zstd": (b"\x28\xb5\x2f\xfd" + bytes(100), "is zstd-compressed.*zstd -d"),
    "bzip2": (b"BZh9" + bytes(100), "is bzip2-compressed.*bunzip2"),
    "xz": (b"\xfd7zXZ\x00" + bytes(100), "is xz-compressed.*unxz"),
    "zip": (b"PK\x03\x04" + bytes(100), "is zip-compressed.*unzip"),
    "empty": (b"", "is empty"),
    "gzip of nothing": (gzip.compress(b""), "none of the first"),
    "damaged gzip": (gzip.compress(GOOD)[:50] + b"\xff" * 500, "gzip data are damaged"),
    "no line end": (b"0" * (2**20 + 2**19), "does not end within 512 KiB"),
}


@pytest.mark.parametrize("engine", ["native", "reference"])
@pytest.mark.parametrize("name", FILES)
def test_files_that_are_something_else(tmp_path, name, engine):
    text, message = FILES[name]
    days = write_days(tmp_path / "days", rows=20)
    (days / "day_1").write_bytes(text)
    with pytest.raises(PreprocError, match=message) as caught:
        run(days, tmp_path / "made", engine)
    assert "day_1" in str(caught.value)
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("engine", ["native", "reference"])
def test_cut_off_gzip(tmp_path, engine):
    """Only reading to the end finds it, so nothing of the dataset may be visible."""
    days = write_days(tmp_path / "days", rows=20)
    packed = gzip.compress(good_text(3000, seed=2))
    (days / "day_1").write_bytes(packed[: len(packed) // 2])
    with pytest.raises(PreprocError, match="day_1: the gzip data end early"):
        run(days, tmp_path / "made", engine)
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("engine", ["native", "reference"])
def test_endless_line_in_the_middle(tmp_path, engine):
    days = write_days(tmp_path / "days", rows=200)
    start = (days / "day_1").stat().st_size
    with (days / "day_1").open("ab") as file:
        file.write(b"0" * (2**20 + 1) + b"\n" + GOOD)
    with pytest.raises(PreprocError, match=f"day_1: the line at byte {start} is longer than 1 MiB"):
        run(days, tmp_path / "made", engine)


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
    (tmp_path / "kaggle" / "train.txt").write_bytes(GOOD)
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
    assert (tmp_path / "folder" / "thesis.txt").read_text() == "keep me"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["days", "file", "folder"]
    (tmp_path / "empty").mkdir()
    run(days, tmp_path / "empty", "reference")


def test_full_disk(tmp_path, monkeypatch):
    days = write_days(tmp_path / "days", rows=100)
    usage = shutil.disk_usage(tmp_path)._replace(free=10_000)
    monkeypatch.setattr(criteo_preflight.shutil, "disk_usage", lambda folder: usage)
    with pytest.raises(PreprocError, match=r"about .* KiB are needed for 3.. rows, 9\.8 KiB are"):
        run(days, tmp_path / "made")
    monkeypatch.setattr(workspace.Workspace, "used_bytes", lambda self: 10**9)
    run(days, tmp_path / "made", "reference")  # what the interrupted run took counts as free


def test_memory_sizes():
    sizes = {"4GiB": 2**32, "512M": 2**29, "1.5GB": 1_500_000_000, " 100 kb ": 100_000, "7": 7}
    for text, size in sizes.items():
        assert parse_bytes("memory_limit", text) == size
    for text in ("", "GiB", "-1G", "4 Gibi", "1e9", "4,5G", "nan"):
        with pytest.raises(UserError, match=r"must be a number with a unit.*got"):
            parse_bytes("memory_limit", text)
    assert [format_bytes(n) for n in (5, 2**20, 3 * 2**40)] == ["5 B", "1.0 MiB", "3.0 TiB"]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"engine": "hadoop"}, "`engine` must be one of native, .*; got 'hadoop'"),
        ({"format": ("csv",)}, "`format` must be .* split, parquet; got 'csv'"),
        ({"format": ()}, "`format` must be"),
        ({"format": ("split", "split")}, "`format` must be"),
        ({"threads": 0}, "`threads` must be at least 1"),
        ({"max_bad_fraction": 1.5}, "`max_bad_fraction` must lie in"),
        ({"max_bad_fraction": float("nan")}, "`max_bad_fraction` must lie in"),
    ],
)
def test_settings_without_a_meaning(fields, message):
    with pytest.raises(UserError, match=message):
        CriteoJob(input=Path("in"), output=Path("out"), semantics=semantics_of("dlrm"), **fields)


@pytest.mark.parametrize("engine", ["native", "reference"])
def test_bad_rows_above_the_limit(tmp_path, engine):
    if engine == "native" and not binding.is_built():
        pytest.skip("no C++ compiler")
    days = write_days(tmp_path / "days", rows=300)
    for day in (1, 2):
        lines = (days / f"day_{day}").read_bytes().split(b"\n")
        for i in range(4):
            lines[150 + 10 * i] = b"bad\trow %d of day %d \xff" % (i, day)
        (days / f"day_{day}").write_bytes(b"\n".join(lines))
    with pytest.raises(TooManyRejectedRowsError) as caught:
        run(days, tmp_path / "made", engine, max_bad_fraction=0.005)
    message = str(caught.value)
    shown = [line for line in message.splitlines() if line.startswith("  ")]
    assert [s.split(",")[0].strip() for s in shown] == ["day_1"] * 4 + ["day_2"]
    assert r"line 151" in shown[0]
    assert r"columns: bad\trow 0 of day 1 \xff" in shown[0]
    assert "8 bad rows" in message
    assert caught.value.exit_code == 3
    assert not (tmp_path / "made").exists()
    made = run(days, tmp_path / "made", engine, max_bad_fraction=0.01)
    assert made.rejected["columns"] == 8
    assert [s["rejected"] for s in made.source_files] == [0, 4, 4]
