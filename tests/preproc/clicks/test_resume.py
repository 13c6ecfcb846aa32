# SPDX-License-Identifier: Apache-2.0
"""Interrupted runs continue, changed settings redo only what they touch, nothing old is lost."""

import dataclasses
import fcntl
import random
import shutil
import time
from pathlib import Path

import pytest

from preproc.clicks import dictionaries, finish, shuffle
from preproc.clicks.engines.native import encode as native_encode
from preproc.clicks.engines.native import merge as native_merge
from preproc.clicks.engines.native import scan as native_scan
from preproc.clicks.engines.native.units import NativeSettings
from preproc.clicks.job import semantics_of
from preproc.clicks.layouts import parquet as criteo_parquet
from preproc.files import output as dataset_output
from preproc.files import workspace
from preproc.files.errors import PreprocError, TooManyRejectedRowsError
from recsys.data.manifest import Manifest
from tests import harness
from tests.harness import assert_tells, refusal
from tests.preproc.clicks.rows import run, stopped, write_days
from tests.preproc.programs import called
from tests.tools import needs

pytestmark = needs("compiled Criteo kernel")

BOTH = ("split", "parquet")
SMALL_UNITS = NativeSettings(unit_bytes=40_000)

CHILD = """
import sys
from pathlib import Path
from preproc.clicks import shuffle as shuffle_columns
from preproc.clicks.rules import (ClicksSemantics)
from preproc.clicks.engines.native.units import NativeSettings
from tests.preproc.clicks.rows import run
shuffle_columns.LEAST_UNIT_ROWS, shuffle_columns._READ_ROWS = 512, 1
shuffled = {"semantics": ClicksSemantics(shuffle_seed=3), "format": ("split", "parquet")}
small_units = NativeSettings(unit_bytes=40_000)
run(Path(sys.argv[1]), Path(sys.argv[2]), settings=small_units, **shuffled)
"""


@pytest.fixture
def work(monkeypatch) -> dict[str, int]:
    """Counts the units that each stage works on."""
    counts = {"scan": 0, "merge": 0, "encode": 0, "parquet": 0}

    def count(module: object, name: str, stage: str) -> None:
        original = getattr(module, name)

        def counted(*args: object, **kwargs: object) -> object:
            counts[stage] += 1
            return original(*args, **kwargs)

        monkeypatch.setattr(module, name, counted)

    count(native_scan, "read_unit", "scan")
    count(native_merge.binding, "merge_runs", "merge")
    count(native_encode, "read_unit", "encode")
    count(criteo_parquet.parquet, "write_parquet_part", "parquet")
    return counts


def test_changed_settings_redo_only_what_they_touch(days, tmp_path, work):
    base = semantics_of("dlrm")

    def make(name: str, **fields: object) -> dict[str, int]:
        before = dict(work)
        run(days, tmp_path / name, settings=SMALL_UNITS, work_dir=tmp_path / "work", **fields)
        return {stage: work[stage] - before[stage] for stage in work}

    first = make("a")
    units = first["scan"]
    assert units > 6
    assert first == {"scan": units, "merge": 26, "encode": units, "parquet": 0}
    assert make("b") == {"scan": 0, "merge": 0, "encode": units, "parquet": 0}
    rare = dataclasses.replace(base, frequency_limit=3)
    assert make("c", semantics=rare) == {"scan": 0, "merge": 26, "encode": units, "parquet": 0}
    both = make("d", format=("split", "parquet"))
    assert both == {"scan": 0, "merge": 0, "encode": units, "parquet": 3}
    shifted = dataclasses.replace(base, numerical_offset=3)
    assert make("e", semantics=shifted)["merge"] == 0
    train = dataclasses.replace(base, dictionary_days="train")
    assert make("f", semantics=train) == {"scan": 0, "merge": 26, "encode": units, "parquet": 0}
    modulus = dataclasses.replace(base, category_modulus=1000)
    assert make("g", semantics=modulus)["scan"] == units
    # The limit counts what this test process holds already, so it has to leave room for that.
    assert make("h", threads=1, memory_limit=2**34)["scan"] == 0
    # Each equals what a run of its own makes.
    for name, semantics in (("c", rare), ("e", shifted), ("f", train), ("g", modulus)):
        alone = run(days, tmp_path / f"{name}_alone", semantics=semantics)
        assert Manifest.load(tmp_path / name).files == alone.files


def test_failed_run_continues(days, tmp_path, work):
    expected = run(days, tmp_path / "expected", settings=SMALL_UNITS)
    units = work["scan"]
    with stopped(native_encode, "read_unit", after=units // 2):
        run(days, tmp_path / "made", settings=SMALL_UNITS, threads=1)
    assert not (tmp_path / "made").exists()
    before = dict(work)
    made = run(days, tmp_path / "made", settings=SMALL_UNITS)
    assert work["scan"] == before["scan"]
    assert 0 < work["encode"] - before["encode"] <= units - units // 2
    assert made.files == expected.files
    assert sorted(p.name for p in tmp_path.iterdir()) == ["expected", "made"]


def fields(
    seed: int | None, formats: tuple[str, ...] = BOTH, layout: str = "nvidia"
) -> dict[str, object]:
    semantics = dataclasses.replace(semantics_of("dlrm"), frequency_limit=3, shuffle_seed=seed)
    return {"semantics": semantics, "format": formats, "layout": layout}


PUBLISH = (workspace.Workspace, "publish")


@pytest.mark.parametrize(
    ("where", "interrupted", "last"),
    [
        ((finish, "link_files"), [fields(1, ("split",))], fields(2, ("split",))),
        (PUBLISH, [fields(None), fields(4)], fields(3)),
        (
            PUBLISH,
            [fields(1, ("parquet",)), fields(1, BOTH, "torchrec")],
            fields(1, BOTH, "torchrec"),
        ),
        (PUBLISH, [fields(1, BOTH, "torchrec")], fields(1, ("parquet",))),
    ],
)
def test_work_of_other_settings_is_not_taken(days, tmp_path, monkeypatch, where, interrupted, last):
    monkeypatch.setattr(shuffle, "LEAST_UNIT_ROWS", 128)
    for other in interrupted:
        with stopped(*where):
            run(days, tmp_path / "made", **other)
    made = run(days, tmp_path / "made", **last)
    assert made.files == run(days, tmp_path / "expected", **last).files


@pytest.mark.release
def test_killed_at_any_moment(tmp_path):
    """kill -9 at random moments, each continued: always the bytes of an undisturbed run."""
    days = write_days(tmp_path / "days", rows=1500)

    def ends(output: Path, seconds: float | None) -> bool:
        return harness.ends_within(seconds, "-c", CHILD, days, output)

    started = time.monotonic()
    assert ends(tmp_path / "expected", None)
    duration = time.monotonic() - started
    expected = Manifest.load(tmp_path / "expected")
    rng = random.Random(20)
    kills = 0
    while kills < 6:
        output = tmp_path / f"made_{kills}"
        while not ends(output, rng.uniform(0.3, 1.0) * duration):
            kills += 1
            duration *= 1.1  # the machine may have become busy
            if output.exists():  # killed after the rename, while the work folder was removed
                break
        made = Manifest.load(output)
        assert made == expected
        # The manifest may promise what the files do not hold.
        assert Manifest.describe_files(output) == expected.files


@pytest.mark.parametrize("can_swap", [True, False])
def test_overwrite_replaces_at_the_end(tmp_path, monkeypatch, can_swap):
    if not can_swap:
        monkeypatch.setattr(dataset_output, "_exchange", lambda first, second: False)
    days = write_days(tmp_path / "days", rows=100)
    first = run(days, tmp_path / "made")
    other = write_days(tmp_path / "other", rows=150, seed=9)
    with refusal(kind=PreprocError, settings=("output", "overwrite")):
        run(other, tmp_path / "made")
    with stopped(dictionaries.Dictionaries, "copy_to"):
        run(other, tmp_path / "made", overwrite=True)
    assert Manifest.load(tmp_path / "made") == first
    assert Manifest.describe_files(tmp_path / "made") == first.files
    second = run(other, tmp_path / "made", overwrite=True)
    assert Manifest.describe_files(tmp_path / "made") == second.files != first.files
    assert sorted(p.name for p in tmp_path.iterdir()) == ["days", "made", "other"]


def test_two_runs_do_not_meet(days, tmp_path):
    with (
        workspace.Workspace(tmp_path / "made", None).locked(),
        refusal(tmp_path / "made.work", kind=PreprocError),
    ):
        run(days, tmp_path / "made")


def test_a_file_system_without_locks(days, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(fcntl, "flock", harness.no_locks)
    run(days, tmp_path / "made", "reference")
    assert_tells(caplog.text, tmp_path / "made.staging", "No locks available")


def test_a_folder_removed_while_it_is_locked_is_made_again(tmp_path, monkeypatch):
    """The run that had it ends between the opening of its lock and the locking."""
    flock = fcntl.flock

    def flock_late(descriptor, kind):
        if own.staging.exists():
            monkeypatch.undo()
            shutil.rmtree(own.staging)
        flock(descriptor, kind)

    own, other = (workspace.Workspace(tmp_path / "made", tmp_path / name) for name in "ab")
    monkeypatch.setattr(fcntl, "flock", flock_late)
    with own.locked(), refusal(own.staging, kind=PreprocError), other.locked():
        pass


def test_allowing_more_bad_rows_keeps_the_scan(tmp_path, work):
    days = write_days(tmp_path / "days", rows=300)
    text = (days / "day_2").read_bytes().split(b"\n")
    text[50] = b"bad row"
    (days / "day_2").write_bytes(b"\n".join(text))
    with pytest.raises(TooManyRejectedRowsError):
        run(days, tmp_path / "made", max_bad_fraction=1e-4, threads=1)
    assert not (tmp_path / "made").exists()
    scanned = work["scan"]
    made = run(days, tmp_path / "made", max_bad_fraction=0.01)
    assert work["scan"] == scanned
    assert made.rejected["columns"] == 1


def test_folders_that_cannot_be_made(days, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    with refusal(blocked, "Not a directory", kind=PreprocError):
        run(days, blocked / "made")
    assert blocked.read_text() == ""


def test_a_run_that_did_nothing_leaves_nothing(days, tmp_path):
    """An engine that is not installed is known when the work folders are there already."""
    missing = tmp_path / "none" / "python"
    paths = (f"--input={days}", f"--output={tmp_path / 'made'}", f"--nvtabular_python={missing}")
    error = called("clicks", "--engine=nvtabular", *paths, status=2)
    assert_tells(error, missing, "--nvtabular_python")
    assert list(tmp_path.iterdir()) == []
