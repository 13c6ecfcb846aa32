# SPDX-License-Identifier: Apache-2.0
"""Tells the dead instances of a server from processes that may end.

A server has a process for each of its Python instances. Every such process belongs to one of:

- a load: its model is being loaded, or it was dead when it was first seen and some model was being
  loaded. A version that does not load ends its processes.
- the past: new instances replace it. It ends by itself; one that is kept by a request which nobody
  will answer is killed.
- the server: all others. One that is dead at two looks in a row is a dead instance; at a single
  look, it may be one that ends in order.
"""

import contextlib
import dataclasses
import math
import os
import signal
from collections.abc import Iterator

from recsys.serve.server.instances import Instance, find_instances
from recsys.serve.supervision.loads import Loads


@dataclasses.dataclass(slots=True)
class _Member:
    """A process of a server.

    Attributes:
        instance: what is known about it; its name is from its life, as a dead process has none.
        of_load: it was dead when it was first seen, while a model was being loaded.
        was_dead: it was dead at the look before the last one.
        end: time by which it is to have ended; None unless it is replaced.
    """

    instance: Instance
    of_load: bool
    was_dead: bool = False
    end: float | None = None


class Roster:
    """Knows the instances of one server from one look at them to the next.

    Args:
        loads: the loads into that server.
    """

    def __init__(self, server_pid: int, loads: Loads) -> None:
        self._server_pid = server_pid
        self._loads = loads
        self._members: dict[int, _Member] = {}
        self.look()

    def look(self) -> None:
        """Takes note of the processes that there are.

        It comes before the end of a load is noted, since a load's last process may be seen here.
        """
        before, self._members = self._members, {}
        for found in find_instances(self._server_pid):
            member = before.get(found.pid)
            if member is None:
                member = _Member(found, not found.name and bool(self._loads.models))
            else:
                member.was_dead = bool(member.instance.fault)
                member.instance = (
                    found if found.name else dataclasses.replace(member.instance, fault=found.fault)
                )
            self._members[found.pid] = member

    def instances(self) -> list[Instance]:
        """Returns all that there were at the last look."""
        return [member.instance for member in self._members.values()]

    def dead(self) -> Iterator[Instance]:
        """Yields the dead instances; one that was never seen alive has no name."""
        for member in self._members.values():
            instance = member.instance
            may_end = (
                member.of_load or member.end is not None or instance.model in self._loads.models
            )
            if instance.fault and member.was_dead and not may_end:
                yield instance

    def replace(self, model: str) -> None:
        """Notes that new instances of a model are loaded to replace those that there are."""
        for member in self._members.values():
            if member.instance.model == model and member.end is None:
                member.end = math.inf

    def end_replaced(self, model: str, when: float) -> None:
        """Notes by when the replaced instances of a model are to have ended."""
        for member in self._members.values():
            if member.instance.model == model and member.end is not None:
                member.end = min(member.end, when)

    def kill_overdue(self, now: float) -> None:
        """Kills the replaced instances that were to have ended by now."""
        for pid, member in self._members.items():
            if member.end is not None and now > member.end:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
