# SPDX-License-Identifier: Apache-2.0
"""Brings rows of tables that are mapped files into memory, and removes them from it."""

from collections.abc import Sequence

from torch import Tensor

from cuda_ext.ops.registration import kernels


def bring_in_rows(tables: Sequence[Tensor], marks: Tensor, rows: Tensor) -> int:
    """Reads the unused pages of rows from disk, all at once, and maps them for writing.

    `reference.mark_pages` defines what it does with the marks.

    Args:
        tables: [R, D] float32 each, with the same R and D; each starts at a page.
        marks: [P] uint8, a mark for each page of a table, changed in place: 0 if it is unused.
        rows: int32 or int64 row numbers of any shape.

    Returns:
        Number of pages of each table that were brought in.

    Raises:
        RuntimeError: a row is outside [0, R).
    """
    count: int = kernels.bring_in_rows(list(tables), marks, rows.contiguous())
    return count


def drop_old_pages(tables: Sequence[Tensor], marks: Tensor) -> None:
    """Removes pages from the process that `bring_in_rows` did not mark since the last call.

    Their content stays in the file. For the arguments see `bring_in_rows`; for the marks
    `reference.age_pages`.
    """
    kernels.drop_old_pages(list(tables), marks)
