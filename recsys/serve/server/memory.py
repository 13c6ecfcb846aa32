# SPDX-License-Identifier: Apache-2.0
"""Memory of a server and of the instances of its models (Linux)."""

import contextlib
import dataclasses
from pathlib import Path

from recsys.serve.server.instances import find_instances


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
    instances = []
    for instance in find_instances(server_pid):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it ended meanwhile
            instances.append(process_memory(instance.pid))
    return instances


def process_memory(pid: int) -> InstanceMemory:
    """Returns the memory of a process, such as a whole server.

    Raises:
        FileNotFoundError, ProcessLookupError: it has ended.
    """
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    sizes = {line.partition(":")[0]: line.split()[1] for line in lines}
    pss, rss, anonymous = (int(sizes[key]) << 10 for key in ("Pss", "Rss", "Anonymous"))
    return InstanceMemory(pid, pss, rss, anonymous)
