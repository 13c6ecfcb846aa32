# SPDX-License-Identifier: Apache-2.0
"""A launcher or a store that is lost ends the ranks, and leaves their folder to the next job."""

import contextlib
import os
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
        said = launcher.stdout.read()  # up to the end of both ranks, which write to it
    assert f"process {launcher.pid}" in said
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
        assert f"process {running.pid}" in running.stdout.read()
    assert_the_next_job_goes_on(tmp_path)


@pytest.mark.parametrize("which", [0, 1])
def test_a_frozen_rank_ends_with_the_launcher(tmp_path, which):
    with harness.started_forked(*job(program(tmp_path, "--process_timeout=1000"))) as launcher:
        wait_for_a_checkpoint(tmp_path, launcher)
        os.kill(ranks_of(launcher)[which], signal.SIGSTOP)
        launcher.send_signal(signal.SIGKILL)
        assert f"process {launcher.pid}" in launcher.stdout.read()
    assert_the_next_job_goes_on(tmp_path)


SAVING = """
import ctypes, os, sys, time
from recsys.interruption import StopRequest
from recsys.train import launcher

# In the C library's `system`, Python runs no handler of a signal.
step = f'''
{sys.argv[1]}
echo {os.getppid()}
while grep -q "PPid:.{os.getppid()}$" /proc/$PPID/status; do sleep 0.05; done
sleep {4 * launcher._INTERVAL_S}
'''
with launcher.ending_with_launcher(), StopRequest() as stop:
    ctypes.CDLL(None).system(step.encode())
    while stop.signal_name is None:
        time.sleep(0.01)
    print("saved")
"""
LAUNCHER = """
import subprocess, sys
subprocess.run([sys.executable, "-c", *sys.argv[1:]])
"""


@pytest.mark.parametrize("asked", ["", "kill -TERM $PPID", "kill -HUP $PPID"])
def test_a_rank_that_was_asked_to_stop_within_a_step_saves_before_it_ends(asked, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    with harness.started("-c", LAUNCHER, SAVING, asked) as launcher:
        harness.wait_for_line(launcher, lambda line: line.strip() == str(launcher.pid))
        launcher.kill()
        said = launcher.stdout.read()
    assert ("saved" in said) == bool(asked)
    assert (f"process {launcher.pid}" in said) != bool(asked)


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
        assert f"process {nodes[which].pid}" in nodes[which].stdout.read()
        nodes[1 - which].stdout.read()
        assert nodes[1 - which].wait(harness.PATIENCE_S) == 1
    assert_the_next_job_goes_on(tmp_path)


STORE = """
import sys, torch.distributed as dist
store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
print("port", store.port, flush=True)
sys.stdin.read()
"""


def by_hand(rank, port, **more):
    """Returns the variables of a rank that no launcher started."""
    return {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port), **more}  # fmt: skip


def test_ranks_end_when_their_store_is_lost(tmp_path):
    with contextlib.ExitStack() as stack:
        store = stack.enter_context(harness.started("-c", STORE, stdin=-1))
        port = harness.wait_for_line(store, lambda line: line.startswith("port ")).split()[-1]
        variables = {"TORCHELASTIC_USE_AGENT_STORE": "True"}
        ranks = [
            stack.enter_context(
                harness.started_forked("-m", *program(tmp_path), **by_hand(rank, port, **variables))
            )
            for rank in range(2)
        ]
        wait_for_a_checkpoint(tmp_path, ranks[0])
        store.kill()
        said = [rank.stdout.read() for rank in ranks]
        assert [rank.wait(harness.PATIENCE_S) for rank in ranks] == [1, 1], said
    assert f"127.0.0.1:{port}" in "".join(said)
    assert_the_next_job_goes_on(tmp_path)


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
        "the end of a training that no shell waits for",
    )
    assert read_checkpoint(tmp_path / "run").state["step"] == 30
