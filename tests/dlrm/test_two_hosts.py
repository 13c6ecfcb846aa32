# SPDX-License-Identifier: Apache-2.0
"""A job of two hosts: its network or a host is lost, and a host takes its place.

Hosts are network namespaces on one bridge, with names and process numbers of their own.
"""

import contextlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import harness
from tests.checkpoints import assert_same
from tests.recsys.train.tiny import TINY_DLRM
from tests.tools import needs, require

pytestmark = [
    pytest.mark.multiprocess,
    pytest.mark.release,
    pytest.mark.slow,
    needs("network namespaces"),
]

HOSTS = "abc"
TRAINING = (
    *("-m", "dlrm.scripts.dist_main", *TINY_DLRM, "--synthetic_dataset_num_entries=400000"),
    *("--synthetic_dataset_table_sizes=10,60000,50000", "--test_after=9", "--print_freq=10"),
    *("--max_steps=400", "--save_freq=50", "--process_timeout=10"),
)


def address(host):
    return f"10.77.0.{HOSTS.index(host) + 1}"


class Hosts:
    """Hosts of these names, and the torchrun of each."""

    def __init__(self, folder: Path, stack: contextlib.ExitStack) -> None:
        self.stack = stack
        self.outputs: dict[str, Path] = {host: folder / f"{host}.txt" for host in HOSTS}
        self.jobs: dict[str, subprocess.Popen[bytes]] = {}
        self.names = folder / "hosts"
        self.names.write_text(
            "127.0.0.1 localhost\n" + "".join(f"{address(host)} node-{host}\n" for host in HOSTS)
        )
        self.bridge = self.space("bridge")
        self.ip(self.bridge, "link add switch type bridge")
        self.ip(self.bridge, "link set switch up")
        for host in HOSTS:
            space = self.space(host)
            self.ip(self.bridge, f"link add to-{host} type veth peer name eth0 netns {space}")
            self.ip(self.bridge, f"link set to-{host} master switch up")
            self.ip(space, "link set lo up")
            self.ip(space, f"addr add {address(host)}/24 dev eth0")
            self.ip(space, "link set eth0 up")

    def ip(self, space: str, words: str) -> None:
        harness.run("ip", "-n", space, *words.split())

    def space(self, name: str) -> str:
        space = f"recipes-{os.getpid()}-{name}"
        done = harness.run("ip", "netns", "add", space, status=None)
        require("network namespaces", done.returncode == 0)
        self.stack.callback(harness.run, "ip", "netns", "del", space)
        return space

    def start(self, host: str, *arguments: object) -> None:
        """Starts torchrun with a training on a host; all meet on the first, two train."""
        script = f'hostname node-{host} && mount --bind {self.names} /etc/hosts && exec "$@"'
        launcher = (sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--max-restarts=3",
                    "--rdzv_backend=c10d", f"--rdzv_endpoint={address('a')}:29400",
                    "--nproc_per_node=1", f"--local-addr={address(host)}")  # fmt: skip
        unshare = ("unshare", "--uts", "--mount", "--pid", "--kill-child", "--fork")
        job = subprocess.Popen(
            ["ip", "netns", "exec", f"recipes-{os.getpid()}-{host}", *unshare,
             "sh", "-c", script, "sh", *launcher, *TRAINING, *map(str, arguments)],
            cwd=harness.REPOSITORY,
            env=os.environ | {"OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"},
            stdout=self.stack.enter_context(self.outputs[host].open("wb")),
            stderr=subprocess.STDOUT,
        )  # fmt: skip
        self.jobs[host] = job
        self.stack.callback(job.wait)
        self.stack.callback(job.kill)

    def wait_for(self, host: str, pattern: str) -> None:
        """Waits until the output of a host has a pattern."""
        file, job = self.outputs[host], self.jobs[host]
        harness.wait_for(
            lambda: re.search(pattern, file.read_text()) or job.poll() is not None, pattern
        )
        assert re.search(pattern, file.read_text()), file.read_text()

    def take_down(self, host: str) -> None:
        self.ip(self.bridge, f"link set to-{host} down")


@pytest.fixture
def hosts(tmp_path):
    with contextlib.ExitStack() as stack:
        yield Hosts(tmp_path, stack)


@pytest.mark.parametrize("is_replaced", [False, True], ids=["joins again", "is replaced"])
def test_a_job_that_loses_a_host_goes_on_to_the_same_weights(tmp_path, hosts, is_replaced):
    run = (f"--save_checkpoint_path={tmp_path / 'run'}", f"--log_path={tmp_path / 'log.json'}")
    for host in "ab":
        hosts.start(host, *run)
    hosts.wait_for("a", r"\[100/")
    hosts.take_down("b")
    hosts.wait_for("a", r"error: rank 1 \(process \d+ on node-b\)")
    hosts.wait_for("b", r"error: rank 0 \(process \d+ on node-a\)")
    if is_replaced:
        hosts.jobs["b"].kill()
        hosts.start("c", *run)
    else:
        hosts.ip(hosts.bridge, "link set to-b up")
    for host in "ac" if is_replaced else "ab":
        assert hosts.jobs[host].wait(harness.PATIENCE_S) == 0, hosts.outputs[host].read_text()
    assert "Resumed from" in hosts.outputs["a"].read_text()
    whole = (f"--save_checkpoint_path={tmp_path / 'whole'}", f"--log_path={tmp_path / 'log'}")
    harness.forked(*harness.torchrun(2), *TRAINING, *whole)
    assert_same(tmp_path / "run", tmp_path / "whole")
