# SPDX-License-Identifier: Apache-2.0
"""Memory of the instances of a server's models (Linux)."""

import dataclasses
from pathlib import Path

_STUB = b"triton_python_backend_stub"


@dataclasses.dataclass(frozen=True, slots=True)
class InstanceMemory:
    """Memory of one instance, which is a process, in bytes.

    Attributes:
        pid: of the process.
        pss: its proportional share: a page that n processes map counts 1/n.
        rss: every page that it maps and that is in memory.
        anonymous: pages of its own, which no file backs: a copied table shows here.
    """

    pid: int
    pss: int
    rss: int
    anonymous: int


def instance_memory(server_pid: int) -> list[InstanceMemory]:
    """Returns the memory of each Python-backend instance, by process id."""
    instances = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            # The name in brackets may hold spaces; the parent's id comes two fields behind it.
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            if parent != server_pid or _STUB not in (folder / "cmdline").read_bytes():
                continue
            lines = (folder / "smaps_rollup").read_text().splitlines()[1:]
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended meanwhile
        sizes = {line.partition(":")[0]: line.split()[1] for line in lines}
        pss, rss, anonymous = (int(sizes[key]) << 10 for key in ("Pss", "Rss", "Anonymous"))
        instances.append(InstanceMemory(int(folder.name), pss, rss, anonymous))
    return sorted(instances, key=lambda instance: instance.pid)
