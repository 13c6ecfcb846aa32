# SPDX-License-Identifier: Apache-2.0
"""Input that changes between two passes over it: noticed, and read anew by the next command."""

import os
import signal
from pathlib import Path

import pytest

from preproc.clicks.job import semantics_of
from recsys.data.manifest import Manifest
from tests import harness
from tests.preproc.clicks.rows import run, write_days
from tests.preproc.programs import called
from tests.tools import needs

KERNEL = needs("compiled Criteo kernel")
SPARK, NVTABULAR, RELEASE = needs("Spark"), needs("NVTabular"), pytest.mark.release
SCANNED = r"/merge/\w+$"
ON_SPARK = ("--engine=spark", "--master=local[2]")
CASES = [
    pytest.param(["--engine=native"], SCANNED, False, marks=[KERNEL]),
    pytest.param(["--engine=native"], SCANNED, True, marks=[KERNEL]),
    pytest.param(ON_SPARK, SCANNED, True, marks=[KERNEL, SPARK, RELEASE]),
    pytest.param(
        ["--engine=nvtabular"],
        r"/nvtabular_rows/\w+/000_00000\.parquet$",
        True,
        marks=[NVTABULAR, RELEASE],
    ),
]
"""Engine, a path made between two passes or before work is marked, and whether the time is kept."""


def change(path: Path, *, keep_time: bool) -> None:
    """Changes categories in the middle of a file, not its size, rows, first and last 64 KiB."""
    before, text = path.stat(), path.read_bytes()
    edited = text[70_000:80_000].replace(b"a", b"b")
    with path.open("r+b") as file:
        file.seek(70_000)
        file.write(edited)
    if keep_time:
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.read_bytes() != text


def is_stopped(process: int) -> bool:
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "T"


@pytest.mark.parametrize(("engine", "path", "keep_time"), CASES)
def test_a_change_during_the_run_is_noticed(tmp_path, engine, path, keep_time):
    days = write_days(tmp_path / "days", rows=700)
    words = (f"--input={days}", f"--output={tmp_path / 'made'}", "--threads=1", *engine)
    paused = ("-m", "tests.preproc.clicks.signal_at", "SIGSTOP", path, "preproc.clicks")
    with harness.started(*paused, *words) as process:
        harness.wait_for(lambda: is_stopped(process.pid), "the time between two passes")
        change(days / "day_0", keep_time=keep_time)
        process.send_signal(signal.SIGCONT)
        output = process.stdout.read()
        assert process.wait() == 2, output
    harness.assert_tells(output, days / "day_0")
    assert not (tmp_path / "made").exists()
    called("clicks", *words)
    made = Manifest.load(tmp_path / "made")
    assert Manifest.describe_files(tmp_path / "made") == made.files
    assert made.files == run(days, tmp_path / "alone", "reference").files


@pytest.mark.parametrize("flag", ["--threads=1", "--frequency_limit=3"])
@KERNEL
def test_an_input_that_is_mended_after_a_kill_is_read_anew(tmp_path, flag):
    """As `cp -p` over the file does: same size, times of modification and inode."""
    days = write_days(tmp_path / "days", rows=700)
    words = ("preproc.clicks", f"--input={days}", f"--output={tmp_path / 'made'}")
    killed = ("-m", "tests.preproc.clicks.signal_at", "SIGKILL", SCANNED, *words, "--threads=1")
    harness.python(*killed, status=-signal.SIGKILL)
    assert list((tmp_path / "made.work" / "scan").rglob("*.json"))
    change(days / "day_0", keep_time=True)
    called("clicks", *words[1:], flag)
    limit = {"frequency_limit": 3} if "limit" in flag else {}
    fresh = run(days, tmp_path / "fresh", semantics=semantics_of("dlrm", limit))
    assert Manifest.load(tmp_path / "made").files == fresh.files
