# SPDX-License-Identifier: Apache-2.0
"""Killed in any stage and followed by another command: the bytes of an undisturbed run."""

import dataclasses
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from preproc.clicks import __main__ as criteo_command
from recsys.data.manifest import Manifest
from tests import harness
from tests.preproc.clicks.rows import write_days
from tests.tools import needs

Settings = dict[str, object]

_UNLESS_BUILT = needs("compiled Criteo kernel")
_MARKS = {
    "native": [_UNLESS_BUILT],
    "spark": [_UNLESS_BUILT, needs("Spark")],
    "reference": [],
    "nvtabular": [needs("NVTabular")],
}

STAGES: dict[str, tuple[str, Settings]] = {
    "scan": (r"/scan/\w+/002_\d+\.json$", {}),
    "scanned": (r"/merge/\w+$", {}),
    "merge": (r"/merge/\w+/cat_13\.bin$", {}),
    "given": (r"/given/\w+/cat_13\.bin$", {"frequency_limit": None, "dictionaries": "first"}),
    "rows": (r"rows/\w+/(001|rows)\.json$", {}),
    "count": (r"/nvtabular_count/\w+/00000\.json$", {}),
    "ids": (r"dictionaries/\w+/cat_13\.bin$", {}),
    "encode": (r"/records/[\w]+\.json$", {}),
    "encoded given": (
        r"/dataset/manifest\.json$",
        {"frequency_limit": None, "dictionaries": "first"},
    ),
    "encode 2": (r"/records/001_\d+\.json$", {"dictionary_days": "train"}),
    "buckets": (r"/unit_000000\.bin$", {"shuffle_seed": 1}),
    "shuffle": (r"/bucket_0+\.json$", {"shuffle_seed": 1}),
    "parquet": (r"/parquet/test/part_00000\.parquet$", {"format": "parquet,split"}),
    "npy": (r"/npy/day_1_labels\.npy$", {"format": "npy,split"}),
    "wide": (r"/wide/validation_0\.json$", {"format": "parquet,split", "layout": "torchrec"}),
    "wide shuffled": (r"/wide/validation_0\.json$", {"layout": "torchrec", "shuffle_seed": 1}),
    "manifest": (r"/dataset/manifest\.json$", {"format": "npy,split"}),
    "publish": (r"/made$", {"format": "parquet,npy,split", "layout": "torchrec"}),
}
"""Path before whose rename or making a run is killed, and settings without which none is made."""

CHANGES: dict[str, Settings] = {
    "input": {"input": "b"},
    "format": {"format": "parquet"},
    "more formats": {"format": "split,parquet,npy"},
    "nvidia": {"layout": "nvidia"},
    "torchrec": {"layout": "torchrec"},
    "dictionaries": {"dictionaries": "second", "frequency_limit": None, "dictionary_days": None},
    "preset": {"preset": "kaggle", "dictionaries": None},
    "split": {"split_fractions": "0.5,0.2,0.3"},
    "order": {"shuffle_seed": 4},
}
"""Settings of the next command that differ."""

KILLS = {
    "native": {
        "scan": ("input", "preset", "split"),
        "merge": ("input", "dictionaries", "split"),
        "given": ("input", "dictionaries", "preset"),
        "encode": ("input", "torchrec", "order"),
        "encoded given": ("input", "dictionaries", "split"),
        "encode 2": ("split", "more formats"),
        "buckets": ("order", "input"),
        "shuffle": ("order", "format", "dictionaries"),
        "parquet": ("torchrec", "order", "input"),
        "npy": ("order", "split", "format"),
        "wide": ("format", "nvidia", "input", "split"),
        "wide shuffled": ("order", "format", "more formats"),
        "manifest": ("order", "format", "input"),
        "publish": ("nvidia", "format", "preset"),
    },
    "reference": {
        "npy": ("order", "input"),
        "wide": ("format", "split"),
        "manifest": ("format", "dictionaries"),
    },
    "spark": {
        "scanned": ("input", "split"),
        "given": ("input",),
        "npy": ("order", "preset"),
        "wide": ("format",),
    },
    "nvtabular": {
        "rows": ("input",),
        "count": ("split", "input"),
        "ids": ("dictionaries",),
        "encoded given": ("input", "dictionaries", "split"),
        "npy": ("order",),
        "wide": ("format",),
    },
}
"""Engine -> stage in which it is killed -> changes of the next commands."""

QUICK = {
    ("native", "encoded given", "input"),
    ("native", "npy", "order"),
    ("native", "wide", "format"),
    ("native", "manifest", "format"),
}
"""Those of the unit tier."""


def _cases() -> Iterator[object]:
    for engine, stages in KILLS.items():
        for stage, changes in stages.items():
            for change in changes:
                case = (engine, stage, change)
                marks = [*_MARKS[engine], *([] if case in QUICK else [pytest.mark.release])]
                yield pytest.param(*case, marks=marks, id="-".join(case))


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Inputs `a` and `b` of as many rows, datasets `first` and `second` with dictionaries."""
    folder = tmp_path_factory.mktemp("kills")
    write_days(folder / "a", rows=150)
    write_days(folder / "b", rows=150, seed=40)
    for name, limit in (("first", 3), ("second", 2)):
        prepare(folder, {"input": "a", "frequency_limit": limit, "output": name})
    return folder


@pytest.fixture(scope="module")
def undisturbed(folder):
    """Returns the dataset that a command makes; each is run once."""
    made: dict[str, Manifest] = {}

    def dataset(settings: Settings) -> Manifest:
        name = str(sorted(settings.items()))
        if name not in made:
            output = f"expected_{len(made)}"
            made[name] = prepare(folder, settings | {"output": output})
        return made[name]

    return dataset


def flags_of(folder: Path, settings: Mapping[str, object]) -> list[str]:
    """Spells settings as flags, names of folders as their paths."""
    folders = ("input", "output", "dictionaries", "work_dir")
    return ["--threads=1", "--progress=none"] + [
        f"--{name}={folder / str(value) if name in folders else value}"
        for name, value in settings.items()
        if value is not None
    ]


def prepare(folder: Path, settings: Mapping[str, object]) -> Manifest:
    """Runs the command in this process; returns the manifest after comparing it with the files."""
    assert criteo_command.main(["preproc.clicks", *flags_of(folder, settings)]) == 0
    dataset = folder / str(settings["output"])
    manifest = Manifest.load(dataset)
    assert Manifest.describe_files(dataset) == manifest.files
    return dataclasses.replace(manifest, engine={})


@pytest.mark.parametrize(("engine", "stage", "change"), list(_cases()))
def test_the_next_command_makes_what_it_would_make_alone(
    request, folder, undisturbed, tmp_path, engine, stage, change
):
    if engine == "spark":
        request.getfixturevalue("spark_session")
    pattern, needed = STAGES[stage]
    first = {"input": "a", "frequency_limit": 3} | needed
    second = first | CHANGES[change]
    assert second != first
    places = {"output": tmp_path / "made", "work_dir": tmp_path / "work"}
    places |= {"engine": engine} | ({"master": "local[2]"} if engine == "spark" else {})
    killed = ("-m", "tests.preproc.clicks.signal_at", "SIGKILL", pattern, "preproc.clicks")
    flags = flags_of(folder, first | places)
    harness.python(*killed, *flags, status=-signal.SIGKILL)
    assert not places["output"].exists()
    assert prepare(folder, second | places) == undisturbed(second)


@pytest.mark.release
@_UNLESS_BUILT
def test_a_kill_at_any_rename_or_removal_leaves_nothing_once_the_next_run_has_ended(tmp_path):
    """The next run finishes the dataset, or finds it and removes the folders of the killed one."""
    logs = write_days(tmp_path / "logs", days=2, rows=300)
    kills = 0
    while True:
        folder = tmp_path / f"killed_{kills}"
        folder.mkdir()
        command = (f"--input={logs}", f"--output={folder / 'made'}", "--progress=none")
        kills += 1
        killed = ("-m", "tests.killed_at", kills, "preproc.clicks", *command)
        if harness.python(*killed, status=None).returncode == 0:
            break
        again = harness.python("-m", "preproc.clicks", *command, status=None)
        assert again.returncode == 0 or "--overwrite" in again.stderr
        assert [path.name for path in folder.iterdir()] == ["made"], kills
    assert kills > 20
