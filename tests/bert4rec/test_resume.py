# SPDX-License-Identifier: Apache-2.0
"""A run that is interrupted and continued arrives where an uninterrupted one does, bit for bit."""

import itertools
import os
import shutil
import signal

import pytest
import torch

from bert4rec.train.step import Bert4RecTrainStep
from tests.bert4rec.conftest import SMALL_MODEL, write_other_dataset
from tests.checkpoints import assert_same, latest, rewrite
from tests.harness import assert_tells

STEPS_PER_EPOCH = 12


def settings(dataset, *more):
    return (
        f"--dataset_path={dataset}",
        "--windows=random",
        "--dupe_factor=3",
        "--num_epochs=3",
        "--lr_schedule=linear",
        "--warmup_steps=5",
        "--clip_norm=1",
        "--weight_decay=0.01",
        "--dropout=0.3",
        "--attention_dropout=0.2",
        *more,
    )


def signal_at_step(number, which, monkeypatch):
    """Sends this process a signal during a step of training."""
    plain, calls = Bert4RecTrainStep.__call__, itertools.count(1)

    def interrupted(step, batch, lr):
        if next(calls) == number:
            os.kill(os.getpid(), which)
        return plain(step, batch, lr)

    monkeypatch.setattr(Bert4RecTrainStep, "__call__", interrupted)


@pytest.mark.parametrize(
    "more",
    [
        "--objective=cloze",
        "--objective=hybrid",
        "--loss=sampled --num_negatives=30 --head=tied",
        "--loss=gbce --num_negatives=30 --head=tied",
    ],
)
def test_a_run_in_parts_equals_the_whole_run(program, dataset, tmp_path, more):
    # The end of a line or cosine is that of the whole run, so parts end by max_steps without one.
    common = settings(dataset, "--objective=causal", *more.split(), "--lr_schedule=step",
                      "--gamma=0.5", "--decay_step=1")  # fmt: skip
    program(*common, f"--export_root={tmp_path / 'whole'}")
    for stop in (5, STEPS_PER_EPOCH, 20):
        program(*common, f"--export_root={tmp_path / 'parts'}", f"--max_steps={stop}", "--resume")
    program(*common, f"--export_root={tmp_path / 'parts'}", "--resume")
    assert latest(tmp_path / "whole").state["step"] >= 30
    assert ("item_optimizer" in latest(tmp_path / "whole").groups()) == ("--loss" in more)
    assert_same(tmp_path / "whole", tmp_path / "parts")


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_a_rate_that_falls_to_zero_does_so_at_the_end_of_the_run(
    program, refused, dataset, tmp_path, schedule
):
    flags = settings(dataset, f"--lr_schedule={schedule}", "--print_freq=1", "--num_epochs=1")
    folder = f"--export_root={tmp_path / 'run'}"
    records = program(*flags, folder, "--max_steps=1000")
    _, *rates = [record["data"]["lr"] for record in records if "lr" in record["data"]]
    assert len(rates) == STEPS_PER_EPOCH
    assert rates[-1] < 0.05 * max(rates)
    error = refused(*flags, folder, "--num_epochs=2", "--resume")
    assert_tells(error, f"--lr_schedule {schedule}", STEPS_PER_EPOCH, 2 * STEPS_PER_EPOCH)


def test_a_signal_saves_and_the_printed_command_continues(
    program, dataset, tmp_path, capsys, monkeypatch
):
    common = settings(dataset)
    program(*common, f"--export_root={tmp_path / 'whole'}")
    parts = f"--export_root={tmp_path / 'parts'}"
    with monkeypatch.context() as patch:
        signal_at_step(17, signal.SIGTERM, patch)
        patch.setattr("sys.argv", ["main", *SMALL_MODEL, *common, parts])
        capsys.readouterr()
        program(*common, parts)
    out = capsys.readouterr().out
    assert_tells(out, "SIGTERM", "step 17", "-m bert4rec.scripts.main")
    assert "Test on" not in out
    assert latest(tmp_path / "parts").state["step"] == 17
    command = out.splitlines()[-1].split()
    program(*command[command.index("bert4rec.scripts.main") + 1 :], model=())
    assert "Resumed from" in capsys.readouterr().out
    assert_same(tmp_path / "whole", tmp_path / "parts")


@pytest.mark.parametrize(
    ("ends", "goes_on", "why"),
    [
        ("--patience=1 --lr=0", "--patience=2 --lr=0", "patience"),
        ("--patience=1 --lr=0", "--lr=0", "patience"),
        ("--num_epochs=1", "--num_epochs=2", "epochs"),
    ],
)
def test_a_run_that_has_ended_stays_as_it_is(program, dataset, tmp_path, ends, goes_on, why):
    run, common = tmp_path / "run", ("--resume", f"--dataset_path={dataset}", "--num_epochs=9")
    folder = f"--export_root={run}"
    program(*common, folder, *ends.split())
    ended = latest(run).state
    files = {file: file.stat().st_mtime_ns for file in run.rglob("*")}
    assert ended["ended"] == why
    program(*common, folder, *ends.split())
    assert {file: file.stat().st_mtime_ns for file in run.rglob("*")} == files
    program(*common, folder, *goes_on.split())
    assert latest(run).state["step"] > ended["step"]


def test_a_signal_without_a_folder_says_that_nothing_is_saved(
    program, dataset, capsys, monkeypatch
):
    signal_at_step(2, signal.SIGINT, monkeypatch)
    program(*settings(dataset), status=130)
    assert_tells(capsys.readouterr().err, "SIGINT", "step 2", "--export_root")


@pytest.mark.parametrize(
    ("group", "change"),
    [
        ("model", lambda stored: {name: t.to(torch.float16) for name, t in stored.items()}),
        ("optimizer", lambda stored: {name: t.to(torch.float64) for name, t in stored.items()}),
        ("optimizer", lambda stored: stored | {"more": torch.zeros(2)}),
        ("another", lambda _: {"more": torch.zeros(2)}),
    ],
)
def test_a_run_does_not_resume_from_other_tensors(
    program, refused, dataset, tmp_path, group, change
):
    run = tmp_path / "run"
    flags = (f"--dataset_path={dataset}", f"--export_root={run}")
    program(*flags, "--max_steps=2")
    file = latest(run).path / f"{group}.safetensors"
    rewrite(file, change)
    assert str(file) in refused(*flags, "--max_steps=3", "--resume")
    assert latest(run).state["step"] == 2


def test_resume_with_another_dataset_is_refused(program, refused, dataset, tmp_path):
    run = f"--export_root={tmp_path / 'run'}"
    program(f"--dataset_path={dataset}", run, "--max_steps=3")
    other = write_other_dataset(tmp_path / "other")
    error = refused(f"--dataset_path={other}", run, "--resume")
    assert_tells(error, tmp_path / "run", other, 40)
    moved = shutil.copytree(dataset, tmp_path / "moved")
    program(f"--dataset_path={moved}", run, "--resume", "--max_steps=4")
