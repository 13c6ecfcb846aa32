# SPDX-License-Identifier: Apache-2.0
"""Ratings that grow by a day: the rows so far, and item numbers that never move.

A day's histories are those of all rows so far. So its dataset keeps these rows, in one file per
day, and the next day reads them before its own.
"""

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from preproc.files.days import history_of, next_day
from preproc.files.errors import PreprocError
from preproc.files.workspace import link_files
from preproc.ratings.format import ITEM, TIMESTAMP, USER, RatingsFormat
from preproc.ratings.numbering import renumbered
from preproc.ratings.parse import Interactions, keys_of_times, times_of_keys
from preproc.ratings.stages import Filtered
from recsys.data.manifest import Manifest
from recsys.data.sequences.files import DAY_ROWS, read_item_map, write_parquet
from recsys.data.sequences.titles import read_titles

RULES = ("min_rating", "min_user_count", "min_item_count", "kcore", "split")
"""Settings that the first day sets for all days."""

_GROUP_ROWS = 1 << 20
_DROPPED = "dropped_by_min_rating"
_REAL_TIMES = b"times"


@dataclasses.dataclass(kw_only=True, slots=True)
class RatingsSoFar:
    """What a day of ratings adds to.

    Attributes:
        last: folder of the day before; None for the first day.
        history: for the manifest, the earlier days.
        known: [K] raw ids of the items that have a number, in its order.
        before: manifest of the day before.
        num_earlier: rows of the earlier days that were read.
    """

    last: Path | None
    history: list[dict[str, Any]]
    known: pa.Array
    before: Manifest | None
    num_earlier: int = 0
    _pending: list[pa.Table] = dataclasses.field(default_factory=list)

    @classmethod
    def of(cls, folder: Path) -> "RatingsSoFar":
        """Reads the days so far.

        Raises:
            UserError: they are damaged, do not follow each other, or do not keep their rows.
        """
        history, (_, last) = history_of(folder), next_day(folder)
        if last is None:
            return cls(last=None, history=[], known=pa.array([], pa.string()), before=None)
        if not any((last / DAY_ROWS).glob("*.parquet")):
            raise PreprocError(
                f"`extend` {folder}: {last.name} was prepared without its rows; prepare the first "
                "day with `extend` too",
                setting="extend",
                path=last,
            )
        before = Manifest.load(last)
        return cls(last=last, history=history, known=read_item_map(last).raw, before=before)

    def earlier_rows(self, layout: RatingsFormat) -> Iterator[Interactions]:
        """Yields the rows of the earlier days, in their order.

        Raises:
            PreprocError: the times of the new day are of another kind.
        """
        for path in self._paths():
            with pq.ParquetFile(path) as file:
                kind = (file.schema_arrow.metadata or {}).get(_REAL_TIMES, b"")
                if kind != _times_of(layout):
                    raise PreprocError(
                        f"`extend`: the times of this day are {_in_words(_times_of(layout))}, but "
                        f"those of the days before are {_in_words(kind)}; give times of one kind",
                        setting="extend",
                        path=path,
                    )
                for group in range(file.num_row_groups):
                    rows = _interactions(file.read_row_group(group))
                    self.num_earlier += len(rows)
                    yield rows

    def keep(self, rows: Interactions) -> None:
        """Remembers rows of the new day."""
        columns: dict[str, Any] = {
            USER: rows.users.cast(pa.string()),
            ITEM: rows.items.cast(pa.string()),
        }
        if rows.timestamps is not None:
            columns[TIMESTAMP] = rows.timestamps
        self._pending.append(pa.table(columns))

    def write(self, dataset: Path, layout: RatingsFormat) -> None:
        """Writes the rows of the new day, and links those of the earlier days."""
        if self.last is not None:
            link_files(self.last / DAY_ROWS, dataset / DAY_ROWS, but=())
        (dataset / DAY_ROWS).mkdir(exist_ok=True)
        table = pa.concat_tables(self._pending).combine_chunks()
        if layout.real_times:
            times = times_of_keys(table[TIMESTAMP].to_numpy())
            place = table.column_names.index(TIMESTAMP)
            table = table.set_column(place, TIMESTAMP, pa.array(times))
        schema = table.schema.with_metadata({_REAL_TIMES: _times_of(layout)})
        groups = (table.slice(at, _GROUP_ROWS) for at in range(0, len(table), _GROUP_ROWS))
        number = len(self._paths())
        write_parquet(dataset / DAY_ROWS / f"day_{number:04d}.parquet", schema,
                      (group.cast(schema) for group in groups))  # fmt: skip

    def number(self, filtered: Filtered) -> Filtered:
        """Returns the interactions with the numbers of known items; new items follow."""
        found = pc.index_in(filtered.items.raw, self.known)
        is_new = found.is_null().to_numpy(zero_copy_only=False)
        numbers = found.fill_null(0).to_numpy().astype(np.int64) + 1
        numbers[is_new] = len(self.known) + 1 + np.arange(is_new.sum())
        raw = pa.concat_arrays([self.known, filtered.items.raw.filter(pa.array(is_new))])
        earlier = 0 if self.before is None else self.before.statistics[_DROPPED]
        return renumbered(
            filtered, numbers, raw, {_DROPPED: filtered.statistics[_DROPPED] + earlier}
        )

    def titles(self) -> list[str]:
        """Returns the titles of the known items; empty without any."""
        if self.last is None:
            return []
        return read_titles(self.last, len(self.known)) or []

    def _paths(self) -> list[Path]:
        return [] if self.last is None else sorted((self.last / DAY_ROWS).glob("*.parquet"))


def rules_of_day(last: Path) -> dict[str, Any]:
    """Returns the settings that the first day set."""
    semantics = Manifest.load(last).semantics
    return {name: semantics[name] for name in RULES}


def both(*sinks: Callable[[Interactions], None]) -> Callable[[Interactions], None]:
    """Returns a sink that passes rows to several."""

    def add(rows: Interactions) -> None:
        for sink in sinks:
            sink(rows)

    return add


def _interactions(table: pa.Table) -> Interactions:
    users, items = (table.column(name).dictionary_encode() for name in (USER, ITEM))
    has_times = TIMESTAMP in table.column_names
    times = table.column(TIMESTAMP).to_numpy() if has_times else None
    if times is not None and times.dtype == np.float64:
        times = keys_of_times(times)
    return Interactions(users, items, None, times)


def _times_of(layout: RatingsFormat) -> bytes:
    if not layout.has_timestamps:
        return b"none"
    return b"real" if layout.real_times else b"whole"


def _in_words(kind: bytes) -> str:
    return {b"real": "with fractions of a second", b"whole": "whole numbers"}.get(kind, "missing")
