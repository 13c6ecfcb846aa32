# SPDX-License-Identifier: Apache-2.0
"""Processes of this machine, and among them the Python instances of a server (Linux).

Triton calls an instance ready that has died or was stopped: only its process tells.
"""

import contextlib
import dataclasses
import math
import os
import signal
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

_COMMAND = "triton_python_backend_stub"
_COMMAND_SHOWN = _COMMAND[:15]
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


@dataclasses.dataclass(slots=True)
class Instance:
    """A process of one instance.

    Attributes:
        fault: why it does not work, unnoticed by the server; empty if it does.
        name: name of the instance, such as dlrm_0_0; empty if it was never seen alive.
        version_folder: folder of its model.py; the version's unless a backend has its own.
        had_fault: it did not work at the look before the last one.
        end: time by which it is to have ended; None unless another one replaces it.
    """

    pid: int
    fault: str
    name: str
    version_folder: Path
    had_fault: bool = False
    end: float | None = None

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
        try:
            command_line = Path(f"/proc/{process.pid}/cmdline").read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended meanwhile
        words = command_line.decode(errors="replace").split("\0")
        name, model_file = ("", "") if len(words) <= _NAME_FIELD else (words[_NAME_FIELD], words[1])
        fault = {"Z": "died", "T": "was stopped by a signal"}.get(process.state, "")
        instances.append(Instance(process.pid, fault, name, Path(model_file).parent))
    return sorted(instances, key=lambda instance: instance.pid)


class Instances:
    """Knows the instances of one server from one look at them to the next."""

    def __init__(self, server_pid: int) -> None:
        self._server_pid = server_pid
        self._known: dict[int, Instance] = {}

    def look(self) -> None:
        """Takes note of the processes that there are.

        Kills replaced ones that were to have ended: a request that nobody answers keeps them.
        """
        before, self._known = self._known, {}
        for found in find_instances(self._server_pid):
            if (known := before.get(found.pid)) is not None:
                found.had_fault, found.end = bool(known.fault), known.end
                if not found.name:
                    found.name, found.version_folder = known.name, known.version_folder
                if found.end is not None and found.end < time.monotonic():
                    found.kill()
            self._known[found.pid] = found

    def of(self, model: str) -> list[Instance]:
        """Returns those of a model."""
        return [instance for instance in self._known.values() if instance.model == model]

    def dead(self, loading: Collection[str]) -> Iterator[Instance]:
        """Yields those that do not work, and are not to end.

        One at two looks in a row: at a single look it may be one that ends in order, as those of
        models that are being loaded do. One that was never seen alive was of a load that failed.
        """
        for each in self._known.values():
            may_end = each.end is not None or not each.name or each.model in loading
            if each.fault and each.had_fault and not may_end:
                yield each

    def retire(self, model: str) -> None:
        """Notes that new instances of a model are loaded to replace those that there are."""
        for instance in self.of(model):
            instance.end = instance.end or math.inf

    def end_retired(self, model: str, when: float) -> None:
        """Notes by when the replaced instances of a model are to have ended."""
        for instance in self.of(model):
            if instance.end is not None:
                instance.end = min(instance.end, when)
