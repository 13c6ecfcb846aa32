# SPDX-License-Identifier: Apache-2.0
"""Writes rows of a table with the kernel."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from preproc.clicks.kernel.shared_library import CellColumn, is_built, load
from preproc.files.raw import tables

if TYPE_CHECKING:
    import pyarrow as pa


def write_cells(columns: Sequence["pa.Array"]) -> bytes:
    """Returns rows of cells as text; same bytes as `write_cells` of preproc.files.raw.tables."""
    if not is_built():
        return tables.write_cells(columns)
    keep_alive: list[Any] = []
    cells = (CellColumn * len(columns))(*(_cells_of(each, keep_alive) for each in columns))
    library, rows = load(), len(columns[0])
    text = np.empty(library.clicks_measure_rows(cells, len(cells), rows), np.uint8)
    size = library.clicks_write_rows(cells, len(cells), rows, text.ctypes.data)
    return text[:size].tobytes()


def _cells_of(column: "pa.Array", keep_alive: list[Any]) -> CellColumn:
    """Returns a column in the kernel's form; keeps the buffers it points to alive."""
    import pyarrow as pa

    cells = CellColumn()
    texts = column
    if pa.types.is_dictionary(column.type):
        texts, indices = column.dictionary, column.indices.cast(pa.int32())
        bits, numbers = _keep(indices.buffers(), keep_alive)
        cells.indices = numbers and numbers + indices.offset * pa.int32().byte_width
        cells.index_bits, cells.first_index_bit = bits, indices.offset
    is_wide = pa.types.is_large_string(texts.type) or pa.types.is_large_binary(texts.type)
    buffers = texts.buffers()
    bits, ends, text = _keep(buffers, keep_alive)
    cells.texts, cells.is_wide = len(texts), is_wide
    cells.ends = ends and ends + texts.offset * (8 if is_wide else 4)
    cells.text, cells.text_bytes = text, buffers[2].size if buffers[2] is not None else 0
    cells.text_bits, cells.first_text_bit = bits, texts.offset
    return cells


def _keep(buffers: list[Any], keep_alive: list[Any]) -> list[int | None]:
    """Keeps buffers alive; returns their addresses."""
    keep_alive += buffers
    return [None if buffer is None else buffer.address for buffer in buffers]
