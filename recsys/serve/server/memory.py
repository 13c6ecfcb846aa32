# SPDX-License-Identifier: Apache-2.0
"""Memory of the instances of a server's models (Linux)."""

import dataclasses
from pathlib import Path

from recsys.serve.server.instances import find_instances


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
    for instance in find_instances(server_pid):
        try:
            lines = Path(f"/proc/{instance.pid}/smaps_rollup").read_text().splitlines()[1:]
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended meanwhile
        sizes = {line.partition(":")[0]: line.split()[1] for line in lines}
        pss, rss, anonymous = (int(sizes[key]) << 10 for key in ("Pss", "Rss", "Anonymous"))
        instances.append(InstanceMemory(instance.pid, pss, rss, anonymous))
    return instances
