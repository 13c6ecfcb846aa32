# SPDX-License-Identifier: Apache-2.0
"""Columns of Arrow and arrays of NumPy hold the same numbers; pandas is not imported for them."""

import numpy as np
import pyarrow as pa
import pytest

from recsys.data.arrow_columns import column_of, numbers_of, texts_of
from tests import harness


@pytest.mark.parametrize("dtype", ["<i1", "<u2", "<i4", "<i8", "<u8", "<f4", "<f8"])
def test_numbers_survive_both_ways(dtype):
    numbers = np.arange(12).astype(dtype)
    for array in (numbers, numbers[3:], numbers[::2], numbers[:0]):
        column = column_of(array)
        assert column.equals(pa.array(array))
        made = numbers_of(column)
        assert made.dtype == array.dtype
        assert made.tolist() == array.tolist()
    chunks = pa.chunked_array([column_of(numbers[:5]), column_of(numbers[5:])])
    assert numbers_of(chunks).tolist() == numbers.tolist()
    assert numbers_of(chunks.slice(2, 6)).tolist() == numbers[2:8].tolist()


def test_truth_values():
    for count in (0, 1, 8, 13):
        mask = np.arange(count) % 3 == 0
        assert column_of(mask).equals(pa.array(mask))


def test_missing_numbers_are_nan_and_other_types_are_converted():
    assert np.array_equal(numbers_of(pa.array([1, None])), [1, np.nan], equal_nan=True)
    assert numbers_of(pa.array([True, False])).tolist() == [True, False]
    assert numbers_of(pa.chunked_array([], pa.int64())).tolist() == []


def test_texts():
    texts = ["", "a", "né", "日本"]
    assert texts_of([text.encode() for text in texts]).equals(pa.array(texts))
    assert texts_of([]).equals(pa.array([], pa.string()))


def test_pandas_is_not_imported():
    harness.python(
        "-c",
        "import sys, numpy as np; from recsys.data.arrow_columns import *;"
        "numbers_of(column_of(np.arange(3))); texts_of([b'a']); assert 'pandas' not in sys.modules",
    )
