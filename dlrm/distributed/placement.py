# SPDX-License-Identifier: Apache-2.0
"""The placement of tables on ranks, and its JSON file."""

import dataclasses
import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from recsys.errors import UserError
from recsys.files.durable import write_whole_file
from recsys.files.json_text import parse_json
from recsys.settings import checked

FORMAT = "recsys-recipes placement"
FORMAT_VERSION = 1

PlacementKind = Literal["replicate", "whole", "rows"]
_TABLE_KEYS = {"rows", "kind", "rank"}
KINDS: tuple[PlacementKind, ...] = get_args(PlacementKind)


class PlacementError(UserError):
    """A placement is impossible, or does not match the model or the run."""


@dataclasses.dataclass(frozen=True, slots=True)
class TablePlacement:
    """The placement of one table.

    Attributes:
        rows: number of rows of the table.
        kind: `replicate`: data-parallel, a copy on every rank. `whole`: table-wise, on one rank.
            `rows`: row-wise, distributed row by row, which spreads the frequent first rows.
        rank: rank of a `whole` table; None for other kinds.
    """

    rows: int
    kind: PlacementKind
    rank: int | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Placement:
    """The placement of every table.

    Attributes:
        world_size: number of ranks.
        tables: F placements, in the order of the features.

    Raises:
        PlacementError: a table has no rank, or a rank that does not exist.
    """

    world_size: int
    tables: tuple[TablePlacement, ...]

    def __post_init__(self) -> None:
        """Refuses tables without a rank or with a rank that does not exist."""
        if self.world_size < 1:
            raise PlacementError(f"world_size must be at least 1, got {self.world_size}")
        for i, table in enumerate(self.tables):
            if table.kind not in KINDS:
                raise PlacementError(
                    f"table {i}: kind must be one of {', '.join(KINDS)}, got {table.kind!r}"
                )
            if table.rows < 1:
                raise PlacementError(f"table {i}: rows must be at least 1, got {table.rows}")
            is_rank = table.rank is not None and 0 <= table.rank < self.world_size
            if table.kind == "whole" and not is_rank:
                raise PlacementError(
                    f"table {i}: is whole on rank {table.rank}, but the ranks are 0 to "
                    f"{self.world_size - 1}"
                )
            if table.kind != "whole" and table.rank is not None:
                raise PlacementError(f"table {i}: {table.kind} means every rank, not one rank")

    def of_kind(self, kind: PlacementKind) -> list[int]:
        """Returns the numbers of the tables of a kind."""
        return [i for i, table in enumerate(self.tables) if table.kind == kind]

    def whole_on(self, rank: int) -> list[int]:
        """Returns the numbers of a rank's table-wise tables."""
        return [i for i in self.of_kind("whole") if self.tables[i].rank == rank]

    def sharded_on(self, rank: int) -> list[int]:
        """Returns the features whose vectors a rank looks up for all ranks."""
        return sorted(self.whole_on(rank) + self.of_kind("rows"))

    def owner(self, table: int, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Returns the rank of each row (id) of a row-wise table.

        Row r of table i is row r div W of rank (r + i) mod W. Consecutive rows are on consecutive
        ranks, and the first rows of the tables, which are the most frequent, on different ranks.
        """
        return (ids + table) % self.world_size

    def first_row(self, table: int, rank: int) -> int:
        """Returns a rank's first row of a table; in a row-wise table, every W-th row follows."""
        return (rank - table) % self.world_size if self.tables[table].kind == "rows" else 0

    def local_rows(self, table: int, rank: int) -> int:
        """Returns the number of a table's rows on a rank."""
        rows, kind = self.tables[table].rows, self.tables[table].kind
        if kind == "replicate":
            return rows
        if kind == "whole":
            return rows if self.tables[table].rank == rank else 0
        first = self.first_row(table, rank)
        return max(rows - first + self.world_size - 1, 0) // self.world_size

    def rows_on(self, rank: int, names: Sequence[str]) -> tuple[dict[str, int], dict[str, int]]:
        """Returns {name: rows} of a rank's own shards, and {name: rows} of its copies."""
        own = {names[i]: self.local_rows(i, rank) for i in self.sharded_on(rank)}
        return own, {names[i]: self.tables[i].rows for i in self.of_kind("replicate")}

    def to_json(self) -> dict[str, Any]:
        """Returns the content of the JSON file."""
        tables = [
            {k: v for k, v in dataclasses.asdict(table).items() if v is not None}
            for table in self.tables
        ]
        return {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "world_size": self.world_size,
            "tables": tables,
        }

    def save(self, path: Path) -> None:
        """Writes the JSON file; it appears when it is complete."""
        write_whole_file(path, json.dumps(self.to_json(), indent=1) + "\n")

    @classmethod
    def load(cls, path: Path, table_sizes: Sequence[int], world_size: int) -> "Placement":
        """Reads a JSON file and checks it against the model.

        Args:
            path: JSON file written by `save` or by a user.
            table_sizes: rows of each table in the model.
            world_size: number of ranks of the run.

        Raises:
            PlacementError: the file is not readable, or belongs to other tables or ranks.
        """
        try:
            values = parse_json(path.read_text())
        except (OSError, ValueError) as error:
            raise PlacementError(f"{path}: not readable as JSON: {error}") from error
        if not isinstance(values, dict) or values.get("format") != FORMAT:
            raise PlacementError(f'{path}: not a placement ("format" is not "{FORMAT}")', path=path)
        if values.get("format_version") != FORMAT_VERSION:
            raise PlacementError(
                f"{path}: has format version {values.get('format_version')}, but this program "
                f"reads {FORMAT_VERSION}",
                path=path,
            )
        try:
            world = checked("world_size", int, values.get("world_size"))
            tables = values.get("tables")
            if not isinstance(tables, list):
                raise PlacementError(f"tables must be a list, got {tables!r}")
            placement = cls(world, tuple(itertools.starmap(_read_table, enumerate(tables))))
        except UserError as error:
            raise PlacementError(f"{path}: {error}", path=path) from error
        if placement.world_size != world_size:
            raise PlacementError(
                f"{path}: was made for {placement.world_size} ranks, but the run has {world_size}; "
                "leave out `placement` to plan a new one",
                setting="placement",
                path=path,
            )
        sizes = [table.rows for table in placement.tables]
        if sizes != list(table_sizes):
            differing = [
                f"table {i} (file {was}, model {now})"
                for i, (was, now) in enumerate(zip(sizes, table_sizes, strict=False))
                if was != now
            ] or [f"{len(sizes)} tables, but the model has {len(table_sizes)}"]
            raise PlacementError(
                f"{path}: was made for other tables: {', '.join(differing[:5])}", path=path
            )
        return placement


def _read_table(number: int, values: Any) -> TablePlacement:
    """Builds a table's placement from its JSON value.

    Raises:
        UserError: a key is missing or unknown, or a value has another type.
    """
    name = f"table {number}"
    if not isinstance(values, dict) or not {"rows", "kind"} <= values.keys() <= _TABLE_KEYS:
        raise PlacementError(
            f"{name}: must have the keys rows, kind and, optionally, rank, got {values!r}"
        )
    rank = values.get("rank")
    return TablePlacement(
        checked(f"{name}: rows", int, values["rows"]),
        checked(f"{name}: kind", str, values["kind"]),
        None if rank is None else checked(f"{name}: rank", int, rank),
    )
