# SPDX-License-Identifier: Apache-2.0
"""Instances of the Python backend's models: child processes of a server (Linux)."""

import dataclasses
from pathlib import Path

_COMMAND = "triton_python_backend_stub"
_COMMAND_SHOWN = _COMMAND[:15]
"""The kernel cuts the name of a process."""
_NAME_FIELD = 8
"""Place of the instance's name in the arguments of its process."""


@dataclasses.dataclass(frozen=True, slots=True)
class Instance:
    """A process of one instance.

    Attributes:
        dead: it has ended and the server has not noticed.
        name: name of the instance, such as dlrm_0_0; empty once it is dead.
        version_folder: folder of its model.py; the version's unless a backend has its own.
    """

    pid: int
    dead: bool
    name: str
    version_folder: Path

    @property
    def model(self) -> str:
        """Name of the model; empty once it is dead."""
        return self.name.rsplit("_", 2)[0]


def find_instances(server_pid: int) -> list[Instance]:
    """Returns the instances of a server, by process id."""
    instances = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            # The name in brackets may have spaces; state and parent's id follow it.
            start, _, rest = (folder / "stat").read_text().rpartition(")")
            state, parent = rest.split()[:2]
            if int(parent) != server_pid or not start.endswith("(" + _COMMAND_SHOWN):
                continue
            words = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended meanwhile
        named = len(words) > _NAME_FIELD  # a dead process has no arguments left
        instances.append(
            Instance(
                pid=int(folder.name),
                dead=state == "Z",
                name=words[_NAME_FIELD] if named else "",
                version_folder=Path(words[1]).parent if named else Path(),
            )
        )
    return sorted(instances, key=lambda instance: instance.pid)
