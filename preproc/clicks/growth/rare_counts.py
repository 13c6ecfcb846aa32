# SPDX-License-Identifier: Apache-2.0
"""Counts of the categories that are too rare for an id, in the format of the kernel's runs.

A file holds the counts of one column as little-endian words. A category of 32 bits is one word,
key << 32 | count, where the key is a bijective hash of the category. A wider category is an entry:
the XXH64 of its bytes, its count and its length (32 bits each), and the bytes, padded with zeros to
a whole word. Entries are ascending by key or hash; texts of equal hash by length, then bytes.

The native engine merges these files with the runs of a new day. This module reads and writes them
without the kernel.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from preproc.clicks.schema.row_format import KeyType
from preproc.files.workspace import atomic_file
from recsys.data.positioned_io import map_array

MOST_COUNTED = 2**32
"""A count has 32 bits, so a frequency limit must not exceed this number."""

_WORD = np.dtype("<u8")
_INTEGER_BYTES = 8


def read_words(path: Path) -> npt.NDArray[np.uint64]:
    """Memory-maps the words of a file."""
    return map_array(path, _WORD)


def read_narrow(path: Path) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint64]]:
    """Returns the categories of 32 bits, and the count of each."""
    words = read_words(path)
    keys = (words >> np.uint64(32)).astype(np.uint32)
    return category_of_key(keys), words & np.uint64(MOST_COUNTED - 1)


def write_narrow(
    path: Path, categories: npt.NDArray[np.uint32], counts: npt.NDArray[np.uint64]
) -> None:
    """Writes categories of 32 bits, each with its count."""
    words = key_of_category(categories).astype(np.uint64) << np.uint64(32) | counts
    with atomic_file(path) as file:
        file.write(np.sort(words).astype(_WORD).tobytes())


def read_counts(path: Path, key_type: KeyType) -> dict[Any, int]:
    """Returns category (a number or a text) -> count."""
    if key_type == "uint32":
        categories, counts = read_narrow(path)
        return dict(zip(categories.tolist(), counts.tolist(), strict=True))
    words = read_words(path)
    content, at, counted = words.tobytes(), 0, dict[Any, int]()
    while at < len(content):
        count, length = np.frombuffer(content, "<u4", 2, at + _WORD.itemsize).tolist()
        at += 2 * _WORD.itemsize
        text = content[at : at + length]
        is_text = key_type == "text"
        counted[text if is_text else int.from_bytes(text, "little", signed=True)] = count
        at += _padded(length)
    return counted


def write_counts(path: Path, key_type: KeyType, counts: Mapping[Any, int]) -> None:
    """Writes category -> count."""
    if key_type == "uint32":
        numbers = np.array(list(counts.values()), np.uint64)
        write_narrow(path, np.array(list(counts), np.uint32), numbers)
        return
    entries = []
    for key, count in counts.items():
        text = key if isinstance(key, bytes) else _bytes_of(key)
        entries.append((xxhash.xxh64_intdigest(text), len(text), text, count))
    with atomic_file(path) as file:
        for digest, length, text, count in sorted(entries):
            file.write(np.array([digest], _WORD).tobytes())
            file.write(np.array([count, length], "<u4").tobytes())
            file.write(text.ljust(_padded(length), b"\0"))


def _bytes_of(key: int) -> bytes:
    return key.to_bytes(_INTEGER_BYTES, "little", signed=True)


def _padded(length: int) -> int:
    """Returns the bytes of whole words that hold `length` bytes."""
    return -(-length // _WORD.itemsize) * _WORD.itemsize


def key_of_category(x: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    """Hashes categories as kernel_choice.h does: the finaliser of MurmurHash3."""
    x = (x ^ x >> np.uint32(16)) * np.uint32(0x85EBCA6B)
    x = (x ^ x >> np.uint32(13)) * np.uint32(0xC2B2AE35)
    return x ^ x >> np.uint32(16)


def category_of_key(x: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    """Inverts `key_of_category`; the factors are the inverses modulo 2**32."""
    x = (x ^ x >> np.uint32(16)) * np.uint32(0x7ED1B41D)
    x = (x ^ x >> np.uint32(13) ^ x >> np.uint32(26)) * np.uint32(0xA5CB9243)
    return x ^ x >> np.uint32(16)
