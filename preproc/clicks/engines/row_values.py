# SPDX-License-Identifier: Apache-2.0
"""What the fields of a row say, however they are written.

The hashes that split and group rows are of these values, so that a row has the same ones in csv,
in parquet and in a table of Python: quotes, the order of the columns, 5.0 for 5 and true for 1 make
no difference.
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
    """Returns 64 bits for what a valid field says; None if it is missing.

    They are, of a label 1 or 0; of a number the bits of the float64; of a category the number, or
    the XXH64 of the text, also where it is hashed to a bucket; of a time the milliseconds since
    1970 UTC; of a column without a role see `_value_of_any`. Of a list they are the number of its
    elements, then the output with this number of SplitMix64 with the number so far as its state,
    for each element's category (its bucket where there are some) and for the bits of its weight as
    float32.
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
    """Returns 64 bits for a truth value, a number, a time or a text, however a program writes it.

    None for NaN. They are the bits of the float64 of a decimal number, of a time in ISO 8601 the
    milliseconds since 1970 UTC (without a date those since midnight), else the XXH64 of the text:
    `true` for True and TRUE, and likewise `false`; of a whole number such as 5.0 or 1e+15, below
    2**63, its digits.
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
    """Returns 64 bits for what each valid row says.

    They are the sum, modulo 2**64, over the columns that are not missing: of SplitMix64 with the
    XXH64 of the column's name as its state, the output with the number of what the column says.
    """
    sums = np.zeros(len(rows), np.uint64)
    for number, column in enumerate(row_format.columns):
        values, is_there = _values(rows, number, row_format)
        name = xxhash.xxh64_intdigest(column.name.encode()[:255])
        sums[is_there] += shuffle_keys(name, values[is_there])
    return sums


def split_values(rows: Sequence[Sequence[bytes]], row_format: RowFormat) -> npt.NDArray[np.uint64]:
    """Returns the values that give valid rows to their splits, else 0.

    Args:
        rows: fields of each row.
        row_format: may have a rule for splits, by times or hashes.
    """
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
    """Returns the group of each valid row; -1 without one."""
    if row_format.group_field is None:
        return np.full(len(rows), -1, np.int64)
    values, is_there = _values(rows, row_format.group_field, row_format)
    return np.where(is_there, (shuffle_keys(0, values) >> np.uint64(1)).astype(np.int64), -1)


def _values(
    rows: Sequence[Sequence[bytes]], number: int, row_format: RowFormat
) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.bool_]]:
    """Returns what a column says in each row, 0 where it is missing, and where it is there."""
    column = row_format.columns[number]
    values = [field_value(fields[number], column, row_format) for fields in rows]
    is_there = np.array([value is not None for value in values], np.bool_)
    return np.array([value or 0 for value in values], np.uint64), is_there


def _hash(key: int | bytes) -> int:
    return xxhash.xxh64_intdigest(key) if isinstance(key, bytes) else key % 2**64


def _next(state: int, number: int) -> int:
    return int(shuffle_keys(state, np.array([number], np.uint64))[0])
