# SPDX-License-Identifier: Apache-2.0
"""Units of work of the native engine: their plan, their threads and their memory."""

import concurrent.futures
import dataclasses
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from preproc.criteo.engines.native.kernel import binding
from preproc.criteo.input import align_to_line, long_line_message
from preproc.criteo.job import format_bytes
from preproc.files.errors import PreprocError
from preproc.files.input_file import InputFile, open_fd

Unit = TypeVar("Unit")
Result = TypeVar("Result")

_RESERVE_BYTES = 24 * 2**20
"""Left free of the limit: the interpreter's own growth while a stage runs (14 MiB measured)."""

STREAM_BYTES = 4 * 2**20
"""Buffers of one scanner or encoder: 1.5 MiB of text, a batch of rows, output columns."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class NativeSettings:
    """Sizes that change speed, memory and work files, never the dataset.

    Attributes:
        unit_bytes: text of a unit; None chooses by the size of the input.
        table_bytes: memory for counts per thread; None takes what the memory limit leaves.
        merge_bytes: memory to merge a column; None takes what the memory limit leaves.
    """

    unit_bytes: int | None = None
    table_bytes: int | None = None
    merge_bytes: int | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class TextUnit:
    """A range of one file: the rows whose first byte lies in [begin, end); gzip is one unit."""

    file: InputFile
    file_index: int
    begin: int
    end: int

    @property
    def name(self) -> str:
        """File name of the unit's results."""
        return f"{self.file_index:03d}_{self.begin:014d}"

    @property
    def text_bytes(self) -> int:
        """Bytes of text: exact for a plain file, an estimate for a packed one."""
        if self.file.compression == "gzip":
            return self.file.text_bytes
        return self.end - self.begin


def plan_units(inputs: tuple[InputFile, ...], settings: NativeSettings) -> tuple[TextUnit, ...]:
    """Cuts the input into units, in row order."""
    total = sum(f.size for f in inputs)
    unit_bytes = settings.unit_bytes or default_unit_bytes(total)
    units = []
    for index, file in enumerate(inputs):
        step = file.size if file.compression == "gzip" else unit_bytes
        units += [
            TextUnit(file, index, begin, min(begin + step, file.size))
            for begin in range(0, file.size, step)
        ]
    return tuple(units)


def default_unit_bytes(total: int) -> int:
    """Returns the unit size for an input of `total` bytes.

    Small inputs need enough units for all cores. In large ones, long units meet fewer categories
    twice, and so write smaller runs.
    """
    for limit, size in ((2**32, 2**26), (2**36, 2**28)):
        if total < limit:
            return size
    return 2**30


def feed_unit(reader: binding.Scanner | binding.Encoder, unit: TextUnit) -> None:
    """Gives the whole text of a unit to a reader.

    Raises:
        PreprocError: a line does not end, or the text cannot be unpacked.
    """
    try:
        if unit.file.compression == "gzip":
            for piece in _one_ahead(unit.file.pieces()):
                reader.feed(piece)
            return
        with open_fd(unit.file.path) as fd:
            begin, end = line_range(fd, unit)
            reader.feed_file(fd, begin, end)
    except binding.LineTooLongError as error:
        offset = int(str(error).split("byte ")[1].split()[0])
        raise PreprocError(long_line_message(unit.file.path, offset)) from error


def _one_ahead(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Unpacks the next piece in another thread while this one works on the last."""
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        ahead = pool.submit(next, pieces, b"")
        while piece := ahead.result():
            ahead = pool.submit(next, pieces, b"")
            yield piece


def line_range(fd: int, unit: TextUnit) -> tuple[int, int]:
    """Returns the whole lines of a unit of plain text."""
    size = unit.file.size
    return align_to_line(fd, unit.begin, size), align_to_line(fd, unit.end, size)


def run_units(
    units: Iterable[Unit],
    work: Callable[[Unit], Result],
    threads: int,
    progress: binding.Progress,
) -> Iterator[tuple[Unit, Result]]:
    """Works on units in threads and yields results as they come; an error stops the others."""
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


def anonymous_bytes() -> int:
    """Returns the anonymous memory of this process (an estimate where /proc is missing)."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return 100 * 2**20
    for line in status.splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    return 100 * 2**20


def free_budget(memory_limit: int) -> int:
    """Returns what the limit leaves for the tables and buffers of a stage."""
    return memory_limit - anonymous_bytes() - _RESERVE_BYTES


def share_budget(memory_limit: int, threads: int, least_bytes: int) -> tuple[int, int]:
    """Divides the free memory among threads; fewer threads work where it is short.

    Args:
        memory_limit: of the whole process.
        threads: wanted.
        least_bytes: what a thread cannot do without.

    Returns:
        Threads, and bytes for each.

    Raises:
        PreprocError: not even one thread has enough.
    """
    free = free_budget(memory_limit)
    if free < least_bytes:
        raise memory_error(memory_limit, memory_limit - free + least_bytes, "")
    threads = max(1, min(threads, free // least_bytes))
    return threads, free // threads


def memory_error(memory_limit: int, needed: int, remedy: str) -> PreprocError:
    """Returns the error for a limit that cannot be kept."""
    return PreprocError(
        f"--memory_limit {format_bytes(memory_limit)} is too small: this input needs "
        f"{format_bytes(needed)}. Raise --memory_limit{remedy}"
    )
