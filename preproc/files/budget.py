# SPDX-License-Identifier: Apache-2.0
"""Threads and memory of a stage within `memory_limit`."""

import concurrent.futures
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from preproc.files.errors import PreprocError
from preproc.files.progress import Progress, Tally
from recsys.sizes import format_bytes

Unit = TypeVar("Unit")
Result = TypeVar("Result")

_RESERVE_BYTES = 24 * 2**20
"""Left free of the limit for the interpreter's growth during a stage (14 MiB measured)."""

_MOST_BYTES = 2**62
"""More than any machine has, and within the kernel's 64-bit numbers."""


def run_units(
    units: Iterable[Unit],
    work: Callable[[Unit], Result],
    threads: int,
    progress: Progress,
) -> Iterator[tuple[Unit, Result]]:
    """Runs `work` in threads; yields each unit with its result, in order of completion.

    An error stops the other threads.
    """
    pool = concurrent.futures.ThreadPoolExecutor(threads)
    try:
        futures = {pool.submit(work, unit): unit for unit in units}
        for future in concurrent.futures.as_completed(futures):
            yield futures[future], future.result()
    except BaseException:
        progress.cancel()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


Work = Callable[[Unit, int, Progress], Tally]
"""Processes a unit within a number of bytes of memory, and returns its counts."""


def nothing(*_: object) -> None:
    """Does nothing."""


@dataclasses.dataclass(frozen=True, slots=True)
class Threads:
    """Processes units in threads of this process.

    Attributes:
        threads: at least 1; fewer are used if memory is short.
        memory_limit: bytes of anonymous memory of the process.
    """

    threads: int
    memory_limit: int

    def map(
        self,
        work: Work[Unit],
        units: Sequence[Unit],
        least_bytes: int,
        progress: Progress,
        *,
        prepare: Callable[[], None] = nothing,
        watch: Callable[[Tally], None] = nothing,
    ) -> Tally:
        """Calls `work` for every unit; returns the sum of the counts.

        Args:
            work: called with a unit, its memory budget in bytes and `progress`, possibly in another
                process, so it must be a module's function or a partial of one.
            units: started in this order.
            least_bytes: smallest memory budget of a unit.
            progress: counters that `work` advances.
            prepare: called once in each process, before its free memory is divided.
            watch: called from time to time with the counts so far; may raise to end the stage.

        Raises:
            PreprocError: a unit failed, or there is too little memory for one.
        """
        prepare()
        threads, budget = share_budget(self.memory_limit, self.threads, least_bytes)
        done = Tally()
        for _, tally in run_units(units, lambda u: work(u, budget, progress), threads, progress):
            done += tally
            watch(done)
        return done


def anonymous_bytes() -> int:
    """Returns the anonymous memory of this process in bytes; 100 MiB without /proc."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return 100 * 2**20
    for line in status.splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    return 100 * 2**20


def free_budget(memory_limit: int) -> int:
    """Returns the bytes left for a stage's tables and buffers."""
    return min(memory_limit, _MOST_BYTES) - anonymous_bytes() - _RESERVE_BYTES


def share_budget(memory_limit: int, threads: int, least_bytes: int) -> tuple[int, int]:
    """Divides the free memory among threads, and uses fewer threads if it is short.

    Returns:
        The number of threads, and the bytes for each, at least `least_bytes`.

    Raises:
        PreprocError: there is not enough memory for one thread.
    """
    free = free_budget(memory_limit)
    if free < least_bytes:
        raise memory_error(memory_limit, memory_limit - free + least_bytes, "")
    threads = max(1, min(threads, free // least_bytes))
    return threads, free // threads


def memory_error(memory_limit: int, needed: int, remedy: str) -> PreprocError:
    """Returns the error for a limit below `needed` bytes.

    `remedy` continues the last sentence.
    """
    return PreprocError(
        f"`memory_limit` {format_bytes(memory_limit)} is too small: this input needs "
        f"{format_bytes(needed)}. Raise `memory_limit`{remedy}",
        setting="memory_limit",
    )
