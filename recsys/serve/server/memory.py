# SPDX-License-Identifier: Apache-2.0
"""Memory of the instances of a server's models (Linux)."""

import dataclasses
from pathlib import Path

_STUB = b"triton_python_backend_stub"


@dataclasses.dataclass(frozen=True, slots=True)
class InstanceMemory:
    """Memory of one instance, which is a process, in bytes.

    Attributes:
        pid: process id.
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
    instances = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            # The name in brackets may have spaces; the parent's id is two fields behind it.
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
