# SPDX-License-Identifier: Apache-2.0
"""Saving in runs of the real program: kills, signals, disks, and run folders with a gap."""

import json
import os
import random
import re
import shlex
import shutil
import signal
import stat
import time
from pathlib import Path

import pytest

from tests import harness
from tests.checkpoints import assert_same, latest
from tests.dlrm.conftest import SMALL_MODEL, DlrmProgram
from tests.dlrm.networks import build
from tests.dlrm.nvidia_folder import write_nvidia_folder
from tests.harness import assert_tells
from tests.mounts import tmpfs


def command(dataset, folder, *arguments):
    return [
        "-m",
        "dlrm.scripts.main",
        f"--dataset={dataset}",
        f"--save_checkpoint_path={folder}",
        f"--log_path={folder}.json",
        "--num_threads=1",
        "--epochs=4",
        "--save_freq=5",
        "--print_freq=1",
        "--optimizer=rowwise_adagrad",
        "--dropout=0.1",
        "--reset_embeddings",
        *(["--shuffle_batch_order"] if dataset else []),
        *SMALL_MODEL,
        *arguments,
    ]


def wait_for_step(process, step):
    """Reads the output until a step is printed."""
    pattern = re.compile(r"Epoch:\[(\d+)/\d+\] \[(\d+)/(\d+)\]")

    def is_there(line):
        match = pattern.search(line)
        return match and int(match[1]) * int(match[3]) + int(match[2]) >= step

    harness.wait_for_line(process, is_there)


@pytest.mark.release
def test_killed_at_random_steps_and_resumed_gives_the_same_parameters(dataset, tmp_path):
    harness.forked(*command(dataset, tmp_path / "whole"))
    generator = random.Random(4)
    for step in sorted(generator.sample(range(3, 170), 3)):
        with harness.started_forked(*command(dataset, tmp_path / "killed", "--resume")) as process:
            wait_for_step(process, step)
            time.sleep(generator.random() * 0.02)  # also between steps, or inside a save
    harness.forked(*command(dataset, tmp_path / "killed", "--resume"))
    assert_same(tmp_path / "killed", tmp_path / "whole")


@pytest.mark.slow
def test_a_signal_saves_exits_zero_and_prints_how_to_resume(dataset, tmp_path):
    arguments = command(dataset, tmp_path / "run", "--save_freq=100000", "--epochs=2000")
    step = 0
    for number in (signal.SIGTERM, signal.SIGINT):
        with harness.started_forked(*arguments) as process:
            wait_for_step(process, step + 10)
            process.send_signal(number)
            rest = process.stdout.read()
            assert process.wait(harness.PATIENCE_S) == 0, rest
        assert number.name in rest
        saved = latest(tmp_path / "run").state["step"]
        assert saved >= step + 10
        step = saved
        _python, *arguments = shlex.split(rest.strip().splitlines()[-1])
        assert "--resume" in arguments
    again = harness.forked(*arguments, f"--max_steps={step + 3}")
    assert f"at step {step}" in again.stdout
    assert latest(tmp_path / "run").state["step"] == step + 3


LARGE = ("--dataset_type=synthetic_gpu", "--synthetic_dataset_table_sizes=2000000,3000000",
         "--synthetic_dataset_num_entries=1280", "--num_numerical_features=3")  # fmt: skip
"""A model whose checkpoint takes a while to write: 320 MB with the optimizer's state."""


def arguments(folder, log, *more):
    return command("", folder, "--epochs=1", "--save_freq=1000", f"--log_path={log}", *LARGE, *more)


@pytest.mark.slow
@pytest.mark.parametrize(
    "number",
    [
        signal.SIGTERM,
        pytest.param(signal.SIGINT, marks=pytest.mark.release),
        pytest.param(signal.SIGHUP, marks=pytest.mark.release),
    ],
)
def test_a_signal_in_the_last_save_loses_nothing(tmp_path, number):
    folder, log = tmp_path / "run", tmp_path / "log.json"
    run = arguments(folder, log, "--max_steps=2", "--test_after=9")
    with harness.started_forked(*run) as process:
        harness.wait_for(
            lambda: list(folder.glob("step_*.tmp/*")), "a checkpoint to be begun", process=process
        )
        process.send_signal(number)
        rest = process.stdout.read()
        assert process.wait(harness.PATIENCE_S) == 0, rest
    assert latest(folder).state["step"] == 2
    assert sorted(p.name for p in folder.iterdir()) == ["latest.json", "step_000000002"]
    assert_tells(rest, number.name, "step 2")


NOHUP = """
import runpy, signal, sys
signal.signal(signal.SIGHUP, signal.SIG_IGN)
del sys.argv[0]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""


def test_a_hangup_saves_as_sigterm_does_and_is_ignored_under_nohup(dataset, tmp_path):
    nohup = tmp_path / "nohup.py"
    nohup.write_text(NOHUP)
    for folder, is_ignored in ((tmp_path / "a", False), (tmp_path / "b", True)):
        run = command(dataset, folder, "--save_freq=100000")
        run = (nohup, *run[1:], "--max_steps=50") if is_ignored else run
        with harness.started_forked(*run) as process:
            wait_for_step(process, 5)
            process.send_signal(signal.SIGHUP)
            rest = process.stdout.read()
            assert process.wait(harness.PATIENCE_S) == 0, rest
        assert ("SIGHUP" in rest) != is_ignored
        assert (latest(folder).state["step"] == 50) == is_ignored


def test_a_closed_output_does_not_end_the_training(dataset, tmp_path):
    folder = tmp_path / "run"
    with harness.started_forked(*command(dataset, folder, "--max_steps=60")) as process:
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(harness.PATIENCE_S) == 0
    assert latest(folder).state["step"] == 60
    records = harness.read_log(Path(f"{folder}.json"))
    assert records[-1]["data"]["best_auc"] is not None


def test_two_runs_do_not_share_a_folder(dataset, tmp_path):
    folder = tmp_path / "run"
    with harness.started_forked(*command(dataset, folder, "--epochs=1000")) as process:
        wait_for_step(process, 3)
        for second in ((), ("--resume",)):
            refused = harness.forked(*command(dataset, folder, *second), status=2)
            assert_tells(refused.stderr, "--save_checkpoint_path", folder, f"process {process.pid}")
    assert (folder / ".run.lock").exists()  # of a killed run: nobody holds it
    harness.forked(*command(dataset, folder, "--resume", "--max_steps=6"))


def test_a_full_disk_is_named_and_nothing_is_left(tmp_path):
    log = tmp_path / "log.json"
    with tmpfs(tmp_path / "disk", "4m") as disk:
        run = arguments(disk / "run", log, "--max_steps=2")
        error = harness.forked(*run, status=2).stderr.strip().splitlines()[-1]
        assert error.startswith(f"error: {disk}/run")
        needed, free = re.findall(r"\d+(?:,\d+)+", error)
        assert int(needed.replace(",", "")) >= 160_000_000
        assert int(free.replace(",", "")) > 3_900_000
        assert list(disk.iterdir()) == []


def test_an_earlier_checkpoint_survives_a_full_disk(dataset, tmp_path):
    with tmpfs(tmp_path / "disk", "5m") as disk:
        run = command(dataset, disk / "run", "--save_freq=2", f"--log_path={tmp_path / 'log'}")
        harness.forked(*run, "--max_steps=2")
        (disk / "filler").write_bytes(bytes(os.statvfs(disk).f_bavail * 4096 - 1_000_000))
        error = harness.forked(*run, "--resume", status=2).stderr
        assert_tells(error, disk / "run" / "step_000000004")
        assert sorted(p.name for p in (disk / "run").iterdir()) == ["latest.json", "step_000000002"]
        (disk / "filler").unlink()
        harness.forked(*run, "--resume", "--max_steps=4")
        assert latest(disk / "run").state["step"] == 4


def test_leftovers_of_killed_runs_go_and_weights_have_the_rights_of_the_umask(
    program, dataset, tmp_path
):
    folder = tmp_path / "run"
    before = os.umask(0o027)
    try:
        program.train(dataset, folder, "--resume", "--max_steps=3", "--test_after=9")
        # As if killed between the two renames that replace a checkpoint.
        (folder / "step_000000003").rename(folder / "step_000000003.old")
        for name in ("step_000000003.tmp", "step_000000009.tmp"):
            (folder / name).mkdir()
            (folder / name / "mlp.safetensors").write_bytes(b"cut")
        program.train(dataset, folder, "--resume", "--max_steps=4", "--test_after=9")
    finally:
        os.umask(before)
    assert "at step 3" in program.stdout
    assert sorted(p.name for p in folder.iterdir()) == ["latest.json", "step_000000004"]
    modes = {stat.S_IMODE(file.stat().st_mode) for file in folder.glob("step_*/*")}
    assert modes == {0o640}


def test_a_folder_with_nvidias_checkpoint_is_refused(program, dataset, tmp_path):
    folder = tmp_path / "nvidia"
    write_nvidia_folder(folder, build())
    before = {p.name: p.read_bytes() for p in folder.iterdir()}
    program.train(dataset, folder, "--max_steps=2", status=2)
    assert "error: --save_checkpoint_path" in program.stderr
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == before


def test_another_evaluation_split_cannot_be_resumed(program, dataset, tmp_path):
    program.train(dataset, tmp_path / "run", "--resume", "--max_steps=2")
    other = ("--max_steps=4", "--eval_split=validation")
    program.train(dataset, tmp_path / "run", "--resume", *other, status=2)
    assert "--eval_split (was test, now validation)" in program.stderr


@pytest.mark.parametrize("setting", ["save_checkpoint_path", "log_path"])
def test_a_read_only_folder_is_found_before_the_model_is_built(dataset, tmp_path, setting):
    with tmpfs(tmp_path / "disk", "1m", "ro") as disk:
        run = ["-m", "dlrm.scripts.main", f"--dataset={dataset}", f"--{setting}={disk / 'x' / 'y'}",
               *SMALL_MODEL, "--embedding_type=multi_table", "--num_threads=1"]  # fmt: skip
        done = harness.forked(*run, status=2, folder=tmp_path)
    assert_tells(done.stderr, f"error: --{setting}", disk / "x" / "y")
    assert "Epoch" not in done.stdout


def kept(run):
    """Returns when each file of a run was written."""
    return {file: file.stat().st_mtime_ns for file in run.rglob("*")}


@pytest.mark.parametrize(
    ("ends", "goes_on", "why"),
    [
        ("--auc_threshold=0.01", "--auc_threshold=0.99", "threshold"),
        ("--max_steps=5", "--max_steps=8", "max_steps"),
        ("--epochs=1", "--epochs=2", "epochs"),
    ],
)
def test_a_run_that_has_ended_stays_as_it_is(program, dataset, tmp_path, ends, goes_on, why):
    run, common = tmp_path / "run", ("--test_freq=4", "--resume")
    program.train(dataset, run, *common, ends)
    ended, files = latest(run).state, kept(run)
    assert ended["ended"] == why
    for _ in range(2):
        program.train(dataset, run, *common, ends)
        assert kept(run) == files
    program.train(dataset, run, *common, goes_on)
    assert latest(run).state["step"] > ended["step"]


OLD, NEW = "step_000000002", "step_000000004"
POINTER = "latest.json"
TRAIN = ("--test_after=99", "--optimizer=rowwise_adagrad")


@pytest.fixture(scope="module")
def saved(tmp_path_factory, dataset):
    """The folder of a run with its best checkpoint, of step 2, and its latest one, of step 4."""
    folder = tmp_path_factory.mktemp("saved")
    program, run = DlrmProgram(folder), folder / "run"
    program.train(dataset, run, *TRAIN, "--max_steps=2")
    shutil.copytree(run / OLD, folder / OLD)
    program.train(dataset, run, *TRAIN, "--max_steps=4", "--resume")
    shutil.move(folder / OLD, run / OLD)
    (run / POINTER).write_text(json.dumps({"latest": NEW, "best": OLD}))
    return run


def write(text):
    return lambda run: (run / POINTER).write_text(text)


def remove(*names):
    def apply(run):
        for name in names:
            path = run / name
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    return apply


def empty_manifest_without_pointer(run):
    (run / NEW / "manifest.json").write_bytes(b"")
    (run / POINTER).unlink()


REFUSED = {  # damage, what the error names, the checkpoint that it offers
    "no pointer": (remove(POINTER), POINTER, [NEW]),
    "empty object": (write("{}"), POINTER, [NEW]),
    "best alone": (write(f'{{"best": "{OLD}"}}'), POINTER, [NEW]),
    "empty pointer": (write(""), POINTER, [NEW]),
    "list": (write("[]"), POINTER, [NEW]),
    "no latest": (remove(NEW), NEW, [OLD]),
    "no best": (remove(OLD), OLD, [NEW]),
    "no manifest": (remove(f"{NEW}/manifest.json"), f"{NEW}/manifest.json", [OLD]),
    "no tensors": (remove(f"{NEW}/mlp.safetensors"), f"{NEW}/mlp.safetensors", []),
    "no pointer, new one cut": (remove(POINTER, f"{NEW}/mlp.safetensors"), POINTER, [OLD]),
    "no pointer, new one empty": (empty_manifest_without_pointer, POINTER, [OLD]),
    "no pointer, none whole": (
        remove(POINTER, f"{NEW}/mlp.safetensors", f"{OLD}/manifest.json"), POINTER, [],
    ),
}  # fmt: skip


def killed_before_the_pointer(run):
    (run / POINTER).rename(run / (POINTER + ".tmp"))


def killed_before_a_later_pointer(run):
    killed_before_the_pointer(run)
    write(json.dumps({"latest": OLD, "best": OLD}))(run)


def killed_while_replacing(run):
    (run / NEW).rename(run / (NEW + ".old"))


RESUMED = (killed_before_the_pointer, killed_before_a_later_pointer, killed_while_replacing)


@pytest.fixture
def run(saved, tmp_path):
    """A copy of the folder."""
    return shutil.copytree(saved, tmp_path / "run")


def contents(run):
    return {p.relative_to(run): p.read_bytes() for p in run.rglob("*") if p.is_file()}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_missing_is_named_and_nothing_is_lost(run, program, dataset, case):
    damage, named, offered = REFUSED[case]
    damage(run)
    before = contents(run)
    program.train(dataset, run, *TRAIN, "--max_steps=6", "--resume", status=2)
    assert_tells(program.stderr, named, *(run / name for name in offered))
    assert re.findall(r'{"latest": "(\w+)"}', program.stderr) == offered
    assert contents(run) == before


def test_without_a_pointer_no_other_run_begins_and_the_remedy_works(run, program, dataset):
    (run / POINTER).unlink()
    before = contents(run)
    program.train(dataset, run, *TRAIN, "--max_steps=6", status=2)
    errors = [program.stderr]
    test = ("--mode=test", f"--dataset={dataset}", f"--load_checkpoint_path={run}")
    for error in (*errors, program.refused(*test)):
        (pointer,) = re.findall(r"\{.*\}", error)
        assert pointer == json.dumps({"latest": NEW})
        assert_tells(error, run / POINTER)
    assert contents(run) == before
    write(pointer)(run)
    program.train(dataset, run, *TRAIN, "--max_steps=6", "--resume")
    assert f"Resumed from {run / NEW} at step 4" in program.stdout


@pytest.mark.parametrize("kill", RESUMED)
def test_a_save_that_a_kill_left_half_done_is_completed(run, program, dataset, kill):
    kill(run)
    program.train(dataset, run, *TRAIN, "--max_steps=6", "--resume")
    assert f"Resumed from {run / NEW} at step 4" in program.stdout
    assert latest(run).state["step"] == 6
    assert sorted(p.name for p in run.iterdir()) == [POINTER, OLD, "step_000000006"]
