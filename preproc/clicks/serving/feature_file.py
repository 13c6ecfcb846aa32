# SPDX-License-Identifier: Apache-2.0
"""Writes the rules and dictionaries of a dataset as one file.

A server transforms raw rows by it; all its processes map the same file. Its integers are little
endian:

    magic CLICKSF5, then uint64: bytes of the file
    RowRule          uint64 category_modulus (0: none), uint64 bin_numerical, int64 numerical_min
    NumericalRule    int64 numerical_offset, int64 numerical_min, uint64 output_zero
    uint64           1 if the numbers of the dataset are float16
    uint64           columns of ids
    uint32           1 for Criteo's log
    uint16 x 2       delimiter and quote, 0 without one
    uint32 x 2       fields of a line, bytes of all texts
    for each field   uint64 buckets, uint64 takes_log, float64 minimum and offset of its logarithm,
                     format of its times in 32 bytes, int32 minutes of their zone, uint32 bits
                     of their features; of lists uint32 separator, separator of weights, greatest
                     length, 1 to keep the first elements, 1 for the mean; uint32 where its texts
                     begin, uint8 role, uint8 column, uint8 type, 5 zeros
    texts            of each field: its name; the number of texts that mean that it is missing;
                     these. Each text is a byte with its length, then UTF-8.
    for each column  uint64 categories, uint64 offset of its buckets, uint64 offset of its entries,
                     uint64 offset and bytes of its keys, uint64 offset of their ends (0: none),
                     uint32 bucket bits b, uint16 bytes of a remainder, uint16 bytes of an id
    buckets          [2**b + 1] uint32: first entry of each bucket, then the end
    entries          [categories] of remainder, then id; 8 zero bytes follow
    keys             of texts and 64-bit integers: as in the dictionary, in the order of their ids
    ends             [categories] uint64, of texts: the end of each

A category is found by its hash of 64 bits: the first b are its bucket, the next its remainder.
Entries are in the order of their hashes, 4 to 8 in a bucket. Of a category of 32 bits the hash is a
bijective one, followed by zeros, and the remainder has all that the bucket lacks, so that none are
taken for another; it takes at most 8 bytes. Of other keys the hash is their XXH64, and the keys
themselves are compared; they take up to 16 bytes beside their own.
"""

import dataclasses
import struct
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import xxhash

from preproc.clicks.applied import dictionaries_of_dataset, semantics_of_dataset
from preproc.clicks.dictionaries import Keys
from preproc.clicks.rules import ClicksSemantics
from preproc.clicks.schema.row_format import (
    FIELD_TYPES,
    NUM_CATEGORICAL,
    NUM_NUMERICAL,
    ROLES,
    RowFormat,
    criteo_format,
)
from preproc.clicks.schema.time_rule import TimeRule
from preproc.files.workspace import atomic_file

_MAGIC = b"CLICKSF5"
_HEADER = struct.Struct("<8sQ QQq qqQ QQ")
_FIELD = struct.Struct("<QQdd32siIIIIIIIBBBx4x")
_COLUMN = struct.Struct("<QQQQQQIHH")
_PADDING = 8

NumberType = Literal["float16", "float32"]
"""Type of the numbers in a dataset: float16 in split binary, float32 in parquet and npy."""


@dataclasses.dataclass(frozen=True, slots=True)
class ServedRow:
    """A row of a log without its label, to be served.

    Attributes:
        row_format: of a whole line; of Criteo's log with the label, which its lines lack.
    """

    row_format: RowFormat

    @classmethod
    def of(cls, semantics: ClicksSemantics) -> "ServedRow":
        """Returns the row of a dataset's log."""
        if semantics.schema is not None:
            return cls(semantics.schema.line_format)
        integers = (f"I{number}" for number in range(1, NUM_NUMERICAL + 1))
        categories = (f"C{number}" for number in range(1, NUM_CATEGORICAL + 1))
        names = ("label", *integers, *categories)
        return cls(dataclasses.replace(criteo_format(unlabelled=True), names=names))

    @property
    def _first(self) -> int:
        """Returns the number of the line's first field in the format."""
        return self.row_format.roles.count("label")

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the line's fields."""
        return self.row_format.names[self._first :]

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the features, in the order of the line."""
        roles = self.row_format.roles[self._first :]
        return tuple(n for n, role in zip(self.names, roles, strict=True) if role != "ignored")

    def packed(self) -> bytes:
        """Returns fields and texts as the file has them, after four numbers."""
        row_format = self.row_format
        fields, texts = b"", b""
        for name, f in zip(self.names, range(self._first, len(row_format.roles)), strict=True):
            time, of_list = row_format.times[f] or TimeRule(""), row_format.lists[f]
            fields += _FIELD.pack(
                *(row_format.buckets[f], *row_format.rules[f]),
                *(time.format.encode(), time.zone_minutes, time.feature_bits),
                *(of_list.numbers if of_list else (0,) * 5),
                len(texts),
                *(ROLES.index(row_format.roles[f]), row_format.columns[f]),
                FIELD_TYPES.index(row_format.types[f]),
            )
            missing = row_format.missing[f]
            texts += _text(name.encode()[:255]) + bytes([len(missing)])
            texts += b"".join(map(_text, missing))
        dialect = (row_format.delimiter[0], int.from_bytes(row_format.quote))
        numbers = (row_format.is_criteo, *dialect, len(self.names), len(texts))
        return struct.pack("<IHHII", *numbers) + fields + texts


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
    columns = [_Column.of(keys) for keys in dictionaries.load()]
    row = ServedRow.of(semantics).packed()
    has_float16 = numbers == "float16" if schema is None else schema.numbers == "float16"
    at = _HEADER.size + len(row) + len(columns) * _COLUMN.size
    table = []
    for column in columns:
        starts = []
        for array in column.arrays:
            starts.append(at)
            at = _end(at + array.nbytes)
        buckets_at, entries_at, keys_at, ends_at = *starts, *[0] * (4 - len(starts))
        keys = column.keys if keys_at else None
        table.append(
            _COLUMN.pack(
                *(len(column.keys), buckets_at, entries_at, keys_at),
                *(0 if keys is None else keys.values.nbytes, ends_at),
                *(column.bucket_bits, column.remainder_bytes, column.id_bytes),
            )
        )
    header = _HEADER.pack(
        *(_MAGIC, at),
        *(semantics.category_modulus or 0, semantics.bin_numerical, semantics.numerical_min),
        *(semantics.numerical_offset, semantics.numerical_min),
        *(semantics.numerical_missing == "output_zero", has_float16, len(columns)),
    )
    with atomic_file(path) as file:
        file.write(header + row + b"".join(table))
        for column in columns:
            for array in column.arrays:
                file.write(array.data)
                file.write(bytes(_end(file.tell()) - file.tell()))


def _end(at: int) -> int:
    """Returns where the next array begins."""
    return -(-(at + _PADDING) // 8) * 8


@dataclasses.dataclass(frozen=True, slots=True)
class _Column:
    """The keys of a column, and the buckets that find them."""

    keys: Keys
    bucket_bits: int
    remainder_bytes: int
    id_bytes: int
    buckets: npt.NDArray[np.uint32]
    entries: npt.NDArray[np.uint8]

    @property
    def arrays(self) -> tuple[npt.NDArray[Any], ...]:
        """Arrays in the order of the file."""
        if self.keys.type == "uint32":
            return self.buckets, self.entries
        ends = () if self.keys.ends is None else (self.keys.ends,)
        return self.buckets, self.entries, self.keys.values, *ends

    @classmethod
    def of(cls, keys: Keys) -> "_Column":
        """Builds a column from its categories, in id order from 1."""
        count = len(keys)
        bits = max(count.bit_length() - 3, 0)
        is_narrow = keys.type == "uint32"
        remainder_bytes = -(-(32 - bits) // 8) if is_narrow else 3
        id_bytes = max(-(-count.bit_length() // 8), 1)
        hashes = _hashes(keys)
        order = np.argsort(hashes)
        hashes = hashes[order]
        bounds = np.arange(1, 2**bits, dtype=np.uint64) << np.uint64(64 - bits)
        remainders = hashes << np.uint64(bits) >> np.uint64(64 - 8 * remainder_bytes)
        values = remainders | (order + 1).astype("<u8") << np.uint64(8 * remainder_bytes)
        width = remainder_bytes + id_bytes
        return cls(
            keys=keys,
            bucket_bits=bits,
            remainder_bytes=remainder_bytes,
            id_bytes=id_bytes,
            buckets=np.concatenate([[0], np.searchsorted(hashes, bounds), [count]]).astype("<u4"),
            entries=values.view(np.uint8).reshape(count, 8)[:, :width].ravel(),
        )


def _hashes(keys: Keys) -> npt.NDArray[np.uint64]:
    """Returns [n] the hashes by which keys are found."""
    if keys.type == "uint32":
        return key_of_category(keys.values).astype("<u8") << np.uint64(32)
    texts = keys if keys.type == "text" else map(bytes, keys.values.reshape(-1, 1).view(np.uint8))
    return np.fromiter(map(xxhash.xxh64_intdigest, texts), "<u8", len(keys))  # type: ignore[arg-type]


def key_of_category(categories: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    """Hashes categories, one to one: the finaliser of MurmurHash3, as in kernel_choice.h."""
    x = categories.astype(np.uint32)
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    x = (x ^ (x >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return x ^ (x >> np.uint32(16))
