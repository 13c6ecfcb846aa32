# SPDX-License-Identifier: Apache-2.0
"""A disk that is really full: one line that says so, nothing left that is in the way."""

from pathlib import Path

import pytest

from preproc.clicks.engines.nvtabular import run as nvtabular_criteo
from recsys.data.manifest import Manifest
from tests import harness
from tests.harness import assert_tells
from tests.mounts import tmpfs
from tests.preproc.clicks.rows import run, write_days
from tests.preproc.nvtabular import environment
from tests.preproc.programs import called
from tests.tools import needs

CASES = [
    ("native", "split", "3m"),
    ("native", "npy", "11m"),  # full while the arrays are written
    ("reference", "split", "3m"),
    pytest.param("spark", "split", "3m", marks=[needs("Spark"), pytest.mark.release]),
    pytest.param("nvtabular", "split", "3m", marks=needs("NVTabular")),
]


def days_of_short_rows(folder: Path) -> Path:
    """Days whose first rows are ten times as long as the others: the estimate is too low."""
    write_days(folder, rows=120)
    for day in sorted(folder.iterdir()):
        with day.open("ab") as file:
            file.write((b"0" + b"\t" * 39 + b"\n") * 20_000)
    return folder


@pytest.mark.parametrize(("engine", "form", "size"), CASES)
def test_full_disk_is_named_and_the_run_continues(
    request, monkeypatch, tmp_path, engine, form, size
):
    if engine == "nvtabular":
        process = request.getfixturevalue("nvtabular_process")
        environment.share(process, nvtabular_criteo, monkeypatch)
    days = days_of_short_rows(tmp_path / "days")
    flags = (f"--input={days}", f"--engine={engine}", f"--format={form}")
    with tmpfs(tmp_path / "disk", size) as disk:
        command = ("clicks", *flags, f"--output={disk / 'made'}")
        command += ("--master=local[1]",) if engine == "spark" else ()
        text = called(*command, status=2)
        errors = [line for line in text.splitlines() if line.startswith("error: ")]
        assert len(errors) == 1, text
        assert_tells(errors[0], disk, "--output", "--work_dir")
        assert not (disk / "made").exists()
        if engine == "native":
            harness.run("mount", "-o", "remount,size=64m", disk)
            called(*command)
            expected = run(days, tmp_path / "native", format=(form,))
            assert Manifest.load(disk / "made").files == expected.files
            assert [p.name for p in disk.iterdir()] == ["made"]


@pytest.mark.parametrize("name", ["generate_criteo", "generate_ratings", "movielens"])
def test_full_disk_of_the_other_programs(tmp_path, rough_calibration, name):
    with tmpfs(tmp_path / "disk", "1m") as disk:
        output = disk / "made"
        flags = {
            "generate_criteo": ("--rows=20000", "--days=2"),
            "generate_ratings": ("--users=20000", "--items=3000", "--interactions=200000"),
            "movielens": (f"--input={tmp_path / 'r.csv'}", "--min_item_count=0"),
        }[name]
        if name == "movielens":
            lines = "".join(f"{'u' * 9}{u},{i},5,{i}\n" for u in range(60_000) for i in range(5))
            (tmp_path / "r.csv").write_text("userId,movieId,rating,timestamp\n" + lines)
            (disk / "ballast").write_bytes(b"x" * 700_000)
        error = called(name, f"--output={output}", *flags, status=2).splitlines()[-1]
        assert error.startswith("error: ")
        assert_tells(error, disk, "--output")
        assert not [p for p in disk.rglob("*") if p.is_file() and p.name != "ballast"]
