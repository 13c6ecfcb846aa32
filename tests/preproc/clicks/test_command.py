# SPDX-License-Identifier: Apache-2.0
"""The command line and the shell script: flags, exit statuses, output."""

import json
import os
import sys
from pathlib import Path

import pytest

from preproc.clicks import __main__ as clicks
from preproc.clicks.job import PRESETS, semantics_of
from recsys.data import parquet
from recsys.data.manifest import Manifest
from recsys.data.verify.run import verify
from tests import harness
from tests.harness import assert_tells
from tests.preproc.clicks.rows import good_text, run, write_days
from tests.preproc.programs import called

EVERY_FLAG = """
--input=in --output=out --preset=mlperf --engine=reference --format=parquet,split
--memory_limit=1GiB --threads=3 --max_bad_fraction=0.5 --progress=json --overwrite --work_dir=work
--numerical_offset=4 --numerical_min=-2 --numerical_missing=output_zero --frequency_limit=7
--dictionary_days=train --category_modulus=none --last_day=validation_test
--last_day_rounding=floor
"""
SCRIPT = harness.REPOSITORY / "preproc" / "prepare_dataset.sh"


def call(*arguments: object, status: int = 0) -> str:
    return called("clicks", *arguments, status=status)


def test_every_setting_is_a_flag(tmp_path):
    values = clicks.define_flags()
    values(["criteo", *EVERY_FLAG.split()])
    job = clicks.job_from_flags(values)
    assert (job.input, job.output, job.work_dir) == (Path("in"), Path("out"), Path("work"))
    assert (job.preset, job.engine, job.format) == ("mlperf", "reference", ("parquet", "split"))
    assert (job.memory_limit, job.threads, job.max_bad_fraction) == (2**30, 3, 0.5)
    assert (job.progress, job.overwrite) == ("json", True)
    semantics = job.semantics
    assert (semantics.split_rows, semantics.split_days) == (None, None)
    assert semantics.category_modulus is None
    assert (semantics.numerical_offset, semantics.numerical_min) == (4, -2)
    assert (semantics.frequency_limit, semantics.dictionary_days) == (7, "train")
    assert (semantics.last_day, semantics.last_day_rounding) == ("validation_test", "floor")
    assert semantics.numerical_missing == "output_zero"


def test_a_given_split_replaces_that_of_the_preset_and_no_other_one():
    values = clicks.define_flags()
    values(["criteo", "--input=in", "--output=out", "--preset=kaggle", "--split_rows=20,-1,5"])
    semantics = clicks.job_from_flags(values).semantics
    assert (semantics.split_fractions, semantics.split_rows) == (None, (20, -1, 5))
    values = clicks.define_flags()
    values(["criteo", "--input=in", "--output=out", "--split_fractions=0.5,1/4,1/4"])
    assert clicks.job_from_flags(values).semantics.split_fractions == (0.5, 0.25, 0.25)
    both = "--split_days=1,1,-1", "--split_fractions=.8,.1,.1"
    assert_tells(
        call("--input=in", "--output=out", *both, status=2), "--split_fractions", "--split_days"
    )


@pytest.mark.parametrize("preset", PRESETS.names())
def test_preset_alone_gives_its_semantics(preset):
    values = clicks.define_flags()
    values(["criteo", "--input=in", "--output=out", f"--preset={preset}"])
    job = clicks.job_from_flags(values)
    assert job.semantics == semantics_of(preset)


@pytest.mark.parametrize(
    ("flag", "facts"),
    [
        ("--preset=dlrm2", ["dlrm2", "dlrm", "kaggle"]),
        ("--engine=hadoop", ["hadoop", "native", "reference", "spark"]),
        ("--layout=wide", ["wide", "nvidia", "torchrec"]),
        ("--format=csv", ["csv", "split", "parquet", "npy"]),
        ("--format=", ["''"]),
        ("--format=split,split", ["split,split"]),
        ("--max_bad_fraction=1.5", ["[0, 1]", 1.5]),
        ("--max_bad_fraction=nan", ["nan"]),
        ("--shuffle_seed=-1", [-1]),
        (f"--shuffle_seed={2**64}", [2**64]),
        ("--shuffle_seed=one", ["one"]),
        ("--memory_limit=lots", ["lots"]),
        ("--progress=loud", ["loud", "json"]),
        ("--frequency_limit=many", ["many"]),
        ("--frequency_limit=-1", [-1]),
        (f"--frequency_limit={2**64 + 1}", [2**64, 2**64 + 1]),
        (f"--numerical_offset={2**64 + 2}", ["32-bit", 2**64 + 2]),
        (f"--numerical_min={-(2**31) - 1}", ["32-bit", -(2**31) - 1]),
        ("--numerical_min=-9", ["-9 + 2"]),
        ("--split_fractions=0.5,0.5", ["0.5,0.5"]),
        ("--split_fractions=a,b,c", ["a,b,c"]),
        ("--split_fractions=1/0,0,0", ["1/0,0,0"]),
        ("--split_fractions=1e999,0,0", ["[0, 1]", "inf,0.0,0.0"]),
        ("--split_fractions=1e9999999,0,0", ["[0, 1]", "inf,0.0,0.0"]),
        (f"--split_fractions={10**400}/1,0,0", []),
        ("--split_fractions=0.5,0.5,0.5", ["[0, 1]", "0.5,0.5,0.5"]),
        ("--split_rows=1,2", ["1,2"]),
        ("--split_rows=a,b,c", ["95000,5000,-1", "a,b,c"]),
        ("--split_rows=-1,5,-1", ["-1,5,-1"]),
        ("--split_rows=1,-2,5", ["1,-2,5"]),
        ("--split_days=2,2,-1", ["2,2,-1", 4, 3]),
        ("--split_days=1,0,0", ["1,0,0", 1, 3]),
        ("--category_modulus=0", ["[1, 2**32]", 0]),
        ("--last_day=never", ["never", "test_validation", "validation_test"]),
        ("--threads=0", [1, 0]),
        ("--threads=two", ["two"]),
        ("--no_such_flag", []),
        ("stray", []),
        ("--input=", []),
    ],
)
def test_bad_flags_end_with_status_2_and_one_message(days, tmp_path, flag, facts):
    error = call(f"--input={days}", f"--output={tmp_path / 'made'}", flag, status=2)
    assert error.startswith("error: ")
    assert flag.partition("=")[0].removeprefix("--") in error
    assert_tells(error, *facts)
    assert list(tmp_path.iterdir()) == []


def test_a_run_and_its_status(tmp_path, capsys):
    source = tmp_path / "train.txt"
    source.write_bytes(good_text(500, seed=4) + b"bad\n")
    arguments = [f"--input={source}", f"--output={tmp_path / 'made'}", "--preset=kaggle"]
    error = call(*arguments, "--progress=none", status=3)
    assert_tells(error, 1, "--max_bad_fraction", 0.0001)
    said = call(*arguments, "--max_bad_fraction=0.01", "--progress=json")
    assert capsys.readouterr().out == f"{tmp_path / 'made'}\n"
    *stages, summary = (json.loads(line) for line in said.splitlines())
    if "stage" in stages[0]:
        assert [s["stage"] for s in stages] == ["scan", "merge", "encode", "finish"]
    manifest = Manifest.load(tmp_path / "made")
    assert manifest.semantics["preset"] == "kaggle"
    assert manifest.rows == {"train": 428, "validation": 36, "test": 36}
    assert manifest.rejected["columns"] == 1
    for split, rows in manifest.rows.items():
        clicks = f"{manifest.positives[split] / rows:.1%}"
        assert_tells(summary["message"], f"{split} {rows}", clicks)
    assert_tells(call(*arguments, status=2), tmp_path / "made", "--overwrite")


@pytest.mark.parametrize(
    ("days", "rows", "most", "flags"),
    [
        (130, 2, 125, ()),
        (75, 2, 220, ("--format=npy",)),
        (2, 400, 220, ("--format=parquet", "--threads=16")),
    ],
    ids=["units", "arrays", "parts"],
)
def test_more_days_than_open_files(tmp_path, monkeypatch, days, rows, most, flags):
    monkeypatch.setattr(parquet, "PART_ROWS", 8)
    text = good_text(rows, seed=1)
    (tmp_path / "days").mkdir()
    for day in range(days):
        (tmp_path / "days" / f"day_{day}").write_bytes(text)
    with harness.few_descriptors(most):
        call(f"--input={tmp_path / 'days'}", f"--output={tmp_path / 'made'}", *flags)
        assert verify(tmp_path / "made")[0].problems == []


def test_interrupt_ends_with_status_130(monkeypatch):
    def interrupt(job: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(clicks.clicks_pipeline, "prepare", interrupt)
    call("--input=in", "--output=out", status=130)


def test_without_the_kernel_the_reference_engine_works(tmp_path, monkeypatch):
    days = write_days(tmp_path / "days", rows=100)
    expected = run(days, tmp_path / "expected")
    monkeypatch.setattr("preproc.clicks.kernel.binding.is_built", lambda: False)
    said = call(f"--input={days}", f"--output={tmp_path / 'made'}")
    assert said.count("make build") == 1
    made = Manifest.load(tmp_path / "made")
    assert made.files == expected.files
    assert made.engine["name"] == "reference"


def test_help_tells_the_values_of_the_presets(capsys):
    call("--help")
    text = " ".join(capsys.readouterr().out.split())
    assert_tells(text, "dlrm 15, kaggle 4, mlperf 0")


def test_pyarrow_is_imported_only_where_it_is_used():
    code = "import sys, preproc.clicks.__main__; print('pyarrow' in sys.modules)"
    assert harness.python("-c", code).stdout == "False\n"


def shell(folder: Path, *arguments: str, status: int = 0, **environment: str) -> str:
    """Calls the script in a folder; returns its errors."""
    environment = {"RECIPES_PYTHON": sys.executable} | environment
    return harness.run(SCRIPT, *arguments, folder=folder, status=status, **environment).stderr


def test_script_makes_a_dataset_of_relative_paths(tmp_path):
    write_days(tmp_path / "days", rows=100)
    paths = {"INPUT_PATH": "days", "OUTPUT_PATH": "made"}
    shell(tmp_path, "3", "CPU", "native", "--format=split,parquet", **paths)
    manifest = Manifest.load(tmp_path / "made")
    assert manifest.semantics["frequency_limit"] == 3
    assert (tmp_path / "made" / "parquet" / "train" / "part_00000.parquet").is_file()
    assert_tells(shell(tmp_path, status=2, **paths), "made", "--overwrite")
    shell(tmp_path, "--overwrite", **paths)
    assert Manifest.load(tmp_path / "made").semantics["frequency_limit"] == 15


def test_script_takes_no_python_that_was_named_for_something_else(tmp_path):
    """`make test PYTHON=...` names the Python that environments are made from."""
    write_days(tmp_path / "days", rows=60)
    paths = {"INPUT_PATH": "days", "OUTPUT_PATH": "made"}
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # where there is no .venv
    shell(tmp_path, **paths, PYTHON="/bin/false", PATH=path, RECIPES_PYTHON="")
    assert Manifest.load(tmp_path / "made").rows
    shell(tmp_path, "--overwrite", **paths, RECIPES_PYTHON="/nowhere/python", status=127)


def test_script_works_in_the_folder_of_its_caller(tmp_path):
    """That stays the same folder, and no module is taken from it."""
    write_days(tmp_path / "days", rows=60)
    (tmp_path / "here").mkdir()
    (tmp_path / "numpy.py").write_text("raise SystemExit(9)\n")
    python = os.path.relpath(sys.executable, tmp_path)
    paths = {"INPUT_PATH": "days", "OUTPUT_PATH": "made", "RECIPES_PYTHON": python}
    shell(tmp_path, **paths)
    inode = (tmp_path / "here").stat().st_ino
    for flags in ((), ("--overwrite",)):
        shell(tmp_path / "here", *flags, INPUT_PATH="../days", OUTPUT_PATH=".")
        assert (tmp_path / "here").stat().st_ino == inode
        assert Manifest.load(tmp_path / "here").files == Manifest.load(tmp_path / "made").files


@pytest.mark.parametrize(
    ("arguments", "facts"),
    [
        (("fifteen",), ["fifteen"]),
        (("15", "TPU"), ["TPU", "CPU", "GPU"]),
        (("15", "GPU"), ["native", "CPU", "NVTabular"]),
        (("15", "CPU", "spork"), ["spork", "native"]),
        ((), ["/data/dlrm/criteo"]),
    ],
)
def test_script_says_what_is_wrong(tmp_path, arguments, facts):
    if not arguments and Path("/data/dlrm/criteo").exists():
        return
    paths = {} if arguments else {"OUTPUT_PATH": "made"}
    assert_tells(shell(tmp_path, *arguments, status=2, **paths), *facts)
