# SPDX-License-Identifier: Apache-2.0
"""A raw input file: plain or compressed text, or a table (see preproc.files.raw.tables)."""

import contextlib
import dataclasses
import itertools
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, cast

import xxhash
from isal import isal_zlib

from preproc.files.errors import PreprocError
from preproc.files.raw.streams import (
    BLOCK_BYTES,
    SKIPPABLE_MAGICS,
    ZSTD_MAGIC,
    StreamFormat,
    unpack,
)

Compression = Literal["none", "gzip", "zstd", "bzip2", "xz", "parquet", "arrow"]

_GzipError = cast("type[Exception]", isal_zlib.error)  # its stub declares an instance

GZIP_MAGIC = b"\x1f\x8b"
_UTF8_MARK = b"\xef\xbb\xbf"

_MAGIC: dict[bytes, Compression] = {
    GZIP_MAGIC: "gzip",
    **dict.fromkeys((ZSTD_MAGIC, *SKIPPABLE_MAGICS), "zstd"),
    b"BZh": "bzip2",
    b"\xfd7zXZ\x00": "xz",
    b"PAR1": "parquet",
    b"\xff\xff\xff\xff": "arrow",  # a stream: tables in Python are written as one
}
_COMPRESSED_NAME = (".gz", ".zst", ".bz2", ".xz")
_IN_NO_TEXT = re.compile(rb"[\0\3-\b\x0e-\x1f]")
"""Control characters that text does not have; 1 and 2 are allowed as Hive's delimiters."""
_ZIP_MAGIC = b"PK\x03\x04"
PLAIN_OR_COMPRESSED = "plain, or compressed by gzip, zstd, bzip2 or xz, or parquet"

_TYPICAL_INFLATION = 5.0
"""Bytes of text per compressed byte, except gzip; affects only progress and disk estimates."""

MAX_LINE_BYTES = 2**20
"""A longer line stops the run; a Criteo row has 393 bytes at most."""

_ENDS_BYTES = 2**16


@dataclasses.dataclass(frozen=True, slots=True)
class InputFile:
    """The state of a raw file when the run began.

    Attributes:
        path: absolute, or relative to the working directory.
        name: unique name in the run; for a file in a folder, its path within the folder.
        size: bytes on disk.
        compression: detected from the first bytes, not from the name.
        identity: checksum of name, size, times of modification and change, inode, and the first
            and last 64 KiB.
        inflation: estimated bytes of text per byte on disk, 1.0 if not compressed.
    """

    path: Path
    name: str
    size: int
    compression: Compression
    identity: str
    inflation: float

    @classmethod
    def open(cls, path: Path, folder: Path | None = None) -> "InputFile":
        """Inspects the first and last bytes of a file, which may be part of an input folder.

        Raises:
            PreprocError: it cannot be read, or its compression is not supported.
        """
        try:
            with path.open("rb") as file:
                stat = os.fstat(file.fileno())
                head = file.read(_ENDS_BYTES)
                file.seek(max(0, stat.st_size - _ENDS_BYTES))
                tail = file.read(_ENDS_BYTES)
        except OSError as error:
            raise PreprocError(
                f"{path}: cannot be read ({error.strerror}); check the path and its permissions",
                path=path,
            ) from error
        if head.startswith(_ZIP_MAGIC):
            raise PreprocError(
                f"{path}: is zip-compressed, which is not supported. Unpack it first (unzip "
                f"{path.name}); files may be {PLAIN_OR_COMPRESSED}",
                path=path,
            )
        digest = xxhash.xxh3_128(os.fsencode(path.name))
        # The change time reveals an edit that kept the size and the modification time.
        of_stat = (stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino)
        digest.update(repr(of_stat).encode())
        digest.update(head)
        digest.update(tail)
        compression: Compression = next(
            (c for magic, c in _MAGIC.items() if head.startswith(magic)), "none"
        )
        if compression == "none" and path.suffix in _COMPRESSED_NAME and _IN_NO_TEXT.search(head):
            raise PreprocError(
                f"{path}: is named like a compressed file, but its first bytes are neither "
                "compressed data nor text: it is damaged at byte 0; get the file again",
                path=path,
            )
        inflation = 1.0 if compression == "none" else _TYPICAL_INFLATION
        inflation = _inflation(head) if compression == "gzip" else inflation
        is_inside = folder is not None and path.is_relative_to(folder)
        name = path.relative_to(folder).as_posix() if folder and is_inside else path.name
        return cls(path, name, stat.st_size, compression, digest.hexdigest(), inflation)

    def check_unchanged(self) -> None:
        """Refuses a file that changed since the run began.

        Raises:
            PreprocError: it changed, or can no longer be read.
        """
        if InputFile.open(self.path).identity != self.identity:
            raise changed(self.path)

    @property
    def is_plain(self) -> bool:
        """Whether the bytes of the file are its text."""
        return self.compression == "none"

    @property
    def is_table(self) -> bool:
        """Whether the file has columns with types."""
        return self.compression in ("parquet", "arrow")

    @property
    def text_bytes(self) -> int:
        """Bytes of text: exact for a plain file, else an estimate."""
        return int(self.size * self.inflation)

    def blocks(self) -> Iterator[bytes]:
        """Yields the decompressed text in blocks of up to 512 KiB.

        Raises:
            PreprocError: compressed data are damaged or end early, or the file is a table.
        """
        if self.is_table:
            raise PreprocError(
                f"{self.path}: is a table ({self.compression}); give a text file", path=self.path
            )
        if not self.is_plain:
            yield from unpack(self.path, cast("StreamFormat", self.compression))
            return
        with self.path.open("rb") as file:
            while block := file.read(BLOCK_BYTES):
                yield block


def without_mark(blocks: Iterator[bytes]) -> tuple[int, Iterator[bytes]]:
    """Removes the byte order mark that some programs write before UTF-8 text.

    Returns:
        The length of the mark in bytes (0 without one), and the blocks of the text after it.
    """
    head = b""
    while len(head) < len(_UTF8_MARK) and (block := next(blocks, b"")):
        head += block
    text = head.removeprefix(_UTF8_MARK)
    return len(head) - len(text), itertools.chain([text] if text else (), blocks)


def line_too_long(path: Path, offset: int, expected: str) -> PreprocError:
    """Returns the error for a line longer than 1 MiB."""
    return PreprocError(
        f"{path}: the line at byte {offset} is longer than 1 MiB; this is not {expected}", path=path
    )


def changed(path: Path) -> PreprocError:
    """Returns the error for an input that changed during a run."""
    return PreprocError(
        f"{path}: changed while it was read; run the command again without changing it", path=path
    )


def _inflation(head: bytes) -> float:
    member = isal_zlib.decompressobj(wbits=31)
    try:
        text = member.decompress(head)
    except _GzipError:
        return 1.0  # the error is reported when the file is read
    return len(text) / max(len(head) - len(member.unused_data), 1)


@contextlib.contextmanager
def open_fd(path: Path, flags: int = os.O_RDONLY) -> Iterator[int]:
    """Opens a file descriptor for the duration of the block."""
    fd = os.open(path, flags | os.O_CLOEXEC, 0o666)
    try:
        yield fd
    finally:
        os.close(fd)
