# SPDX-License-Identifier: Apache-2.0
"""Processes of this machine, including the Python instances of a server (Linux).

Triton calls an instance ready even if it has died or was stopped. Only its process shows that.
"""

import contextlib
import os
import signal
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

_COMMAND_SHOWN = "triton_python_backend_stub"[:15]
"""The kernel cuts the names of processes to this length."""
_NAME_FIELD = 8
"""Position of the instance's name among the arguments of its process."""


class Process(NamedTuple):
    """A process of this machine.

    Attributes:
        command: name of its program, at most 15 characters.
        state: letter of the kernel: Z has ended, T was stopped by a signal.
    """

    pid: int
    command: str
    state: str
    parent: int


class Instance(NamedTuple):
    """The process of one instance.

    Attributes:
        fault: why it does not work, although the server has not noticed; empty if it works.
        name: name of the instance, such as dlrm_0_0; empty if it was never seen alive.
        version_folder: folder of its model.py; the version's unless a backend has its own.
    """

    pid: int
    fault: str
    name: str
    version_folder: Path

    @property
    def model(self) -> str:
        """Name of the model."""
        return self.name.rsplit("_", 2)[0]

    def kill(self) -> None:
        """Kills the process."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)


def processes() -> Iterator[Process]:
    """Yields the processes of this machine."""
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it ended meanwhile
            yield read_process(int(folder.name))


def read_process(pid: int) -> Process:
    """Returns a process.

    Raises:
        FileNotFoundError, ProcessLookupError: it has ended.
    """
    # The name in brackets may contain spaces; the other fields follow it.
    start, _, rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")
    state, parent = rest.split()[:2]
    return Process(pid, start.partition("(")[2], state, int(parent))


_FAULTS = {"Z": "died", "T": "was stopped by a signal"}
"""State of a process -> why its instance does not work."""


def find_instances(server_pid: int) -> list[Instance]:
    """Returns the instances of a server, by process id; a dead one no longer has a name."""
    instances = []
    for process in processes():
        if process.parent != server_pid or process.command != _COMMAND_SHOWN:
            continue
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it ended meanwhile
            command_line = Path(f"/proc/{process.pid}/cmdline").read_bytes()
            words = command_line.decode(errors="replace").split("\0")
            name, file = (words[_NAME_FIELD], words[1]) if len(words) > _NAME_FIELD else ("", "")
            fault = _FAULTS.get(process.state, "")
            instances.append(Instance(process.pid, fault, name, Path(file).parent))
    return sorted(instances)


class Instances:
    """Tracks the instances of one server from one look to the next."""

    def __init__(self, server_pid: int) -> None:
        self._server_pid = server_pid
        self._known: dict[int, Instance] = {}
        self._failing: set[int] = set()
        self._ends: dict[int, float] = {}

    def look(self) -> None:
        """Records the current processes; kills replaced instances whose time is over."""
        before, self._known = self._known, {}
        self._failing = {pid for pid, instance in before.items() if instance.fault}
        for found in find_instances(self._server_pid):
            last = before.get(found.pid, found)
            self._known[found.pid] = found if found.name else last._replace(fault=found.fault)
        self._ends = {pid: end for pid, end in self._ends.items() if pid in self._known}
        for pid, end in self._ends.items():
            if end < time.monotonic():
                self._known[pid].kill()

    def has_new_fault(self) -> bool:
        """Returns whether an instance has stopped working since the last look, which costs more."""
        for pid, instance in self._known.items():
            if not instance.fault:
                with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                    if read_process(pid).state in _FAULTS:
                        return True
        return False

    def has_suspect(self) -> bool:
        """Returns whether the next look may find an instance dead; see `dead`."""
        return any(
            each.fault and each.name and pid not in self._failing and pid not in self._ends
            for pid, each in self._known.items()
        )

    def of(self, model: str) -> list[Instance]:
        """Returns the instances of a model."""
        return [instance for instance in self._known.values() if instance.model == model]

    def dead(self) -> list[Instance]:
        """Returns the instances that do not work and are not about to end.

        An instance counts after two looks in a row; at a single look it may be ending in order. One
        that was never seen alive belongs to a load that failed.
        """
        return [
            each
            for pid, each in self._known.items()
            if each.fault and each.name and pid in self._failing and pid not in self._ends
        ]

    def end_by(self, replaced: Iterable[Instance], when: float) -> None:
        """Sets the time by which replaced instances must have ended.

        Otherwise a request that is never answered would keep them forever.
        """
        self._ends |= {instance.pid: when for instance in replaced}
