# SPDX-License-Identifier: Apache-2.0
"""Writes the rules and dictionaries of a dataset as one file.

A server transforms raw rows with it; all its processes map the same file. Integers are little
endian:

    magic CLICKSF7, then uint64: bytes of the file
    uint64           1 if the numbers of the dataset are float16
    uint64           columns of ids
    uint64           bytes of the fields
    fields           of a line, as `packed_format` makes them
    for each column  uint64 categories, uint64 offset of its buckets, uint64 offset of its entries,
                     uint64 offset and bytes of its keys, uint64 offset of their ends (0: none),
                     uint32 bucket bits b, uint16 bytes of a remainder, uint16 bytes of an id
    buckets          [2**b + 1] uint32: first entry of each bucket, then the end
    entries          [categories] of remainder, then id; 8 zero bytes follow
    keys             of texts and 64-bit integers: as in the dictionary, in the order of their ids
    ends             [categories] uint64, of texts: the end of each

A category is found by its 64-bit hash: the first b bits are its bucket, the next its remainder.
Entries are ordered by hash, 4 to 8 in a bucket. The hash of a 32-bit category is bijective and
followed by zeros. Its remainder has all the bits that the bucket lacks, so no category is mistaken
for another; an entry takes at most 8 bytes. The hash of other keys is their XXH64, and the keys
themselves are compared; they take up to 16 bytes in addition to the key.
"""

import dataclasses
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import xxhash

from preproc.clicks.applied import dictionaries_of_dataset, semantics_of_dataset
from preproc.clicks.dictionaries import Keys
from preproc.clicks.growth.rare_counts import category_of_key, key_of_category
from preproc.clicks.kernel.packed_format import packed_format
from preproc.files.errors import PreprocError
from preproc.files.workspace import atomic_file

_HEADER = struct.Struct("<8sQQQQ")
_COLUMN = struct.Struct("<QQQQQQIHH")
_PADDING = 8
_MAGIC = b"CLICKSF7"

NumberType = Literal["float16", "float32"]
"""Type of the numbers in a dataset: float16 in split binary, float32 in parquet and npy."""


def write_feature_file(dataset: Path, path: Path, numbers: NumberType) -> None:
    """Writes the feature file of a dataset.

    Args:
        dataset: a dataset that preproc.clicks made, with its dictionaries.
        numbers: type of the numbers that a model of a Criteo dataset was trained on; ignored for a
            schema, which sets its own.

    Raises:
        PreprocError: preproc.clicks did not make the dataset, or a dictionary is missing or
            damaged.
    """
    semantics = semantics_of_dataset(dataset, {})
    schema = semantics.schema
    dictionaries = dictionaries_of_dataset(dataset)
    fields = packed_format(semantics.line_format, semantics)
    has_float16 = numbers == "float16" if schema is None else schema.numbers == "float16"
    _write(path, fields, dictionaries.load(), has_float16=has_float16)


def _write(path: Path, fields: bytes, dictionaries: Sequence[Keys], *, has_float16: bool) -> None:
    columns = [_Column.of(keys) for keys in dictionaries]
    at = _HEADER.size + len(fields) + len(columns) * _COLUMN.size
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
    header = _HEADER.pack(_MAGIC, at, has_float16, len(columns), len(fields))
    with atomic_file(path) as file:
        file.write(header + fields + b"".join(table))
        for column in columns:
            for array in column.arrays:
                file.write(array.data)
                file.write(bytes(_end(file.tell()) - file.tell()))


@dataclasses.dataclass(frozen=True, slots=True)
class _Contents:
    """What a feature file was written from."""

    fields: bytes
    has_float16: bool
    dictionaries: list[Keys]


def _read(path: Path) -> _Contents:
    """Reads a feature file back."""
    content = path.read_bytes()
    magic, _, has_float16, count, size = _HEADER.unpack_from(content)
    if magic != _MAGIC:
        raise PreprocError(
            f"{path}: is not a feature file of this release; deploy again", path=path
        )
    at = _HEADER.size + size
    dictionaries = []
    for column in range(count):
        entry = _COLUMN.unpack_from(content, at + column * _COLUMN.size)
        dictionaries.append(_keys_of(content, *entry))
    return _Contents(content[_HEADER.size : at], bool(has_float16), dictionaries)


def _keys_of(
    content: bytes,
    count: int,
    buckets_at: int,
    entries_at: int,
    keys_at: int,
    keys_bytes: int,
    ends_at: int,
    bits: int,
    remainder_bytes: int,
    id_bytes: int,
) -> Keys:
    """Returns the categories of a column, in id order from 1."""
    if ends_at:
        ends = np.frombuffer(content, "<u8", count, ends_at)
        return Keys("text", np.frombuffer(content, np.uint8, keys_bytes, keys_at), ends)
    if keys_at:
        return Keys("int64", np.frombuffer(content, "<i8", count, keys_at))
    width = remainder_bytes + id_bytes
    entries = np.frombuffer(content, np.uint8, count * width, entries_at).reshape(count, width)
    whole = np.zeros((count, 8), np.uint8)
    whole[:, :width] = entries
    values = whole.view("<u8").ravel()
    remainders = values & np.uint64(2 ** (8 * remainder_bytes) - 1)
    ids = values >> np.uint64(8 * remainder_bytes)
    begins = np.frombuffer(content, np.uint32, 2**bits + 1, buckets_at)
    sizes = begins[1:] - begins[:-1]
    buckets = np.repeat(np.arange(2**bits, dtype=np.uint64), sizes)
    hashes = buckets << np.uint64(64 - bits) if bits else np.zeros(count, np.uint64)
    hashes |= remainders << np.uint64(64 - 8 * remainder_bytes) >> np.uint64(bits)
    categories = np.empty(count, np.uint32)
    categories[ids.astype(np.int64) - 1] = category_of_key((hashes >> np.uint64(32)).astype("<u4"))
    return Keys("uint32", categories)


def new_categories(earlier: Path, later: Path) -> dict[str, npt.NDArray[Any]] | None:
    """Returns the categories of a feature file that are not those of an earlier one.

    Returns:
        Name -> array for `with_categories`; None if the later file has other rules, fewer
        categories, or mostly others.
    """
    old, new = _read(earlier), _read(later)
    same = (old.fields, old.has_float16, len(old.dictionaries))
    if same != (new.fields, new.has_float16, len(new.dictionaries)):
        return None
    arrays: dict[str, npt.NDArray[Any]] = {}
    for column, (was, now) in enumerate(zip(old.dictionaries, new.dictionaries, strict=True)):
        size = len(was)
        if was.type != now.type or len(now) < size:
            return None
        reused = np.flatnonzero(_differ(was, now.taken(np.arange(size))))
        if len(reused) > size // 2:
            return None
        added = now.taken(np.concatenate([reused, np.arange(size, len(now))]))
        arrays |= {f"{column}": added.values, f"{column}.reused": reused}
        if added.ends is not None:
            arrays[f"{column}.ends"] = added.ends
    return arrays


def _differ(first: Keys, second: Keys) -> npt.NDArray[np.bool_]:
    """Compares the categories of two columns of equal length: [n]."""
    if first.ends is None or second.ends is None:
        different: npt.NDArray[np.bool_] = first.values != second.values
        return different
    if np.array_equal(first.ends, second.ends) and np.array_equal(first.values, second.values):
        return np.zeros(len(first), np.bool_)
    return np.array([one != other for one, other in zip(first, second, strict=True)])


def with_categories(earlier: Path, arrays: Mapping[str, npt.NDArray[Any]], path: Path) -> None:
    """Writes the later file of `new_categories`, byte for byte."""
    old = _read(earlier)
    dictionaries = []
    for column, keys in enumerate(old.dictionaries):
        values, ends = np.concatenate([keys.values, arrays[f"{column}"]]), keys.ends
        if ends is not None:
            ends = np.concatenate([ends, arrays[f"{column}.ends"] + np.uint64(len(keys.values))])
        both = Keys(keys.type, values, ends)
        dictionaries.append(both.with_reused_ids(len(keys), arrays[f"{column}.reused"]))
    _write(path, old.fields, dictionaries, has_float16=old.has_float16)


def _end(at: int) -> int:
    """Returns the offset at which the next array begins."""
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
    """Returns the hashes [n] by which keys are found."""
    if keys.type == "uint32":
        return key_of_category(keys.values).astype("<u8") << np.uint64(32)
    texts = keys if keys.type == "text" else map(bytes, keys.values.reshape(-1, 1).view(np.uint8))
    return np.fromiter(map(xxhash.xxh64_intdigest, texts), "<u8", len(keys))  # type: ignore[arg-type]
