# SPDX-License-Identifier: Apache-2.0
"""The values of a row's fields, independent of how they are written.

Rows are split and grouped by hashes of these values, so a row has the same hash in csv, in parquet
and in a Python table: quotes, the order of the columns, 5.0 for 5 and true for 1 make no
difference.
"""

import struct
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import xxhash

from preproc.clicks.rules import shuffle_keys
from preproc.clicks.schema.grammar import is_decimal, read_category, read_list, shorten_number
from preproc.clicks.schema.row_format import Column, RowFormat
from preproc.clicks.schema.time_rule import read_iso_time


def field_value(field: bytes, column: Column, row_format: RowFormat) -> int | None:
    """Returns 64 bits for the value of a valid field; None if it is missing.

    - Label: 1 or 0.
    - Number: the bits of the float64.
    - Category: the number, or the XXH64 of the text, even if it is hashed to a bucket.
    - Time: milliseconds since 1970 UTC.
    - Column without a role: see `_value_of_any`.
    - List: starts as the number of elements. For each element's category (its bucket if there are
      buckets) and for the float32 bits of its weight, it becomes the output with that number of
      SplitMix64 whose state is the value so far.
    """
    if column.role == "label":
        return int(field in row_format.positive)
    if not field:
        return None
    if column.role == "numerical":
        return int.from_bytes(struct.pack("<d", float(field) + 0.0), "little")  # -0 is 0
    if column.time is not None:
        return column.time.milliseconds(field)
    if column.list is not None:
        elements = read_list(field, column.type, column.buckets, column.list)
        assert isinstance(elements, list)
        value = len(elements)
        for key, weight in elements:
            value = _next(value, _hash(key))
            if column.list.weight_separator:
                value = _next(value, int.from_bytes(struct.pack("<f", weight), "little"))
        return value
    if column.role == "categorical":
        return _hash(read_category(field, column.type, 0))
    return _value_of_any(field)


def _value_of_any(field: bytes) -> int | None:
    """Returns 64 bits for a truth value, number, time or text, independent of its spelling.

    - NaN: None.
    - Decimal number: the bits of the float64.
    - ISO 8601 time: milliseconds since 1970 UTC, or since midnight if it has no date.
    - Anything else: the XXH64 of the text. True and TRUE count as `true`, likewise `false`, and a
      whole number below 2**63, such as 5.0 or 1e+15, counts as its digits.
    """
    if field in (b"nan", b"NaN"):
        return None
    if field in (b"True", b"TRUE", b"False", b"FALSE"):
        return xxhash.xxh64_intdigest(field.lower())
    if field in (b"-0", b"-0.0"):
        return xxhash.xxh64_intdigest(b"0")
    if shorten_number(field) is not None:
        return xxhash.xxh64_intdigest(field.partition(b".")[0])
    if not is_decimal(field):
        has_date = field[2:3] != b":"
        time = read_iso_time(field if has_date else b"1970-01-01 " + field)
        return xxhash.xxh64_intdigest(field) if time is None else time % 2**64
    number = float(field)
    if number.is_integer() and abs(number) < 2**63:
        return xxhash.xxh64_intdigest(str(int(number)).encode())
    return int.from_bytes(struct.pack("<d", number + 0.0), "little")


def row_values(rows: Sequence[Sequence[bytes]], row_format: RowFormat) -> npt.NDArray[np.uint64]:
    """Returns 64 bits for the values of each valid row.

    They are a sum, modulo 2**64, over the columns that are not missing. A column's term is output
    number v of SplitMix64 whose state is the XXH64 of the column's name, where v is its value.
    """
    sums = np.zeros(len(rows), np.uint64)
    for number, column in enumerate(row_format.columns):
        values, is_there = _values(rows, number, row_format)
        name = xxhash.xxh64_intdigest(column.name.encode()[:255])
        sums[is_there] += shuffle_keys(name, values[is_there])
    return sums


def split_values(rows: Sequence[Sequence[bytes]], row_format: RowFormat) -> npt.NDArray[np.uint64]:
    """Returns the values that decide the splits of valid rows; 0 without a split rule."""
    rule = row_format.split
    if rule is None:
        return np.zeros(len(rows), np.uint64)
    if rule.field is None:
        values = row_values(rows, row_format)
    else:
        values, is_there = _values(rows, rule.field, row_format)
        if not is_there.all():
            values = np.where(is_there, values, row_values(rows, row_format))
    return values if rule.kind == "time" else shuffle_keys(rule.seed, values) >> np.uint64(1)


def groups(rows: Sequence[Sequence[bytes]], row_format: RowFormat) -> npt.NDArray[np.int64]:
    """Returns the group of each valid row; -1 for a row without one."""
    if row_format.group_field is None:
        return np.full(len(rows), -1, np.int64)
    values, is_there = _values(rows, row_format.group_field, row_format)
    return np.where(is_there, (shuffle_keys(0, values) >> np.uint64(1)).astype(np.int64), -1)


def _values(
    rows: Sequence[Sequence[bytes]], number: int, row_format: RowFormat
) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.bool_]]:
    """Returns a column's value in each row (0 if missing), and a mask of rows that have it."""
    column = row_format.columns[number]
    values = [field_value(fields[number], column, row_format) for fields in rows]
    is_there = np.array([value is not None for value in values], np.bool_)
    return np.array([value or 0 for value in values], np.uint64), is_there


def _hash(key: int | bytes) -> int:
    return xxhash.xxh64_intdigest(key) if isinstance(key, bytes) else key % 2**64


def _next(state: int, number: int) -> int:
    return int(shuffle_keys(state, np.array([number], np.uint64))[0])
