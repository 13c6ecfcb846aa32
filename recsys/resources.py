# SPDX-License-Identifier: Apache-2.0
"""Cores and memory that this process may use.

A container or a batch system grants part of the machine through control groups (cgroups, version 1
or 2), the affinity mask and `ulimit -v`. The groups around a group limit it as well.
"""

import dataclasses
import os
import resource
from collections.abc import Collection, Iterator
from pathlib import Path

_SYSTEM = Path("/")


@dataclasses.dataclass(frozen=True, slots=True)
class MemoryLimit:
    """A limit on memory, and how much it leaves.

    Attributes:
        name: what the limit is, for a message.
        key: equal for all processes that share the limit, on this machine or another.
        available: bytes that can still be allocated.
    """

    name: str
    key: tuple[object, ...]
    available: int


def available_cores(system: Path = _SYSTEM) -> int:
    """Returns the number of cores in the affinity mask, or the CPU quota if that is smaller.

    A fraction of a core counts as one: a quota of 1.5 cores gives 2.

    Args:
        system: root of the folders /proc and /sys.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    for folder, is_v2 in _groups("cpu", system):
        if is_v2:
            quota, _, period = _read(folder / "cpu.max").partition(" ")
        else:
            quota, period = _read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us")
        # -1 and `max` mean no quota.
        if quota.isdigit() and period.isdigit() and int(quota) and int(period):
            cores = min(cores, -(-int(quota) // int(period)))
    return max(cores, 1)


def cores_for(
    cores: Collection[int], index: int, processes: int, system: Path = _SYSTEM
) -> set[int]:
    """Returns the cores of one of several processes that divide cores evenly.

    Threads of one core stay together, then cores of one third-level cache, then of one socket.

    Args:
        cores: numbers of the cores to divide, at least one for each process.
        index: number of this process, from 0.
        processes: number of processes.
        system: root of the folders /proc and /sys.
    """
    neighbours = sorted(cores, key=lambda core: _position(core, system))
    size, rest = divmod(len(neighbours), processes)
    begin = index * size + min(index, rest)
    return set(neighbours[begin : begin + size + (index < rest)])


def _position(core: int, system: Path) -> tuple[int, ...]:
    """Returns socket, third-level cache, core and thread; 0 if unknown."""
    folder = system / f"sys/devices/system/cpu/cpu{core}"
    names = ("topology/physical_package_id", "cache/index3/id", "topology/core_id")
    numbers = (_read(folder / name) for name in names)
    return (*(int(number) if number.isdigit() else 0 for number in numbers), core)


def memory_limits(system: Path = _SYSTEM) -> list[MemoryLimit]:
    """Lists the limits of this process's memory, the tightest first.

    Args:
        system: root of the folders /proc and /sys.
    """
    boot = _read(system / "proc/sys/kernel/random/boot_id")
    kib = _table(system / "proc/meminfo").get("MemAvailable")
    free = kib * 1024 if kib else os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limits = [MemoryLimit("available on this machine", (boot,), free)]
    for folder, is_v2 in _groups("memory", system):
        names = ("memory.max", "memory.current") if is_v2 else _V1_NAMES
        limit, used = (_read(folder / name) for name in names)
        if not (limit.isdigit() and used.isdigit()) or int(limit) >= _V1_UNLIMITED:
            continue
        # The kernel frees cached files when memory is needed.
        files = _table(folder / "memory.stat")
        prefix = "" if is_v2 else "total_"
        cached = sum(files.get(f"{prefix}{kind}_file", 0) for kind in ("active", "inactive"))
        left = int(limit) - max(int(used) - cached, 0)
        key = (boot, folder.stat().st_ino)
        limits.append(MemoryLimit("left by the limit of its control group", key, left))
    own, _ = resource.getrlimit(resource.RLIMIT_AS)
    pages = _read(system / "proc/self/statm").split()
    if own != resource.RLIM_INFINITY and pages:
        left = own - int(pages[0]) * resource.getpagesize()
        limits.append(MemoryLimit("left by `ulimit -v`", (boot, "process", os.getpid()), left))
    return sorted(limits, key=lambda limit: limit.available)


_V1_NAMES = ("memory.limit_in_bytes", "memory.usage_in_bytes")
_V1_UNLIMITED = 2**62
"""From here on, version 1 means no limit: it rounds the largest number down to a page."""


def _groups(controller: str, system: Path) -> Iterator[tuple[Path, bool]]:
    """Yields this process's groups, inner before outer, and whether each is of version 2."""
    mounts = _read(system / "proc/self/mountinfo").splitlines()
    for line in _read(system / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        is_v2 = not controllers
        if not is_v2 and controller not in controllers.split(","):
            continue
        mount = _mount(mounts, None if is_v2 else controller)
        if mount is None:
            continue
        root, top = mount
        # A container sees its own group as the root of the mount, or else the machine's path.
        inner = os.path.relpath(path, root)
        folder = system / top.lstrip("/")
        bottom = folder if inner.startswith("..") else folder / inner
        for each in (bottom, *bottom.parents):
            if each.is_dir():
                yield each, is_v2
            if each == folder:
                break


def _mount(lines: list[str], controller: str | None) -> tuple[str, str] | None:
    """Returns (root, mount point) of a mounted hierarchy, or None.

    Args:
        lines: lines of mountinfo.
        controller: controller of version 1; None asks for version 2.
    """
    for line in lines:
        fields, _, rest = line.partition(" - ")
        kind, _, options = rest.partition(" ")
        is_it = kind == "cgroup2"
        if controller is not None:
            is_it = kind == "cgroup" and controller in options.split(" ")[-1].split(",")
        if is_it:
            root, point = fields.split(" ")[3:5]
            return root, point
    return None


def _table(path: Path) -> dict[str, int]:
    """Reads lines that hold a name and a number."""
    rows = (line.replace(":", " ").split() for line in _read(path).splitlines())
    return {row[0]: int(row[1]) for row in rows if len(row) > 1 and row[1].isdigit()}


def _read(path: Path) -> str:
    """Returns the text of a file; empty if it is unreadable."""
    try:
        return path.read_text().strip()
    except (OSError, ValueError):
        return ""
