# SPDX-License-Identifier: Apache-2.0
"""Finds bin edges from the sorted runs of a numerical column, and makes the bins' dictionary.

The runs of such a column hold the numbers themselves, as float64 bits.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import IO

import numpy as np
import numpy.typing as npt

from preproc.clicks.rules import ClicksSemantics, order_dictionary
from preproc.clicks.schema.row_format import Column
from preproc.files.errors import CancelledError
from preproc.files.progress import Progress
from recsys.data.quantiles import count_bins, quantile_edges

EDGE = np.dtype("<f8")
_ENTRY = np.dtype([("hash", "<u8"), ("count", "<u4"), ("length", "<u4"), ("number", "<f8")])
"""An entry of a run: a `WideEntry` (count_table.h), then its key."""
_BYTES_PER_NUMBER = 80
"""Memory to sort one distinct number: copies of number and count, and their order."""
_LEAST_NUMBERS = 1 << 13


def columns_without_edges(semantics: ClicksSemantics) -> dict[int, Column]:
    """Returns the numerical columns whose edges are to be found, by the index of their bins."""
    schema = semantics.schema
    if schema is None or not schema.lacking_edges:
        return {}
    names = [column.name for column in schema.with_dictionaries]
    return {names.index(column.derived[0].name): column for column in schema.lacking_edges}


def edges_path(folder: Path, column: int) -> Path:
    """Returns the file with a column's bin edges (float64)."""
    return folder / f"edges_{column}.bin"


def write_bins(
    runs: Sequence[npt.NDArray[np.uint64]],
    bins: int,
    *,
    known: npt.NDArray[np.uint32] | None = None,
    budget_bytes: int,
    edges_file: IO[bytes],
    keys_file: IO[bytes],
    progress: Progress,
) -> int:
    """Writes a column's bin edges and the bins' dictionary; returns the bytes of memory it needed.

    If it needs more than the budget, it writes nothing.

    Args:
        runs: words of each run; may be memory-mapped files.
        bins: the most bins.
        known: bins that have ids; None for none.
        budget_bytes: the most memory to use.
        edges_file: receives the edges, ascending.
        keys_file: receives the bins that have rows, in id order.
        progress: counters to advance.
    """
    numbers, counts = np.zeros(0, EDGE), np.zeros(0, np.int64)
    entries = [run.view(_ENTRY) for run in runs]
    needed_bytes = 0
    while entries:
        if progress.stop:
            raise CancelledError("cancelled")
        # A fixed share of the numbers, so that each is sorted again only a few times.
        pieces, room = [], max(len(numbers) // 4, _LEAST_NUMBERS)
        while entries and room:
            run = entries.pop()
            pieces.append(run[:room])
            if len(run) > room:
                entries.append(run[room:])
            room -= len(pieces[-1])
        needed_bytes = _BYTES_PER_NUMBER * (len(numbers) + sum(map(len, pieces)))
        if needed_bytes > budget_bytes:
            return needed_bytes + _BYTES_PER_NUMBER * sum(map(len, entries))
        numbers, counts = _merged(numbers, counts, pieces)
        progress.bytes += sum(piece.nbytes for piece in pieces)
    edges = quantile_edges(numbers, counts, bins)
    edges_file.write(np.array(edges, EDGE).tobytes())
    keys = order_dictionary(*count_bins(numbers, counts, edges), frequency_limit=1)
    if known is not None:
        keys = np.concatenate([known, keys[~np.isin(keys, known)]])
    keys_file.write(keys.astype("<u4").tobytes())
    return needed_bytes


def _merged(
    numbers: npt.NDArray[np.float64],
    counts: npt.NDArray[np.int64],
    pieces: Sequence[npt.NDArray[np.void]],
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """Merges pieces of runs into distinct numbers, ascending, and their row counts."""
    numbers = np.concatenate([numbers, *(piece["number"] for piece in pieces)])
    counts = np.concatenate([counts, *(piece["count"] for piece in pieces)])
    order = np.argsort(numbers, kind="stable")  # fast if most are sorted already
    numbers, counts = numbers[order], counts[order]
    first = np.flatnonzero(np.concatenate([[True], numbers[1:] != numbers[:-1]]))
    return numbers[first], np.add.reduceat(counts, first)
