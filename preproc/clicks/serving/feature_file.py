# SPDX-License-Identifier: Apache-2.0
"""Writes the rules and dictionaries of a dataset as one file.

A server transforms raw rows by it; all its processes map the same file. Its integers are little
endian:

    magic CLICKSF2, then uint64: bytes of the file
    RowRule          uint64 category_modulus (0: none), uint64 bin_numerical, int64 numerical_min
    NumericalRule    int64 numerical_offset, int64 numerical_min, uint64 output_zero
    uint64           1 if the numbers of the dataset are float16
    uint64           columns of ids
    uint32 x 4       1 for Criteo's log, delimiter, fields of a line, bytes of all texts
    for each field   uint64 buckets, uint64 takes_log, float64 minimum and offset of its logarithm,
                     uint32 where its texts begin, uint8 role, uint8 column, uint8 type, 0
    texts            of each field: its name; the number of texts that mean that it is missing;
                     these. Each text is a byte with its length, then UTF-8.
    for each column  uint64 categories, uint64 offset of its buckets, uint64 offset of its entries,
                     uint32 bucket bits b, uint16 bytes of a remainder, uint16 bytes of an id
    buckets          [2**b + 1] uint32: first entry of each bucket, then the end
    entries          [categories] of remainder, then id; 8 zero bytes follow

A category is found by its key, a bijective hash of 32 bits: the first b bits are its bucket, the
others its remainder. Entries are in the order of their keys, 4 to 8 in a bucket, so that a category
takes at most 8 bytes.
"""

import dataclasses
import struct
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from preproc.clicks.applied import dictionaries_of_dataset, semantics_of_dataset
from preproc.clicks.rules import ClicksSemantics
from preproc.clicks.schema.row_format import (
    FIELD_TYPES,
    NUM_CATEGORICAL,
    NUM_NUMERICAL,
    ROLES,
    RowFormat,
    criteo_format,
)
from preproc.files.workspace import atomic_file

_MAGIC = b"CLICKSF2"
_HEADER = struct.Struct("<8sQ QQq qqQ QQ")
_FIELD = struct.Struct("<QQddIBBBx")
_COLUMN = struct.Struct("<QQQIHH")
_PADDING = 8

NumberType = Literal["float16", "float32"]
"""Type of the numbers in a dataset: float16 in split binary, float32 in parquet and npy."""


@dataclasses.dataclass(frozen=True, slots=True)
class ServedRow:
    """A row of a log without its label, to be served.

    Attributes:
        row_format: of a whole line; of Criteo's log with the label, which its lines lack.
        names: of the line's fields.
    """

    row_format: RowFormat
    names: tuple[str, ...]

    @classmethod
    def of(cls, semantics: ClicksSemantics) -> "ServedRow":
        """Returns the row of a dataset's log."""
        if semantics.schema is None:
            integers = (f"I{number}" for number in range(1, NUM_NUMERICAL + 1))
            categories = (f"C{number}" for number in range(1, NUM_CATEGORICAL + 1))
            return cls(criteo_format(unlabelled=True), (*integers, *categories))
        columns = (column for column in semantics.schema.columns if column.role != "label")
        return cls(semantics.schema.line_format, tuple(column.name for column in columns))

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the features, in the order of the line."""
        roles = self.row_format.roles[-len(self.names) :]
        return tuple(n for n, role in zip(self.names, roles, strict=True) if role != "ignored")

    def packed(self) -> bytes:
        """Returns fields and texts as the file has them, after four numbers."""
        row_format, first = self.row_format, len(self.row_format.roles) - len(self.names)
        fields, texts = b"", b""
        for name, f in zip(self.names, range(first, len(row_format.roles)), strict=True):
            fields += _FIELD.pack(
                *(row_format.buckets[f], *row_format.rules[f], len(texts)),
                *(ROLES.index(row_format.roles[f]), row_format.columns[f]),
                FIELD_TYPES.index(row_format.types[f]),
            )
            missing = row_format.missing[f]
            texts += _text(name.encode()[:255]) + bytes([len(missing)])
            texts += b"".join(map(_text, missing))
        numbers = (row_format.is_criteo, row_format.delimiter[0], len(self.names), len(texts))
        return struct.pack("<IIII", *numbers) + fields + texts


def _text(text: bytes) -> bytes:
    return bytes([len(text)]) + text


def write_feature_file(dataset: Path, path: Path, numbers: NumberType) -> None:
    """Writes the feature file of a dataset.

    Args:
        dataset: a dataset that preproc.clicks made, with its dictionaries.
        path: the file to write.
        numbers: type of the numbers in Criteo's datasets of the type that the model was trained on;
            those of a schema have its own.

    Raises:
        PreprocError: the dataset is none of preproc.clicks, or a dictionary is missing or damaged.
    """
    semantics = semantics_of_dataset(dataset, {})
    schema = semantics.schema
    dictionaries = dictionaries_of_dataset(dataset)
    columns = [_Column.of(dictionaries.load_column(c)) for c in range(dictionaries.num_columns)]
    row = ServedRow.of(semantics).packed()
    has_float16 = numbers == "float16" if schema is None else schema.numbers == "float16"
    at = _HEADER.size + len(row) + len(columns) * _COLUMN.size
    table = []
    for column in columns:
        entries_at = at + column.buckets.nbytes
        table.append(
            _COLUMN.pack(
                *(column.categories, at, entries_at, column.bucket_bits),
                *(column.remainder_bytes, column.id_bytes),
            )
        )
        at = -(-(entries_at + len(column.entries) + _PADDING) // 8) * 8
    header = _HEADER.pack(
        *(_MAGIC, at),
        *(semantics.category_modulus or 0, semantics.bin_numerical, semantics.numerical_min),
        *(semantics.numerical_offset, semantics.numerical_min),
        *(semantics.numerical_missing == "output_zero", has_float16, len(columns)),
    )
    with atomic_file(path) as file:
        file.write(header + row + b"".join(table))
        for column in columns:
            file.write(column.buckets.tobytes())
            file.write(column.entries)
            file.write(bytes(_PADDING + -(file.tell() + _PADDING) % 8))


@dataclasses.dataclass(frozen=True, slots=True)
class _Column:
    """The buckets and entries of a column."""

    categories: int
    bucket_bits: int
    remainder_bytes: int
    id_bytes: int
    buckets: npt.NDArray[np.uint32]
    entries: bytes

    @classmethod
    def of(cls, categories: npt.NDArray[np.uint32]) -> "_Column":
        """Builds a column from its categories, in id order from 1."""
        count = len(categories)
        bits = max(count.bit_length() - 3, 0)
        remainder_bytes = -(-(32 - bits) // 8)
        id_bytes = max(-(-count.bit_length() // 8), 1)
        keys = key_of_category(categories)
        order = np.argsort(keys)
        keys = keys[order]
        bounds = np.arange(2**bits + 1, dtype=np.uint64) << np.uint64(32 - bits)
        packed = keys & np.uint32(2 ** (32 - bits) - 1)
        values = packed.astype("<u8") | (order + 1).astype("<u8") << np.uint64(8 * remainder_bytes)
        width = remainder_bytes + id_bytes
        return cls(
            categories=count,
            bucket_bits=bits,
            remainder_bytes=remainder_bytes,
            id_bytes=id_bytes,
            buckets=np.searchsorted(keys, bounds).astype("<u4"),
            entries=values.view(np.uint8).reshape(count, 8)[:, :width].tobytes(),
        )


def key_of_category(categories: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    """Hashes categories, one to one: the finaliser of MurmurHash3, as in kernel_choice.h."""
    x = categories.astype(np.uint32)
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    x = (x ^ (x >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return x ^ (x >> np.uint32(16))
