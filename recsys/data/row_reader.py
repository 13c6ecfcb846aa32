# SPDX-License-Identifier: Apache-2.0
"""The interface of readers: rows of a split, whatever the format."""

import abc
from collections.abc import Sequence
from pathlib import Path

from recsys.data.click_columns import (
    FOREIGN_OR_DAMAGED,
    ClickColumns,
    RawColumns,
    check_ids_of,
    check_label,
    check_numerical,
)
from recsys.data.feature_spec import FeatureSpec
from recsys.data.list_columns import ListColumn
from recsys.data.split_layout import SplitLayout

BLOCK_ROWS = 1 << 17
"""Rows of a block: at most 20 MB of Criteo rows, to bound the memory and keep reads long."""


class RowReader(abc.ABC):
    """Reads the rows of a split; several threads may read at the same time.

    Args:
        spec: columns of the dataset.
        check_ids: whether `read` refuses ids outside their tables.

    Attributes:
        format_name: name of the format, for reports.
        spec: columns of the dataset.
        num_rows: rows of the split.
        files: files that hold rows of the split.
        layout: files and types of split binary; None for other formats.
    """

    format_name: str
    num_rows: int
    files: Sequence[Path]
    layout: SplitLayout | None = None
    _label_remedy = FOREIGN_OR_DAMAGED

    def __init__(self, spec: FeatureSpec, *, check_ids: bool) -> None:
        self.spec = spec
        self._check_ids = check_ids

    @abc.abstractmethod
    def read_unchecked(self, start: int, stop: int) -> RawColumns:
        """Returns rows [start, stop) of a block as stored, without lists."""

    @abc.abstractmethod
    def path_of(self, column: str, row: int) -> Path:
        """Returns the file that holds a row of a column."""

    def read_lists(self, start: int, stop: int) -> tuple[ListColumn, ...]:  # noqa: ARG002
        """Returns the lists of rows [start, stop); empty for formats without lists.

        Raises:
            DatasetError: a file is damaged, or a checked id is outside its table.
        """
        return ()

    def blocks(self) -> list[range]:
        """Returns ranges of rows to read at once, in order."""
        starts = range(0, self.num_rows, BLOCK_ROWS)
        return [range(start, min(start + BLOCK_ROWS, self.num_rows)) for start in starts]

    def read(self, start: int, stop: int) -> ClickColumns:
        """Returns rows [start, stop).

        Raises:
            DatasetError: a label is neither 0 nor 1 (the spec does not fit the file), a number is
                not finite, a checked id is outside its table, or a file ends early (it changed
                since it was opened).
            IndexError: the split has no such rows.
        """
        if not 0 <= start <= stop <= self.num_rows:
            raise IndexError(f"rows [{start}, {stop}) of {self.num_rows}")
        raw = self.read_unchecked(start, stop)
        return self._checked(raw, start, self.read_lists(start, stop), check_ids=self._check_ids)

    def _checked(
        self,
        raw: RawColumns,
        first_row: int,
        lists: tuple[ListColumn, ...] = (),
        *,
        check_ids: bool = False,
    ) -> ClickColumns:
        """Checks rows as stored; `first_row` is the number of the first one."""
        path = self.path_of(self.spec.label, first_row)
        label = check_label(raw.label, self.spec.label, path, first_row, self._label_remedy)
        if self.spec.numerical:
            path = self.path_of(self.spec.numerical[0], first_row)
            check_numerical(raw.numerical, self.spec.numerical, path, first_row)
        if check_ids:
            for feature, ids in zip(self.spec.categorical, raw.categorical, strict=True):
                check_ids_of(feature, ids, self.path_of(feature.name, first_row), first_row)
        return ClickColumns(label, raw.numerical, raw.categorical, lists)

    def close(self) -> None:
        """Closes the files that the reader keeps open, if any."""
        return
