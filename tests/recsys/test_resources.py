# SPDX-License-Identifier: Apache-2.0
"""Cores and memory by control group, as kernels, containers and batch systems show them."""

import contextlib
import os
from pathlib import Path

import pytest
import safetensors.torch
import torch

from dlrm.scripts import main as dlrm
from recsys.program import new_flags, run_command
from recsys.resources import available_cores, cores_for, memory_limits
from recsys.train.processes import join_processes
from tests.harness import assert_tells, call, few_descriptors, python, run_ranks
from tests.tools import require

GIB = 2**30
MACHINE = {
    "proc/meminfo": "MemTotal: 67108864 kB\nMemFree: 1024 kB\nMemAvailable: 33554432 kB",
    "proc/sys/kernel/random/boot_id": "0f6e",
}
V2_MOUNT = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate"
V1_MOUNTS = (
    "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n"
    "33 31 0:30 {root} /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
    "35 31 0:32 {root} /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
    "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw"
)
V1_GROUP = "9:name=systemd:/\n5:memory:{path}\n4:cpu,cpuacct:{path}\n0::/"


def system(root: Path, files: dict[str, str]) -> Path:
    for name, text in (MACHINE | files).items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text + "\n")
    return root


@pytest.fixture
def eight_cores(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))


def v2(cpu_max, memory_max="max", group="/job"):
    folder = f"sys/fs/cgroup{group}".rstrip("/")
    return {
        "proc/self/mountinfo": V2_MOUNT,
        "proc/self/cgroup": f"0::{group}",
        f"{folder}/cpu.max": cpu_max,
        f"{folder}/memory.max": memory_max,
        f"{folder}/memory.current": str(3 * GIB),
        f"{folder}/memory.stat": f"anon {GIB}\ninactive_file {GIB}\nactive_file {GIB}",
    }


def v1(quota, limit, *, path="/docker/4f2", root="/docker/4f2"):
    where = "" if root == path else path
    cpu, memory = f"sys/fs/cgroup/cpu,cpuacct{where}", f"sys/fs/cgroup/memory{where}"
    return {
        "proc/self/mountinfo": V1_MOUNTS.format(root=root),
        "proc/self/cgroup": V1_GROUP.format(path=path),
        f"{cpu}/cpu.cfs_quota_us": quota,
        f"{cpu}/cpu.cfs_period_us": "100000",
        f"{memory}/memory.limit_in_bytes": limit,
        f"{memory}/memory.usage_in_bytes": str(2 * GIB),
        f"{memory}/memory.stat": f"active_file 7\ntotal_inactive_file {GIB}\ntotal_active_file 0",
    }


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({}, 8),
        (v2("max 100000"), 8),
        (v2("200000 100000"), 2),
        (v2("150000 100000"), 2),
        (v2("10000 100000"), 1),
        (v2("1600000 100000"), 8),
        (v2("300000 100000", group="/"), 3),
        (v2("max 100000", group="/job/step") | {"sys/fs/cgroup/job/cpu.max": "400000 100000"}, 4),
        (v1("-1", str(8 * GIB)), 8),
        (v1("250000", str(8 * GIB)), 3),
        (v1("250000", str(8 * GIB), path="/slurm/job", root="/"), 3),
        ({"proc/self/mountinfo": V2_MOUNT, "proc/self/cgroup": "0::/gone"}, 8),
    ],
)
@pytest.mark.usefixtures("eight_cores")
def test_cores(tmp_path, files, cores):
    assert available_cores(system(tmp_path, files)) == cores


@pytest.mark.parametrize(
    ("files", "available"),
    [
        ({}, 32 * GIB),
        (v2("max 100000"), 32 * GIB),
        (v2("max 100000", str(10 * GIB)), 9 * GIB),  # 2 of the 3 GiB in use are cached files
        (v2("max 100000", str(64 * GIB)), 32 * GIB),
        (v1("-1", "9223372036854771712"), 32 * GIB),
        (v1("-1", str(8 * GIB)), 7 * GIB),
        (v1("-1", str(8 * GIB), path="/slurm/job", root="/"), 7 * GIB),
    ],
)
def test_memory(tmp_path, files, available):
    limits = memory_limits(system(tmp_path, files))
    assert limits[0].available == available
    if available < 32 * GIB:
        assert_tells(limits[0].name, "control group")


def test_an_address_space_limit_counts():
    program = "import recsys.resources as r; print(r.memory_limits()[0])"
    limited = f"import resource; resource.setrlimit(resource.RLIMIT_AS, (2**30, -1)); {program}"
    assert "ulimit -v" in python("-c", limited).stdout


def test_an_allocation_of_python_that_fails_is_told_in_a_line(capsys):
    def run(_values):
        print(len(bytearray(2**62)))

    assert run_command(run, new_flags(), ["program"], None) == 2
    (error,) = capsys.readouterr().err.splitlines()
    assert_tells(error, "error:", "MemoryError")


NO_MORE_MEMORY = """
import resource, sys, threading
from recsys.program import new_flags, run_command
with open("/proc/self/statm") as file:
    size = int(file.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (size + 2**21,) * 2)
sys.exit(run_command(lambda _: {}, new_flags(), ["program"], None))
"""


@pytest.mark.parametrize(
    "call", ["threading.Thread(target=print).start()", "__import__('pyarrow')"]
)
def test_a_thread_or_library_without_memory_is_told_in_a_line(call):
    (error,) = python("-c", NO_MORE_MEMORY.format(call), status=2).stderr.splitlines()
    assert error.startswith("error: out of memory: ")


def test_a_tensor_file_without_a_descriptor_is_told_in_a_line(tmp_path, capsys):
    file = tmp_path / "tensors"
    safetensors.torch.save_file({"x": torch.ones(2)}, file)

    def run(_values):
        with few_descriptors(0):
            safetensors.torch.load_file(file)

    assert run_command(run, new_flags(), ["program"], None) == 2
    (error,) = capsys.readouterr().err.splitlines()
    assert_tells(error, "error:", "ulimit -n")


@contextlib.contextmanager
def control_group(controller: str, **limits: object):
    """A group of this machine, for one controller; skips where none can be made."""
    v1_root, v2_root = Path("/sys/fs/cgroup") / controller, Path("/sys/fs/cgroup")
    root = v1_root if v1_root.is_dir() else v2_root
    folder = root / f"recsys_test_{os.getpid()}"
    names = {
        "cpu": ("cpu.cfs_quota_us", "cpu.max"),
        "memory": ("memory.limit_in_bytes", "memory.max"),
    }
    name = names[controller][root == v2_root]
    with contextlib.suppress(OSError):  # not root, or the tree is read-only
        folder.mkdir()
    require("control group", folder.is_dir())
    try:
        require("control group", (folder / name).exists())  # else this controller is not delegated
        (folder / name).write_text(str(limits["limit"]))
        yield folder
    finally:
        folder.rmdir()


def enter(group: Path) -> None:
    """Puts this process into a control group."""
    (group / "cgroup.procs").write_text(str(os.getpid()))


# Two sockets with two third-level caches each, of two cores with two threads, which are numbered as
# usual: the first threads of all cores, then the second ones.
SOCKETS = {
    f"sys/devices/system/cpu/cpu{number}/{name}": str(value)
    for number in range(16)
    for name, value in {
        "topology/physical_package_id": number % 8 // 4,
        "cache/index3/id": number % 8 // 2,
        "topology/core_id": number % 4,
    }.items()
}


@pytest.mark.parametrize(
    ("files", "cores", "shares"),
    [
        (SOCKETS, range(16), [{0, 1, 2, 3, 8, 9, 10, 11}, {4, 5, 6, 7, 12, 13, 14, 15}]),
        (SOCKETS, range(16), [{0, 1, 8, 9}, {2, 3, 10, 11}, {4, 5, 12, 13}, {6, 7, 14, 15}]),
        (SOCKETS, range(16), [{core, core + 8} for core in range(8)]),
        (SOCKETS, range(16), [{0, 1, 2, 8, 9, 10}, {3, 4, 5, 11, 12}, {6, 7, 13, 14, 15}]),
        (SOCKETS, [1, 4, 5, 9], [{1, 9}, {4, 5}]),
        ({}, range(5), [{0, 1, 2}, {3, 4}]),  # their place is not known: by number
    ],
)
def test_processes_divide_cores_by_socket_and_cache(tmp_path, files, cores, shares):
    root, count = system(tmp_path, files), len(shares)
    assert [cores_for(cores, index, count, root) for index in range(count)] == shares


def take_threads(_rank: int, group: Path) -> None:
    torch.set_num_threads(2)
    enter(group)
    with join_processes("cpu", None):
        assert torch.get_num_threads() == 1


def test_training_takes_the_threads_of_its_quota():
    with control_group("cpu", limit=50_000) as group:
        run_ranks(1, take_threads, group, joined=False)


def train_a_large_model(_rank: int, group: Path, folder: Path) -> None:
    enter(group)
    with (folder / "errors").open("w") as errors, contextlib.redirect_stderr(errors):
        flags = ("--dataset_type=synthetic_gpu", "--synthetic_dataset_table_sizes=8000000")
        assert call(dlrm, "--base_device=cpu", f"--log_path={folder / 'log'}", *flags) == 2


def test_a_model_above_the_limit_of_its_group_is_refused(tmp_path):
    with control_group("memory", limit=2 * GIB) as group:
        run_ranks(1, train_a_large_model, group, tmp_path, joined=False)
    assert_tells((tmp_path / "errors").read_text(), "error:", "3.8 GiB", "control group")
