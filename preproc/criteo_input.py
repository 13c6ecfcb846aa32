# SPDX-License-Identifier: Apache-2.0
"""The raw files of a run: which they are, what identifies them, and their text."""

import contextlib
import dataclasses
import os
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import xxhash

from preproc.errors import PreprocError

Compression = Literal["none", "gzip"]

GZIP_MAGIC = b"\x1f\x8b"

REFUSED_MAGIC = {
    b"\x28\xb5\x2f\xfd": ("zstd", "zstd -d"),
    b"BZh": ("bzip2", "bunzip2"),
    b"\xfd7zXZ\x00": ("xz", "unxz"),
    b"PK\x03\x04": ("zip", "unzip"),
}
"""Compressions that are recognised so that the message can name them."""

MAX_LINE_BYTES = 2**20
"""A longer line stops the run; a Criteo row has 393 bytes at most."""

_PIECE_BYTES = 2**19
_ENDS_BYTES = 2**16
_DAY_NAME = re.compile(r"day_(0|[1-9][0-9]*)(?:\.tsv)?(?:\.gz)?")


@dataclasses.dataclass(frozen=True, slots=True)
class InputFile:
    """One raw file.

    Attributes:
        path: where it is.
        size: bytes on disk.
        compression: by its first bytes, whatever its name says.
        identity: changes when the file does (name, size, time of change, first and last bytes).
        inflation: estimated bytes of text per byte on disk.
    """

    path: Path
    size: int
    compression: Compression
    identity: str
    inflation: float

    @classmethod
    def open(cls, path: Path) -> "InputFile":
        """Looks at a file.

        Raises:
            PreprocError: it is not readable, or compressed in a way that is not supported.
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
        for magic, (name, tool) in REFUSED_MAGIC.items():
            if head.startswith(magic):
                raise PreprocError(
                    f"{path}: is {name}-compressed, which is not supported; plain text and gzip "
                    f"are. Unpack it first ({tool} {path.name})"
                )
        digest = xxhash.xxh3_128(f"{path.name}\0{stat.st_size}\0{stat.st_mtime_ns}\0".encode())
        digest.update(head)
        digest.update(tail)
        compression: Compression = "gzip" if head.startswith(GZIP_MAGIC) else "none"
        inflation = _inflation(head) if compression == "gzip" else 1.0
        return cls(path, stat.st_size, compression, digest.hexdigest(), inflation)

    @property
    def text_bytes(self) -> int:
        """Bytes of text: exact for a plain file, an estimate for a packed one."""
        return int(self.size * self.inflation)

    def pieces(self) -> Iterator[bytes]:
        """Yields the text, unpacked, in pieces of up to 512 KiB.

        Raises:
            PreprocError: the gzip data are damaged or end early.
        """
        with self.path.open("rb") as file:
            if self.compression == "none":
                while piece := file.read(_PIECE_BYTES):
                    yield piece
                return
            yield from self._inflate(iter(lambda: file.read(_PIECE_BYTES // 4), b""))

    def _inflate(self, packed: Iterator[bytes]) -> Iterator[bytes]:
        member = zlib.decompressobj(wbits=31)
        data = next(packed, b"")
        try:
            while data:
                if text := member.decompress(data, _PIECE_BYTES):
                    yield text
                if not member.eof:
                    data = member.unconsumed_tail or next(packed, b"")
                    continue
                # Members may follow each other, and zero bytes may pad the last one.
                data = member.unused_data.lstrip(b"\0") or next(packed, b"").lstrip(b"\0")
                if data:
                    member = zlib.decompressobj(wbits=31)
        except zlib.error as error:
            raise PreprocError(
                f"{self.path}: the gzip data are damaged ({error}); get the file again"
            ) from error
        if not member.eof:
            raise PreprocError(
                f"{self.path}: the gzip data end early (the file was cut off); get the file again"
            )


def _inflation(head: bytes) -> float:
    member = zlib.decompressobj(wbits=31)
    try:
        text = member.decompress(head)
    except zlib.error:
        return 1.0  # reported when the file is read
    return len(text) / max(len(head) - len(member.unused_data), 1)


def find_inputs(path: Path, *, by_days: bool) -> tuple[InputFile, ...]:
    """Returns the raw files of a folder or a single one, in row order.

    Args:
        path: folder with day_0 ... day_N, or a file.
        by_days: splits are made by days, so there must be several.

    Raises:
        PreprocError: nothing suitable is there.
    """
    if not path.exists():
        raise PreprocError(
            f"--input {path}: no such file or folder; give a folder with day_0 ... day_23, or one "
            "file in Criteo format (Kaggle train.txt)"
        )
    if path.is_dir():
        files = _find_days(path, by_days=by_days)
    elif by_days:
        raise PreprocError(
            f"--input {path}: one file cannot be split by days; give --split_fractions, for "
            "example 0.8,0.1,0.1, or --preset kaggle"
        )
    else:
        files = [path]
    for file in files:
        if not file.is_file():
            raise PreprocError(f"{file}: is not a regular file; give plain or gzip files")
        if file.stat().st_size == 0:
            raise PreprocError(
                f"{file}: is empty; get the file again, or leave it out if it is the last day"
            )
    return tuple(InputFile.open(f) for f in files)


def _find_days(folder: Path, *, by_days: bool) -> list[Path]:
    days: dict[int, Path] = {}
    try:
        names = sorted(folder.iterdir())
    except OSError as error:
        raise PreprocError(f"--input {folder}: cannot be listed ({error.strerror})") from error
    for file in names:
        match = _DAY_NAME.fullmatch(file.name)
        if match is None:
            continue
        day = int(match[1])
        if day in days:
            raise PreprocError(
                f"--input {folder}: day {day} is there twice ({days[day].name} and {file.name}); "
                "keep one of them"
            )
        days[day] = file
    if not days:
        hint = " Give the path of train.txt itself." if (folder / "train.txt").exists() else ""
        raise PreprocError(
            f"--input {folder}: no day_0 ... day_N file is there (plain or .gz; day_0.tsv is "
            f"accepted too).{hint}"
        )
    missing = sorted(set(range(max(days) + 1)) - days.keys())
    if missing:
        raise PreprocError(
            f"--input {folder}: days must go from 0 to {max(days)} without a gap; missing: "
            f"{', '.join(f'day_{d}' for d in missing)}"
        )
    if by_days and len(days) < 2:
        raise PreprocError(
            f"--input {folder}: only {days[0].name} is there, but the last day becomes validation "
            "and test; give --split_fractions, for example 0.8,0.1,0.1"
        )
    return [days[d] for d in sorted(days)]


def align_to_line(fd: int, offset: int, size: int) -> int:
    """Returns the first byte at or after `offset` that begins a line (or `size`).

    Raises:
        PreprocError: a line is longer than any Criteo row.
    """
    if offset <= 0 or offset >= size:
        return max(0, min(offset, size))
    at = offset - 1
    while at < size:
        piece = os.pread(fd, _ENDS_BYTES, at)
        if not piece:
            break
        newline = piece.find(b"\n")
        if newline >= 0:
            return at + newline + 1
        at += len(piece)
        if at - offset > MAX_LINE_BYTES:
            raise PreprocError(long_line_message(None, offset))
    return size


def long_line_message(path: Path | None, offset: int) -> str:
    """Returns what to say about a line without an end."""
    return (
        f"{path or 'input'}: the line at byte {offset} is longer than 1 MiB; this is not a Criteo "
        "log (40 tab-separated fields per line)"
    )


@contextlib.contextmanager
def open_fd(path: Path, flags: int = os.O_RDONLY) -> Iterator[int]:
    """Opens a file descriptor and closes it again."""
    fd = os.open(path, flags | os.O_CLOEXEC, 0o644)
    try:
        yield fd
    finally:
        os.close(fd)
