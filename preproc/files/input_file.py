# SPDX-License-Identifier: Apache-2.0
"""A raw input file: text, perhaps compressed, or a table (see preproc.files.tables)."""

import bz2
import contextlib
import dataclasses
import lzma
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, Literal, cast

import xxhash
from isal import isal_zlib

from preproc.files.errors import PreprocError

Compression = Literal["none", "gzip", "zstd", "bzip2", "xz", "parquet", "arrow"]

_GzipError = cast("type[Exception]", isal_zlib.error)  # whose stub calls it an instance

GZIP_MAGIC = b"\x1f\x8b"
_UTF8_MARK = b"\xef\xbb\xbf"

_MAGIC: dict[bytes, Compression] = {
    GZIP_MAGIC: "gzip",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"BZh": "bzip2",
    b"\xfd7zXZ\x00": "xz",
    b"PAR1": "parquet",
    b"\xff\xff\xff\xff": "arrow",  # a stream, which tables of Python become
}
_ZIP_MAGIC = b"PK\x03\x04"
PLAIN_OR_COMPRESSED = "plain, or compressed by gzip, zstd, bzip2 or xz, or parquet"


def _open_zstd(path: Path) -> Any:
    import pyarrow as pa

    return pa.CompressedInputStream(pa.OSFile(str(path)), "zstd")


_OPENERS: dict[Compression, Callable[[Path], IO[bytes]]] = {
    "zstd": _open_zstd,
    "bzip2": bz2.open,
    "xz": lzma.open,
}
_TYPICAL_INFLATION = 5.0
"""Bytes of text per byte of a log that is not gzip: only progress and disk needs depend on it."""

MAX_LINE_BYTES = 2**20
"""A longer line stops the run; a Criteo row has 393 bytes at most."""

_BLOCK_BYTES = 2**19
_ENDS_BYTES = 2**16


@dataclasses.dataclass(frozen=True, slots=True)
class InputFile:
    """A raw file as it was when the run began.

    Attributes:
        path: absolute, or relative to the working directory.
        size: bytes on disk.
        compression: told by the first bytes, not by the name.
        identity: checksum of name, size, modification time, inode, first and last 64 KiB.
        inflation: estimated bytes of text per byte on disk, 1.0 if not compressed.
    """

    path: Path
    size: int
    compression: Compression
    identity: str
    inflation: float

    @classmethod
    def open(cls, path: Path) -> "InputFile":
        """Inspects the first and last bytes of a file.

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
                f"{path}: cannot be read ({error.strerror}); check the path and its permissions"
            ) from error
        if head.startswith(_ZIP_MAGIC):
            raise PreprocError(
                f"{path}: is zip-compressed, which is not supported. Unpack it first (unzip "
                f"{path.name}); files may be {PLAIN_OR_COMPRESSED}"
            )
        digest = xxhash.xxh3_128(os.fsencode(path.name))
        digest.update(f"\0{stat.st_size}\0{stat.st_mtime_ns}\0{stat.st_ino}\0".encode())
        digest.update(head)
        digest.update(tail)
        compression: Compression = next(
            (c for magic, c in _MAGIC.items() if head.startswith(magic)), "none"
        )
        inflation = 1.0 if compression == "none" else _TYPICAL_INFLATION
        inflation = _inflation(head) if compression == "gzip" else inflation
        return cls(path, stat.st_size, compression, digest.hexdigest(), inflation)

    def check_unchanged(self) -> None:
        """Refuses a file that changed since the run began.

        Raises:
            PreprocError: it changed, or cannot be read any more.
        """
        if InputFile.open(self.path).identity != self.identity:
            raise changed(self.path)

    @property
    def is_table(self) -> bool:
        """Whether it has columns with types."""
        return self.compression in ("parquet", "arrow")

    @property
    def text_bytes(self) -> int:
        """Bytes of text: exact for a plain file, else an estimate."""
        return int(self.size * self.inflation)

    def blocks(self) -> Iterator[bytes]:
        """Yields the decompressed text in blocks of up to 512 KiB.

        Raises:
            PreprocError: compressed data are damaged or end early, or it is a table.
        """
        if self.is_table:
            raise PreprocError(f"{self.path}: is a table ({self.compression}); give a file of text")
        if self.compression in _OPENERS:
            yield from self._unpack(_OPENERS[self.compression])
            return
        with self.path.open("rb") as file:
            if self.compression == "none":
                while block := file.read(_BLOCK_BYTES):
                    yield block
                return
            yield from self._inflate(iter(lambda: file.read(_BLOCK_BYTES // 4), b""))

    def _unpack(self, opener: Callable[[Path], IO[bytes]]) -> Iterator[bytes]:
        try:
            with opener(self.path) as file:
                while block := file.read(_BLOCK_BYTES):
                    yield block
        except (OSError, EOFError, lzma.LZMAError) as error:
            raise PreprocError(
                f"{self.path}: the {self.compression} data are damaged or end early ({error}); get "
                "the file again"
            ) from error

    def _inflate(self, compressed: Iterator[bytes]) -> Iterator[bytes]:
        member = isal_zlib.decompressobj(wbits=31)
        data = next(compressed, b"")
        try:
            while data:
                if text := member.decompress(data, _BLOCK_BYTES):
                    yield text
                if not member.eof:
                    data = member.unconsumed_tail or next(compressed, b"")
                    continue
                # Members may follow each other, and zero bytes may pad the last one.
                data = member.unused_data.lstrip(b"\0") or next(compressed, b"").lstrip(b"\0")
                if data:
                    member = isal_zlib.decompressobj(wbits=31)
        except _GzipError as error:
            raise PreprocError(
                f"{self.path}: the gzip data are damaged ({error}); get the file again"
            ) from error
        if not member.eof:
            raise PreprocError(
                f"{self.path}: the gzip data end early (the file was cut off); get the file again"
            )


def line_too_long(path: Path, offset: int, expected: str) -> PreprocError:
    """Returns the error of a line longer than 1 MiB."""
    return PreprocError(
        f"{path}: the line at byte {offset} is longer than 1 MiB; this is not {expected}"
    )


def refuse_utf8_mark(path: Path, first_line: bytes) -> None:
    """Refuses a byte order mark, which some editors put first."""
    if first_line.startswith(_UTF8_MARK):
        raise PreprocError(
            f"{path}: begins with a byte order mark; remove it: tail -c +4 {path.name}"
        )


def changed(path: Path) -> PreprocError:
    """Returns the error of an input that changed during a run."""
    return PreprocError(
        f"{path}: changed while it was read; leave it alone and run the command again"
    )


def _inflation(head: bytes) -> float:
    member = isal_zlib.decompressobj(wbits=31)
    try:
        text = member.decompress(head)
    except _GzipError:
        return 1.0  # reported when the file is read
    return len(text) / max(len(head) - len(member.unused_data), 1)


@contextlib.contextmanager
def open_fd(path: Path, flags: int = os.O_RDONLY) -> Iterator[int]:
    """Opens a file descriptor for the time of the block."""
    fd = os.open(path, flags | os.O_CLOEXEC, 0o666)
    try:
        yield fd
    finally:
        os.close(fd)
