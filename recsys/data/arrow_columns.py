# SPDX-License-Identifier: Apache-2.0
"""Columns of Arrow as arrays of NumPy, and arrays as columns.

The conversions of pyarrow import pandas where that is installed, which takes half a second. These
do not.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa


def numbers_of(column: pa.Array | pa.ChunkedArray) -> npt.NDArray[Any]:
    """Returns the numbers of a column, which shares their memory if it has one chunk.

    A column of another type, or with missing numbers, which become NaN, is converted by pyarrow.
    """
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    has_dlpack = pa.types.is_integer(column.type) or pa.types.is_floating(column.type)
    if column.null_count or not chunks or not has_dlpack:
        array: npt.NDArray[Any] = column.to_numpy(zero_copy_only=False)
        return array
    arrays = [np.from_dlpack(chunk) for chunk in chunks]
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def column_of(array: npt.NDArray[Any]) -> pa.Array:
    """Returns a column of numbers or truth values; numbers share their memory if contiguous."""
    if array.dtype == np.bool_:
        buffer = pa.py_buffer(np.packbits(array, bitorder="little"))
    else:
        buffer = pa.py_buffer(np.ascontiguousarray(array))
    return pa.Array.from_buffers(pa.from_numpy_dtype(array.dtype), len(array), [None, buffer])


def texts_of(texts: Sequence[bytes]) -> pa.Array:
    """Returns a column of texts, which are UTF-8."""
    ends = np.cumsum([0, *map(len, texts)], dtype=np.int32)
    return pa.StringArray.from_buffers(
        len(texts), pa.py_buffer(ends), pa.py_buffer(b"".join(texts))
    )
