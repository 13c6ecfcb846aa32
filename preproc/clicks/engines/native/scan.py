# SPDX-License-Identifier: Apache-2.0
"""Stage 1 of the native engine: validates rows and counts categories."""

import dataclasses
import functools
import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from preproc.clicks.engine import EngineJob, FileRows
from preproc.clicks.engines.native.units import (
    NativeSettings,
    TextUnit,
    first_byte,
    read_unit,
    stream_bytes,
)
from preproc.clicks.kernel import binding
from preproc.clicks.rules import SPLITS, Bounds, ClicksSemantics
from preproc.clicks.schema.grammar import REJECT_REASONS
from preproc.clicks.schema.row_format import Edges
from preproc.files.budget import Threads
from preproc.files.errors import PreprocError
from preproc.files.progress import Progress, Tally
from preproc.files.quarantine import RejectedRow
from preproc.files.workspace import (
    atomic_file,
    attempt_folder,
    read_record,
    remove_attempts,
    write_record,
)

LEAST_TABLE_BYTES = 4 * 2**20
"""Least memory for a thread's counts; with less, merging the many runs would dominate."""


def least_scan_bytes(unit: TextUnit) -> int:
    """Returns the least memory to scan a unit."""
    return stream_bytes(unit.row_format) + LEAST_TABLE_BYTES


@dataclasses.dataclass(frozen=True, slots=True)
class ScannedUnit:
    """Counts of a unit, and files of its runs and rejected rows."""

    unit: TextUnit
    result: binding.ScanResult
    runs_path: Path
    rejects_path: Path

    def forget(self) -> None:
        """Makes the next run scan the unit again."""
        self.runs_path.with_suffix(".json").unlink(missing_ok=True)

    @property
    def rejected(self) -> int:
        """Number of rejected rows."""
        return sum(self.result.rejected.values())

    @property
    def tally(self) -> Tally:
        """Counts of the unit, for progress."""
        return Tally(self.result.text_bytes, self.result.rows, self.result.lines, self.rejected)


@dataclasses.dataclass(frozen=True, slots=True)
class ScannedInput:
    """The scanned units of all files, in row order.

    Attributes:
        folder: holds the results of the units.
        units: at least one per file.
        first_rows: [units + 1] global number of each unit's first valid row, then the total.
    """

    folder: Path
    units: tuple[ScannedUnit, ...]
    first_rows: tuple[int, ...]

    @property
    def key(self) -> list[object]:
        """Key for later stages: the folder, and the checksums of the text."""
        return [self.folder.name, *(unit.result.checksum for unit in self.units)]

    @property
    def files(self) -> tuple[FileRows, ...]:
        """Counts of each file, in input order."""
        by_file = itertools.groupby(self.units, key=lambda scanned: scanned.unit.file_index)
        results = [[scanned.result for scanned in units] for _, units in by_file]
        return tuple(
            FileRows(
                rows=sum(r.rows for r in of_file),
                lines=sum(r.lines for r in of_file),
                rejected={why: sum(r.rejected[why] for r in of_file) for why in REJECT_REASONS},
                split_rows=tuple(map(sum, zip(*(r.split_rows for r in of_file), strict=True))),
                split_values=(
                    min(r.split_values[0] for r in of_file),
                    max(r.split_values[1] for r in of_file),
                ),
            )
            for of_file in results
        )

    def with_edges(self, edges: Edges) -> "ScannedInput":
        """Returns the units with the bin edges that were found, to encode their rows."""
        units = (
            dataclasses.replace(
                scanned,
                unit=dataclasses.replace(
                    scanned.unit, row_format=scanned.unit.row_format.with_edges(edges)
                ),
            )
            for scanned in self.units
        )
        return dataclasses.replace(self, units=tuple(units))

    def row_ranges(
        self, bounds: Bounds, *, by_row: bool
    ) -> tuple[tuple[tuple[int, int], ...], ...]:
        """Returns the global rows of each unit.

        That is one range, or one per split if the split depends on the contents of a row.
        """
        if not by_row:
            return tuple((pair,) for pair in itertools.pairwise(self.first_rows))
        counts = [unit.result.split_rows for unit in self.units]
        of_splits = []
        for number, split in enumerate(SPLITS):
            ends = itertools.accumulate((c[number] for c in counts), initial=bounds[split][0])
            of_splits.append(tuple(itertools.pairwise(ends)))
        return tuple(zip(*of_splits, strict=True))


def scan(
    engine_job: EngineJob,
    executor: Threads,
    units: tuple[TextUnit, ...],
    settings: NativeSettings,
) -> ScannedInput:
    """Scans every unit that is not scanned yet.

    Raises:
        TooManyRejectedRowsError: `max_bad_fraction` is exceeded.
        PreprocError: no row is valid.
    """
    job = engine_job.job
    folder = engine_job.work_folder(
        "scan",
        kernel=binding.kernel_version(),
        units=[(unit.file_index, unit.begin, unit.end) for unit in units],
    )
    remove_attempts(folder)

    def load() -> dict[TextUnit, ScannedUnit]:
        loaded = {unit: load_unit(folder, unit, unit.name) for unit in units}
        return {unit: scanned for unit, scanned in loaded.items() if scanned is not None}

    done = load()
    before = sum((u.tally for u in done.values()), Tally())
    total = sum(u.text_bytes for u in units)

    def watch(tally: Tally) -> None:
        now = before + tally
        unread = max(total - now.text_bytes, 0)
        if now.bad > job.max_bad_fraction * (
            now.lines + unread // units[0].row_format.shortest_row_bytes
        ):
            _check_rejected(load(), units, engine_job)

    missing = [unit for unit in units if unit not in done]
    progress = Progress(before.text_bytes, before.rows)
    work = functools.partial(scan_unit, folder, job.semantics, settings.table_bytes)
    with engine_job.reporter.stage("scan", total, progress.counters):
        executor.map(work, missing, least_scan_bytes(units[0]), progress, watch=watch)
    done = load()
    _check_rejected(done, units, engine_job)
    ordered = tuple(done[u] for u in units)
    first_rows = tuple(itertools.accumulate((u.result.rows for u in ordered), initial=0))
    if first_rows[-1] == 0:
        raise PreprocError(f"`input` {job.input}: has no valid row", setting="input")
    return ScannedInput(folder, ordered, first_rows)


def scan_unit(
    folder: Path,
    semantics: ClicksSemantics,
    table_bytes: int | None,
    unit: TextUnit,
    budget: int,
    progress: Progress,
    name: str = "",
    row_limit: int = binding.NO_LIMIT,
) -> Tally:
    """Scans a unit, or its first `row_limit` rows, into `folder`.

    `table_bytes` is the memory for counts; None takes all of the budget. `name` is the file name
    without suffix; "" takes the unit's name.
    """
    name = name or unit.name
    scanned = load_unit(folder, unit, name)  # an earlier attempt may have scanned it
    if scanned is None:
        with attempt_folder(folder) as private:
            table_bytes = table_bytes or budget - stream_bytes(unit.row_format)
            _scan_text(private / name, semantics, table_bytes, unit, progress, row_limit)
            # The record comes last because it marks the unit as done.
            for suffix in ("runs", "rejects", "json"):
                (private / f"{name}.{suffix}").replace(folder / f"{name}.{suffix}")
        scanned = load_unit(folder, unit, name)
        assert scanned is not None
    return scanned.tally


def _scan_text(
    path: Path,
    semantics: ClicksSemantics,
    table_bytes: int,
    unit: TextUnit,
    progress: Progress,
    row_limit: int,
) -> None:
    """Scans a unit into the files `path`.runs, `path`.rejects and `path`.json."""
    with (
        atomic_file(path.with_name(f"{path.name}.runs")) as runs,
        atomic_file(path.with_name(f"{path.name}.rejects")) as rejects,
        binding.Scanner(
            semantics=semantics,
            row_format=unit.row_format,
            table_bytes=table_bytes,
            row_limit=row_limit,
            runs_fd=runs.fileno(),
            rejects_fd=rejects.fileno(),
            offset=first_byte(unit),
            progress=progress,
        ) as scanner,
    ):
        result = read_unit(scanner, unit)
    write_record(path.with_name(f"{path.name}.json"), dataclasses.asdict(result))


def load_unit(folder: Path, unit: TextUnit, name: str) -> ScannedUnit | None:
    """Loads the counts of a unit; None if it is not scanned."""
    record = read_record(folder / f"{name}.json")
    if record is None:
        return None
    runs = tuple(binding.SortedRun(**run) for run in record.pop("runs"))
    record |= {name: tuple(record[name]) for name in ("split_rows", "split_values")}
    result = binding.ScanResult(runs=runs, **record)
    return ScannedUnit(unit, result, folder / f"{name}.runs", folder / f"{name}.rejects")


def _check_rejected(
    done: dict[TextUnit, ScannedUnit], units: tuple[TextUnit, ...], engine_job: EngineJob
) -> None:
    """Raises if too many rows are rejected even if all unread rows are valid."""
    rejected = sum(u.rejected for u in done.values())
    if rejected == 0:
        return
    unread = [u for u in units if u not in done]
    if any(not u.file.is_plain for u in unread):
        return  # the size of the text is unknown
    most_rows = sum(u.result.lines for u in done.values())
    shortest = units[0].row_format.shortest_row_bytes
    most_rows += sum(u.text_bytes for u in unread) // shortest
    examples = rejected_rows([done[u] for u in units if u in done])
    engine_job.check_rejected_rows(rejected, most_rows, examples)


def rejected_rows(units: Iterable[ScannedUnit]) -> Iterator[RejectedRow]:
    """Yields the rejected rows of units, in input order."""
    lines: dict[int, int] = {}
    for scanned in units:
        index = scanned.unit.file_index
        first_line = lines.get(index, 0) + 1
        lines[index] = lines.get(index, 0) + scanned.result.lines
        if scanned.rejected == 0:
            continue
        with scanned.rejects_path.open("rb") as file:
            while header := file.read(binding.REJECTED_HEADER.itemsize):
                fields: Any = np.frombuffer(header, binding.REJECTED_HEADER)[0]
                yield RejectedRow(
                    file=scanned.unit.file.name,
                    byte_offset=int(fields["offset"]),
                    line_number=first_line + int(fields["line"]),
                    reason=REJECT_REASONS[int(fields["reason"])],
                    row=file.read(int(fields["length"])),
                )
