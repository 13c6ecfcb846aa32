# SPDX-License-Identifier: Apache-2.0
"""A launcher that is lost ends the ranks, and leaves their folder to the next job."""

import contextlib
import os
import re
import shlex
import signal
import sys

import pytest

from recsys.train.checkpoint import read_checkpoint
from tests import harness
from tests.dlrm.ranks import ranks_of, torchrun
from tests.recsys.train.tiny import TINY_DLRM

pytestmark = [pytest.mark.multiprocess, pytest.mark.slow]

ENDLESS = 1_000_000
DLRM = (
    *("dlrm.scripts.dist_main", *TINY_DLRM, "--test_after=2000000", "--print_freq=1"),
    f"--epochs={ENDLESS}",
)
BERT4REC = (
    *("bert4rec.scripts.main", "--dataset_name=random", "--random_user_count=60"),
    *("--random_item_count=200", "--random_size=2000", "--emb_dim=16", "--max_len=12"),
    *("--train_batch_size=8", "--dupe_factor=1", "--num_eval_negatives=50", "--base_device=cpu"),
    *("--lr=0.01", "--print_freq=1", "--test_freq=2000000", f"--num_epochs={ENDLESS}"),
)
PROGRAMS = {
    "dlrm": (DLRM, "save_checkpoint_path"),
    "bert4rec": (BERT4REC, "export_root"),
    "bert4rec dmp": ((*BERT4REC, "--mode=dmp", "--head=tied"), "export_root"),
}


def program(folder, *more, name="dlrm"):
    """Returns a module and flags of an endless training that saves in a folder."""
    words, folder_flag = PROGRAMS[name]
    saved = (f"--{folder_flag}={folder / 'run'}", f"--log_path={folder / 'log'}")
    return [*words, *saved, "--save_freq=2", "--process_timeout=30", *more]


def job(words, launcher=None):
    """Returns the arguments of Python for two ranks that a launcher forks."""
    module, *arguments = words
    return *torchrun(launcher or harness.torchrun(2), module), *arguments


def wait_for_a_checkpoint(folder, process):
    pointer = folder / "run" / "latest.json"
    harness.wait_for(pointer.exists, "a checkpoint", process=process)


def assert_the_next_job_goes_on(folder, name="dlrm"):
    """Resumes the run, which nobody holds any more, for two steps."""
    step = read_checkpoint(folder / "run").state["step"]
    harness.forked("-m", *program(folder, "--resume", f"--max_steps={step + 2}", name=name))
    assert read_checkpoint(folder / "run").state["step"] == step + 2


@pytest.mark.parametrize("name", PROGRAMS)
def test_ranks_end_with_the_launcher_that_is_killed(tmp_path, name):
    with harness.started_forked(*job(program(tmp_path, name=name))) as launcher:
        wait_for_a_checkpoint(tmp_path, launcher)
        launcher.send_signal(signal.SIGKILL)
        launcher.stdout.read()  # up to the end of both ranks, which write to it
    if name != "bert4rec dmp":  # a run of shards is continued by as many processes
        assert_the_next_job_goes_on(tmp_path, name)


@pytest.mark.parametrize(
    "launcher",
    [
        pytest.param(harness.torchrun(1), id="one rank"),
        pytest.param(
            ["-m", "torch.distributed.launch", "--use_env", "--nproc_per_node=2"], id="launch"
        ),
    ],
)
def test_ranks_of_other_launches_end_too(tmp_path, launcher):
    port = [] if "--standalone" in launcher else [f"--master_port={harness.free_port()}"]
    with harness.started_forked(*launcher, *port, "-m", *program(tmp_path)) as running:
        wait_for_a_checkpoint(tmp_path, running)
        running.send_signal(signal.SIGKILL)
        running.stdout.read()
    assert_the_next_job_goes_on(tmp_path)


@pytest.mark.parametrize("which", [0, 1])
def test_a_frozen_rank_ends_with_the_launcher(tmp_path, which):
    with harness.started_forked(*job(program(tmp_path, "--process_timeout=1000"))) as launcher:
        wait_for_a_checkpoint(tmp_path, launcher)
        os.kill(ranks_of(launcher)[which], signal.SIGSTOP)
        launcher.send_signal(signal.SIGKILL)
        launcher.stdout.read()
    assert_the_next_job_goes_on(tmp_path)


SAVING = """
import os, time
from recsys.interruption import StopRequest
from recsys.train.launcher import end_with_launcher

launcher = os.getppid()
end_with_launcher()
with StopRequest("saving") as stop:
    print("training", flush=True)
    while os.getppid() == launcher:
        time.sleep(0.01)
    print("saved", flush=True)
"""
LAUNCHER = """
import subprocess, sys
rank = subprocess.Popen([sys.executable, "-c", sys.argv[1]])
print(rank.pid, flush=True)
rank.wait()
"""


@pytest.mark.parametrize("asked", [None, signal.SIGTERM, signal.SIGHUP])
def test_a_rank_that_was_asked_to_stop_saves_before_it_ends(asked, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    with harness.started("-c", LAUNCHER, SAVING) as launcher:
        rank = int(harness.wait_for_line(launcher, lambda line: line.strip().isdecimal()))
        harness.wait_for_line(launcher, lambda line: line == "training\n")
        if asked:
            os.kill(rank, asked)
            harness.wait_for_line(launcher, lambda line: "saving" in line)
        launcher.kill()
        assert launcher.stdout.read() == ("saved\n" if asked else "")


LATE = """
import os, subprocess, sys, time
rank = '''
import os, time
import recsys.train.launcher as launcher
print("training", flush=True)
while os.getppid() == launcher._parent:
    time.sleep(0.01)
launcher.end_with_launcher()
print("went on", flush=True)
'''
subprocess.Popen([sys.executable, "-c", rank]).wait()
"""


def test_a_rank_whose_launcher_died_while_it_started_ends(monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    with harness.started("-c", LATE) as launcher:
        harness.wait_for_line(launcher, lambda line: line == "training\n")
        launcher.kill()
        assert launcher.stdout.read() == ""


@pytest.mark.parametrize("which", [0, 1])
def test_a_launcher_of_two_machines_that_is_killed_ends_both(tmp_path, which):
    launcher = ["-m", "torch.distributed.run", "--nnodes=2", "--nproc_per_node=1"]
    launcher += ["--rdzv_backend=c10d", f"--rdzv_endpoint=127.0.0.1:{harness.free_port()}"]
    with contextlib.ExitStack() as stack:
        nodes = [
            stack.enter_context(harness.started_forked(*job(program(tmp_path), launcher)))
            for _ in range(2)
        ]
        wait_for_a_checkpoint(tmp_path, nodes[0])
        nodes[which].send_signal(signal.SIGKILL)
        nodes[which].stdout.read()
        said = nodes[1 - which].stdout.read()
        assert nodes[1 - which].wait(harness.PATIENCE_S) == 1
    assert re.search(r"error: rank \d \(process \d+ on ", said)
    assert_the_next_job_goes_on(tmp_path)


def by_hand(rank, port, **more):
    """Returns the variables of a rank that no launcher started."""
    return {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port), **more}  # fmt: skip


def test_ranks_started_by_hand_outlive_the_shell_that_started_them(tmp_path):
    port = harness.free_port()
    words = [sys.executable, "-m", *program(tmp_path, "--max_steps=30")]
    commands = [
        " ".join(f"{name}={value}" for name, value in by_hand(rank, port).items())
        + f" {shlex.join(words)} > {tmp_path / str(rank)} 2>&1 &"
        for rank in range(2)
    ]
    harness.run("sh", "-c", "\n".join(commands))
    outputs = [tmp_path / str(rank) for rank in range(2)]
    harness.wait_for(
        lambda: outputs[0].exists() and "Finished after 30 steps" in outputs[0].read_text(),
        "its end",
    )
    assert read_checkpoint(tmp_path / "run").state["step"] == 30
