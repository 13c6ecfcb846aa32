# SPDX-License-Identifier: Apache-2.0
"""The grammar of raw rows, and the reasons to reject one."""

import re
from collections.abc import Iterator
from typing import Literal, get_args

import xxhash

from preproc.clicks.schema.row_format import BLANKS, Column, FieldType, ListRule, Role, RowFormat

INT32_MIN, INT32_MAX = -(2**31), 2**31 - 1

RejectReason = Literal[
    "columns", "label", "integer", "hex", "encoding", "string", "number", "quote", "time", "list",
    "json",
]  # fmt: skip
"""Reasons to reject a row; if several apply, the first in this order of checks is reported.

First of all:
- `quote`: a field begins with a quote that is not closed before a delimiter or the row's end.
- `json`, in JSON files instead of `quote`: the row is not a JSON object, has a key twice, or a list
  where a single value is expected.
- `columns`: not 40 fields, or not the number in the schema.

Then field by field from the left, except ignored ones. In a Criteo log:
- `encoding`: a byte outside printable ASCII.
- `label`: not `0` or `1`, or not a text of the schema's label.
- `integer`: not `-?[0-9]{1,10}`, or outside int32.
- `hex`: not `[0-9a-fA-F]{1,8}`.

With a schema also:
- `encoding`: a text of a category is not UTF-8.
- `string`: a text of a category has more than 1,024 bytes.
- `integer`: an integer category is not 1 to 19 digits, with an optional minus before and an
  optional point with zeros after them, or is outside int64.
- `number`: not a decimal number of at most 64 bytes within float32.
- `time`: not in the column's format, not from 1970 to 2199, or missing where it splits the rows.
- `list`: an element is empty, or its weight is not a decimal number; other wrong elements have
  their own reason.
"""
REJECT_REASONS: tuple[RejectReason, ...] = get_args(RejectReason)
CRITEO_REASONS = REJECT_REASONS[:5]


MAX_TEXT_BYTES, MAX_NUMBER_BYTES = 1024, 64
FLOAT32_END = float.fromhex("0x1.ffffffp127")
"""Numbers from here on round to infinity in float32."""
_NOT_PRINTABLE = re.compile(rb"[^ -~]")
_WHOLE_NUMBER = re.compile(rb"(-?[0-9]{1,19})(?:\.0+)?")
_INTEGER = re.compile(rb"-?[0-9]{1,10}")
DECIMAL = re.compile(rb"-?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?")
LOOKS_WEIGHTED = re.compile(b".+:" + DECIMAL.pattern)
_HEXADECIMAL = re.compile(rb"[0-9a-fA-F]{1,8}")


def is_text(field: bytes) -> bool:
    """Returns True if the bytes are valid UTF-8."""
    try:
        field.decode()
    except UnicodeDecodeError:
        return False
    return True


def shorten_number(field: bytes) -> bytes | None:
    """Returns a 64-bit integer in its shortest form; None if the field is not one."""
    match = _WHOLE_NUMBER.fullmatch(field)
    number = int(match[1]) if match else 2**63
    return str(number).encode() if -(2**63) <= number < 2**63 else None


def is_decimal(field: bytes) -> bool:
    """Returns True for a decimal number within float32."""
    fits = len(field) <= MAX_NUMBER_BYTES and DECIMAL.fullmatch(field) is not None
    return fits and abs(float(field)) < FLOAT32_END


def read_category(field: bytes, kind: FieldType, buckets: int) -> int | bytes:
    """Returns the category of a valid field: a text or a number."""
    if kind == "hex":
        return int(field, 16) % (buckets or 2**32)
    text = field if kind == "string" else shorten_number(field) or b""
    if buckets:
        return xxhash.xxh64_intdigest(text) % buckets
    return text if kind == "string" else int(text)


def read_fields(row: bytes, row_format: RowFormat) -> list[bytes] | RejectReason:
    """Returns the fields of a row (bytes without the line end), or the reason to reject it.

    Missing fields are empty.
    """
    fields = row_format.fields(row)
    if fields is None:
        return "json" if row_format.is_json else "quote"
    if len(fields) != len(row_format.columns):
        return "columns"
    return next((reason for reason, _ in wrong_fields(fields, row_format)), fields)


def reject_reason(row: bytes, row_format: RowFormat) -> RejectReason | None:
    """Returns the reason to reject a row; None if it is valid."""
    read = read_fields(row, row_format)
    return None if isinstance(read, list) else read


def wrong_fields(fields: list[bytes], row_format: RowFormat) -> Iterator[tuple[RejectReason, int]]:
    """Yields reason and number of each wrong field, from the left."""
    for number, (field, column) in enumerate(zip(fields, row_format.columns, strict=True)):
        reason = _reason(field, number, column, row_format)
        if reason is None:
            continue
        is_text = column.type == "string" and column.role.startswith("categorical")
        yield "encoding" if not is_text and _NOT_PRINTABLE.search(field) else reason, number


def _reason(
    field: bytes, number: int, column: Column, row_format: RowFormat
) -> RejectReason | None:
    """Returns the reason to reject a field; None if it is valid."""
    if column.role == "label":
        negative = row_format.negative
        is_label = field in row_format.positive or negative is None or field in negative
        return None if is_label else "label"
    if not field or column.role == "ignored":
        return "time" if row_format.is_split_by_time_of(number) else None
    if column.time is not None:
        return "time" if column.time.milliseconds(field) is None else None
    if column.list is not None:
        read = read_list(field, column.type, column.buckets, column.list)
        return None if isinstance(read, list) else read
    return _feature_reason(field, column.role, column.type)


def read_list(
    field: bytes, kind: FieldType, buckets: int, rule: ListRule
) -> list[tuple[int | bytes, float]] | RejectReason:
    """Returns the elements with their weights, or the reason to reject the row.

    Blanks around an element or a weight are ignored.
    """
    elements = []
    for element in field.split(rule.separator.encode("latin-1")):
        text = element.strip(BLANKS)
        weight, key = 1.0, text
        if rule.weight_separator:
            before, separator, after = text.rpartition(rule.weight_separator.encode())
            key, digits = before.strip(BLANKS), after.strip(BLANKS)
            if not separator or _feature_reason(digits or b"-", "numerical", "float"):
                return "list"
            weight = float(digits) + 0.0
        if not key:
            return "list"
        reason = _feature_reason(key, "categorical", kind)
        if reason is not None:
            return reason
        elements.append((read_category(key, kind, buckets), weight))
    return elements[-rule.max_length :] if rule.keep == "last" else elements[: rule.max_length]


def _feature_reason(field: bytes, role: Role, kind: FieldType) -> RejectReason | None:
    if role == "categorical" and kind == "string":
        if len(field) > MAX_TEXT_BYTES:
            return "string"
        return None if is_text(field) else "encoding"
    if role == "categorical" and kind == "int":
        return "integer" if shorten_number(field) is None else None
    if role == "categorical":
        return None if _HEXADECIMAL.fullmatch(field) else "hex"
    if kind == "float":
        return None if is_decimal(field) else "number"
    is_integer = _INTEGER.fullmatch(field) and INT32_MIN <= int(field) <= INT32_MAX
    return None if is_integer else "integer"
