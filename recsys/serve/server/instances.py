# SPDX-License-Identifier: Apache-2.0
"""Processes of this machine, and among them the Python instances of a server (Linux).

Triton calls an instance ready that has died or was stopped: only its process tells.
"""

import contextlib
import os
import signal
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

_COMMAND_SHOWN = "triton_python_backend_stub"[:15]
"""The kernel cuts the name of a process."""
_NAME_FIELD = 8
"""Place of the instance's name in the arguments of its process."""


class Process(NamedTuple):
    """A process of this machine.

    Attributes:
        command: name of its program, of 15 characters at most.
        state: letter of the kernel: Z has ended, T was stopped by a signal.
    """

    pid: int
    command: str
    state: str
    parent: int


class Instance(NamedTuple):
    """A process of one instance.

    Attributes:
        fault: why it does not work, unnoticed by the server; empty if it does.
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
        """Ends it at once."""
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
    # The name in brackets may have spaces; the other fields follow it.
    start, _, rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")
    state, parent = rest.split()[:2]
    return Process(pid, start.partition("(")[2], state, int(parent))


def find_instances(server_pid: int) -> list[Instance]:
    """Returns the instances of a server, by process id; a dead one has no name left."""
    instances = []
    for process in processes():
        if process.parent != server_pid or process.command != _COMMAND_SHOWN:
            continue
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it ended meanwhile
            command_line = Path(f"/proc/{process.pid}/cmdline").read_bytes()
            words = command_line.decode(errors="replace").split("\0")
            name, file = (words[_NAME_FIELD], words[1]) if len(words) > _NAME_FIELD else ("", "")
            fault = {"Z": "died", "T": "was stopped by a signal"}.get(process.state, "")
            instances.append(Instance(process.pid, fault, name, Path(file).parent))
    return sorted(instances)


class Instances:
    """Knows the instances of one server from one look at them to the next."""

    def __init__(self, server_pid: int) -> None:
        self._server_pid = server_pid
        self._known: dict[int, Instance] = {}
        self._failing: set[int] = set()
        self._ends: dict[int, float] = {}

    def look(self) -> None:
        """Takes note of the processes that there are; kills replaced ones whose time is over."""
        before, self._known = self._known, {}
        self._failing = {pid for pid, instance in before.items() if instance.fault}
        for found in find_instances(self._server_pid):
            last = before.get(found.pid, found)
            self._known[found.pid] = found if found.name else last._replace(fault=found.fault)
        self._ends = {pid: end for pid, end in self._ends.items() if pid in self._known}
        for pid, end in self._ends.items():
            if end < time.monotonic():
                self._known[pid].kill()

    def of(self, model: str) -> list[Instance]:
        """Returns those of a model."""
        return [instance for instance in self._known.values() if instance.model == model]

    def dead(self) -> list[Instance]:
        """Returns those that do not work, and are not to end.

        One at two looks in a row: at a single look it may be one that ends in order. One that was
        never seen alive was of a load that failed.
        """
        return [
            each
            for pid, each in self._known.items()
            if each.fault and each.name and pid in self._failing and pid not in self._ends
        ]

    def end_by(self, replaced: Iterable[Instance], when: float) -> None:
        """Notes by when instances that were replaced are to have ended.

        A request that nobody answers would keep them for ever.
        """
        self._ends |= {instance.pid: when for instance in replaced}
