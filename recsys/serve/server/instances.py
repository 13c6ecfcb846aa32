# SPDX-License-Identifier: Apache-2.0
"""Processes of this machine, a server's instances among them, and memory (Linux)."""

import contextlib
import dataclasses
from collections.abc import Iterator
from pathlib import Path

_COMMAND = "triton_python_backend_stub"
_COMMAND_SHOWN = _COMMAND[:15]
"""The kernel cuts the name of a process."""
_NAME_FIELD = 8
"""Place of the instance's name in the arguments of its process."""


@dataclasses.dataclass(frozen=True, slots=True)
class Process:
    """A process of this machine.

    Attributes:
        command: name of its program, of 15 characters at most.
        state: letter of the kernel: Z has ended, T was stopped by a signal.
        session: process id of the session's leader.
    """

    pid: int
    command: str
    state: str
    parent: int
    session: int


@dataclasses.dataclass(frozen=True, slots=True)
class Instance:
    """A process of one instance.

    Attributes:
        fault: why it does not work, unnoticed by the server; empty if it does.
        name: name of the instance, such as dlrm_0_0; empty once it is dead.
        version_folder: folder of its model.py; the version's unless a backend has its own.
    """

    pid: int
    fault: str
    name: str
    version_folder: Path

    @property
    def model(self) -> str:
        """Name of the model; empty once it is dead."""
        return self.name.rsplit("_", 2)[0]


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
    state, parent, _, session = rest.split()[:4]
    return Process(pid, start.partition("(")[2], state, int(parent), int(session))


def find_instances(server_pid: int) -> list[Instance]:
    """Returns the instances of a server, by process id."""
    instances = []
    for process in processes():
        if process.parent != server_pid or process.command != _COMMAND_SHOWN:
            continue
        try:
            command_line = Path(f"/proc/{process.pid}/cmdline").read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended meanwhile
        words = command_line.decode(errors="replace").split("\0")
        named = len(words) > _NAME_FIELD  # a dead process has no arguments left
        instances.append(
            Instance(
                pid=process.pid,
                fault={"Z": "died", "T": "was stopped by a signal"}.get(process.state, ""),
                name=words[_NAME_FIELD] if named else "",
                version_folder=Path(words[1]).parent if named else Path(),
            )
        )
    return sorted(instances, key=lambda instance: instance.pid)


@dataclasses.dataclass(frozen=True, slots=True)
class InstanceMemory:
    """Memory of a process, such as a Python instance, in bytes.

    Attributes:
        pss: proportional set size: a page that n processes map counts 1/n.
        rss: resident set size: all mapped pages in memory.
        anonymous: pages that no file backs, such as a copied table.
    """

    pid: int
    pss: int
    rss: int
    anonymous: int


def instance_memory(server_pid: int) -> list[InstanceMemory]:
    """Returns the memory of each Python-backend instance, by process id."""
    memory = []
    for instance in find_instances(server_pid):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it ended meanwhile
            memory.append(process_memory(instance.pid))
    return memory


def process_memory(pid: int) -> InstanceMemory:
    """Returns the memory of a process, such as a whole server.

    Raises:
        FileNotFoundError, ProcessLookupError: it has ended.
    """
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    sizes = {line.partition(":")[0]: line.split()[1] for line in lines}
    pss, rss, anonymous = (int(sizes[key]) << 10 for key in ("Pss", "Rss", "Anonymous"))
    return InstanceMemory(pid, pss, rss, anonymous)
