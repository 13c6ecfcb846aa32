# SPDX-License-Identifier: Apache-2.0
"""Saving in runs of the real program: kills, signals, full and read-only disks, shared folders."""

import os
import random
import re
import shlex
import signal
import stat
import time
from functools import partial
from pathlib import Path

import pytest

from dlrm.model.weights import OpenedCheckpoint
from tests import harness
from tests.dlrm.conftest import SMALL_MODEL, assert_same_weights, latest
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
        "--shuffle_batch_order",
        "--reset_embeddings",
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
    assert_same_weights(tmp_path / "killed", tmp_path / "whole")


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
        assert f"{number.name}: stopped after step" in rest
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
    assert f"{number.name}: stopped after step 2. Continue with:" in rest


def ignore_hangups():
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


def test_a_hangup_saves_as_sigterm_does_and_is_ignored_under_nohup(dataset, tmp_path):
    for folder, prefix in ((tmp_path / "a", ()), (tmp_path / "b", ("--max_steps=150",))):
        run = command(dataset, folder, "--save_freq=100000", *prefix)
        nohup = partial(harness.started, preexec_fn=ignore_hangups)
        with (nohup if prefix else harness.started_forked)(*run) as process:
            wait_for_step(process, 5)
            process.send_signal(signal.SIGHUP)
            rest = process.stdout.read()
            assert process.wait(harness.PATIENCE_S) == 0, rest
        assert ("SIGHUP: stopped after step" in rest) != bool(prefix)
        assert (latest(folder).state["step"] == 150) == bool(prefix)


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
    layout = ("--checkpoint_format=nvidia",)
    for name, first, seconds in (
        ("run", (), ((), ("--resume",), layout)),
        ("nvidia", layout, (layout,)),
    ):
        folder = tmp_path / name
        with harness.started_forked(*command(dataset, folder, "--epochs=1000", *first)) as process:
            wait_for_step(process, 3)
            for second in seconds:
                refused = harness.forked(*command(dataset, folder, *second), status=2)
                assert re.search(
                    rf"--save_checkpoint_path: another run saves in .*process {process.pid} on",
                    refused.stderr,
                )
    assert (tmp_path / "run" / ".run.lock").exists()  # of a killed run: nobody holds it
    harness.forked(*command(dataset, tmp_path / "run", "--resume", "--max_steps=6"))


@pytest.mark.parametrize("layout", ["native", "nvidia"])
def test_a_full_disk_is_named_and_nothing_is_left(tmp_path, layout):
    log = tmp_path / "log.json"
    with tmpfs(tmp_path / "disk", "4m") as disk:
        run = arguments(disk / "run", log, f"--checkpoint_format={layout}", "--max_steps=2")
        error = harness.forked(*run, status=2).stderr.strip().splitlines()[-1]
        assert re.match(rf"error: {disk}/run.*: the disk is full \(.*\); a check", error), error
        needed, free = re.findall(r"([\d,]{5,}) (?:bytes|are)", error)
        assert int(needed.replace(",", "")) >= 160_000_000
        assert int(free.replace(",", "")) > 3_900_000
        assert list(disk.iterdir()) == []


def test_an_earlier_checkpoint_survives_a_full_disk(dataset, tmp_path):
    with tmpfs(tmp_path / "disk", "5m") as disk:
        run = command(dataset, disk / "run", "--save_freq=2", f"--log_path={tmp_path / 'log'}")
        harness.forked(*run, "--max_steps=2")
        (disk / "filler").write_bytes(bytes(os.statvfs(disk).f_bavail * 4096 - 1_000_000))
        error = harness.forked(*run, "--resume", status=2).stderr
        assert "step_000000004: the disk is full" in error
        assert sorted(p.name for p in (disk / "run").iterdir()) == ["latest.json", "step_000000002"]
        (disk / "filler").unlink()
        harness.forked(*run, "--resume", "--max_steps=4")
        assert latest(disk / "run").state["step"] == 4


def test_leftovers_of_killed_runs_go_and_weights_have_the_rights_of_the_umask(dataset, tmp_path):
    folder = tmp_path / "run"
    run = command(dataset, folder, "--resume")
    before = os.umask(0o027)
    try:
        harness.python(*run, "--max_steps=3")
        # As if killed between the two renames that replace a checkpoint.
        (folder / "step_000000003").rename(folder / "step_000000003.old")
        for name in ("step_000000003.tmp", "step_000000009.tmp"):
            (folder / name).mkdir()
            (folder / name / "mlp.safetensors").write_bytes(b"cut")
        assert "at step 3" in harness.python(*run, "--max_steps=4").stdout
    finally:
        os.umask(before)
    assert sorted(p.name for p in folder.iterdir()) == ["latest.json", "step_000000004"]
    modes = {stat.S_IMODE(file.stat().st_mode) for file in folder.glob("step_*/*")}
    assert modes == {0o640}


def test_nvidias_layout_is_written_onto_a_mount_point_and_here(dataset, tmp_path):
    with tmpfs(tmp_path / "disk", "20m") as disk:
        for folder, where in ((disk, disk), (tmp_path / "here", ".")):
            folder.mkdir(exist_ok=True)
            run = command(dataset, where, "--checkpoint_format=nvidia", "--max_steps=2",
                          f"--log_path={tmp_path / 'log'}")  # fmt: skip
            harness.forked(*run, folder=folder)
            assert OpenedCheckpoint.open(folder).step == 2
            assert not [p.name for p in folder.iterdir() if p.name.startswith(".")]


def test_a_folder_with_another_runs_checkpoint_is_refused(program, dataset, tmp_path):
    native, nvidia = tmp_path / "native", tmp_path / "nvidia"
    layout = "--checkpoint_format=nvidia"
    program.train(dataset, native, "--max_steps=2")
    program.train(dataset, nvidia, "--max_steps=2", layout)
    before = {p.name: p.read_bytes() for p in nvidia.iterdir()}
    for folder, more, message in (
        (nvidia, (layout,), "holds a checkpoint already"),
        (nvidia, (), "holds a checkpoint in NVIDIA's layout"),
        (native, (layout,), "holds latest.json"),
    ):
        program.train(dataset, folder, "--max_steps=2", *more, status=2)
        error = program.stderr
        assert re.search(f"error: --save_checkpoint_path: .*{message}", error), error
    assert {p.name: p.read_bytes() for p in nvidia.iterdir()} == before


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
    assert re.search(f"error: --{setting}.* cannot be written", done.stderr), done.stderr
    assert "Epoch" not in done.stdout
