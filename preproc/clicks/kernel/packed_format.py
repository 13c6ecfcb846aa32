# SPDX-License-Identifier: Apache-2.0
"""Packs the fields of a row into the layout of row_format.h.

It is a header, a record per field, and all texts. A text is a byte with its length, then its bytes;
a group of texts is their number, then each text. Integers are little endian. row_format.h names
the members of the records; feature files hold the same bytes.
"""

import struct
from collections.abc import Sequence

from preproc.clicks.rules import ClicksSemantics
from preproc.clicks.schema.row_format import (
    FIELD_TYPES,
    ROLES,
    TRANSFORMS,
    Column,
    ListRule,
    RowFormat,
    SplitRule,
)
from preproc.clicks.schema.time_rule import TIME_FEATURES, TimeRule

_HEADER = struct.Struct("<Qqq IIQQQ III BBBBBBBBBB2x")
_FIELD = struct.Struct("<BBBBI Q Qdddd IIIII 32siI II I")
_NO_FIELD = 2**32 - 1
_NO_LIST = ListRule("\0", max_length=0)


def packed_format(row_format: RowFormat, semantics: ClicksSemantics) -> bytes:
    """Returns the fields of a row and how to read them, packed."""
    fields, texts = b"", b""
    bin_numbers = row_format.bin_numbers or (0,) * len(row_format.columns)
    of_columns = zip(row_format.columns, row_format.numbers, bin_numbers, strict=True)
    for column, number, bin_number in of_columns:
        name = _text(column.name.encode()[:255])
        groups = _group([text.encode() for text in column.missing])
        if column.role == "label":
            groups = _group(row_format.positive) + _group(row_format.negative or ())
        texts_at = len(texts + name)
        bins_at = texts_at + len(groups) if column.has_bins else 0
        at = {"name_at": len(texts), "texts_at": texts_at, "bins_at": bins_at}
        fields += _packed_field(column, (number, bin_number), **at)
        packed = [struct.pack("<d", edge) for edge in column.bins or ()]
        edges = _group(packed) if column.has_bins else b""
        texts += name + groups + edges
    split = row_format.split
    header = _HEADER.pack(
        *(semantics.category_modulus or 0, semantics.numerical_min, semantics.numerical_offset),
        *((0, _NO_FIELD, 0, 0, 0) if split is None else _packed_split(split)),
        *(_number(row_format.group_field), len(row_format.columns), len(texts)),
        *(row_format.delimiter[0], int.from_bytes(row_format.quote), row_format.has_header),
        *(row_format.negative is None, semantics.bin_numerical),
        *(semantics.numerical_missing == "output_zero", split is not None and split.counts_train),
        *(row_format.is_table, int.from_bytes(row_format.delimiter[1:]), row_format.is_json),
    )
    return header + fields + texts


def _packed_field(
    column: Column, numbers: tuple[int, int], *, name_at: int, texts_at: int, bins_at: int
) -> bytes:
    number, bin_number = numbers
    time, of_list = column.time or TimeRule(""), column.list or _NO_LIST
    weight_separator = int.from_bytes(of_list.weight_separator.encode())
    return _FIELD.pack(
        *(ROLES.index(column.role), number, FIELD_TYPES.index(column.type), bin_number, texts_at),
        *(column.buckets, TRANSFORMS.index(column.rule.transform), *column.rule[1:]),
        *(ord(of_list.separator), weight_separator, of_list.max_length),
        *(of_list.keep == "first", of_list.pooling == "mean"),
        *(time.format.encode(), time.zone_minutes),
        sum(1 << TIME_FEATURES.index(feature) for feature in time.features),
        *(name_at, bins_at, column.lacks_edges),
    )


def _packed_split(rule: SplitRule) -> tuple[int, ...]:
    return ("time", "random").index(rule.kind) + 1, _number(rule.field), rule.seed, *rule.cuts


def _number(field: int | None) -> int:
    return _NO_FIELD if field is None else field


def _text(text: bytes) -> bytes:
    return bytes([len(text)]) + text


def _group(texts: Sequence[bytes]) -> bytes:
    return bytes([len(texts)]) + b"".join(map(_text, texts))
