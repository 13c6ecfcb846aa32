# SPDX-License-Identifier: Apache-2.0
"""Compressed files, read to their last byte.

A file may hold several streams, one after the other, written by `cat`, pbzip2 or appending. Between
and after them there may be the padding that the format allows. Everything else is damage and is
reported with its offset, because ignoring it would silently lose rows.
"""

import bz2
import io
import lzma
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Literal, Protocol, cast

from isal import igzip_lib

from preproc.files.errors import PreprocError

StreamFormat = Literal["gzip", "zstd", "bzip2", "xz"]

BLOCK_BYTES = 2**19
_READ_BYTES = BLOCK_BYTES // 4
_LEAST_BYTES = 2**16
"""Shorter streams are joined, since each block costs its reader a call or a thread switch."""

_GzipError = cast("type[Exception]", igzip_lib.error)  # its stub declares an instance
_DAMAGE = (OSError, EOFError, lzma.LZMAError, _GzipError)

ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
SKIPPABLE_MAGICS = tuple(bytes([first]) + b"\x2a\x4d\x18" for first in range(0x50, 0x60))
"""First bytes of zstd frames that hold no text."""


class _Decoder(Protocol):
    @property
    def eof(self) -> bool: ...
    @property
    def needs_input(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int) -> bytes: ...


_DECODERS: dict[StreamFormat, Callable[[], _Decoder]] = {
    "gzip": lambda: igzip_lib.IgzipDecompressor(flag=igzip_lib.DECOMP_GZIP),
    "bzip2": bz2.BZ2Decompressor,
    "xz": lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ),
}
_PADDING: dict[StreamFormat, int] = {"gzip": 1, "xz": 4}
"""Zero padding after a stream comes in multiples of this; other formats have no padding."""


def unpack(path: Path, kind: StreamFormat) -> Iterator[bytes]:
    """Yields the text of all streams in blocks of 64 to 512 KiB; the last may be shorter.

    Raises:
        PreprocError: a stream is damaged or ends early, or the file holds something else; names
            its offset in the compressed file.
    """
    held = b""
    with path.open("rb") as file:
        for text in (_zstd_frames if kind == "zstd" else _streams)(path, kind, file):
            held += text
            if len(held) >= _LEAST_BYTES:
                yield held
                held = b""
    if held:
        yield held


def _streams(path: Path, kind: StreamFormat, file: IO[bytes]) -> Iterator[bytes]:
    data = file.read(_READ_BYTES)
    while data:
        begin, decoder = file.tell() - len(data), _DECODERS[kind]()
        while not decoder.eof:
            try:
                yield decoder.decompress(data, BLOCK_BYTES)
            except _DAMAGE as error:
                raise _damaged(path, kind, begin, str(error)) from error
            data = b""
            if decoder.needs_input and not decoder.eof:
                data = file.read(_READ_BYTES)
                if not data:
                    raise _damaged(path, kind, begin, "the file was cut off")
        data = _after_padding(path, kind, file, decoder.unused_data)


def _after_padding(path: Path, kind: StreamFormat, file: IO[bytes], data: bytes) -> bytes:
    """Returns the data from the next stream on, empty at the end of the file."""
    data = data or file.read(_READ_BYTES)
    if kind not in _PADDING:
        return data
    begin = file.tell() - len(data)
    while data and not (rest := data.lstrip(b"\0")):
        data = file.read(_READ_BYTES)
    data = rest if data else data
    padding = file.tell() - len(data) - begin
    if padding % _PADDING[kind]:
        raise _damaged(path, kind, begin, f"{padding} zero bytes are not valid padding")
    return data


def _zstd_frames(path: Path, kind: StreamFormat, file: IO[bytes]) -> Iterator[bytes]:
    import pyarrow as pa

    size = os.fstat(file.fileno()).st_size
    while (begin := file.tell()) < size:
        frame, held = _Frame(file), 0
        try:
            pieces = pa.PythonFile(_Pieces(frame.pieces()), "r")
            with pa.CompressedInputStream(pieces, "zstd") as text:
                while block := text.read(BLOCK_BYTES):
                    held += len(block)
                    yield block
            # Its streaming decoder does not compare these if the last block is empty.
            if frame.text_bytes not in (None, held):
                raise OSError(f"{held:,} bytes of text, but its header says {frame.text_bytes:,}")
        except OSError as error:
            raise _damaged(path, kind, begin, str(error)) from error


class _Frame:
    """A frame, whose end is found from its headers.

    Arrow's decoder treats all frames of a file as one, so it could not report which one is damaged.

    Attributes:
        text_bytes: length of the text by the header; None if it does not say, or was not read.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self.text_bytes: int | None = None
        self._file = file

    def pieces(self) -> Iterator[bytes]:
        """Yields the bytes of the frame."""
        file = self._file
        yield (magic := file.read(4))
        if magic in SKIPPABLE_MAGICS:
            yield (length := file.read(4))
            left = int.from_bytes(length, "little")
            while data := file.read(min(left, _READ_BYTES)):
                left -= len(data)
                yield data
            return
        if magic != ZSTD_MAGIC:
            yield file.read(_READ_BYTES)  # the decoder refuses these bytes
            return
        yield (descriptor := file.read(1))
        flags = descriptor[0] if descriptor else 0
        is_single, has_checksum = flags >> 5 & 1, flags >> 2 & 1
        size_bytes = (is_single, 2, 4, 8)[flags >> 6]
        yield file.read((not is_single) + (0, 1, 2, 4)[flags & 3])
        if size_bytes:
            yield (size := file.read(size_bytes))
            self.text_bytes = int.from_bytes(size, "little") + (256 if size_bytes == 2 else 0)
        is_last = False
        while not is_last and len(header := file.read(3)) == 3:
            number = int.from_bytes(header, "little")
            is_last, repeats = bool(number & 1), number >> 1 & 3 == 1
            yield header + file.read(1 if repeats else number >> 3)
        yield file.read(4 * has_checksum)


class _Pieces(io.RawIOBase):
    """Presents pieces of bytes as a file that is read once."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        super().__init__()
        self._pieces = filter(None, pieces)
        self._rest = b""

    def readable(self) -> bool:
        """Returns True."""
        return True

    def read(self, size: int = -1, /) -> bytes:
        """Returns up to `size` bytes of the next piece, none at the end."""
        data = self._rest or next(self._pieces, b"")
        size = len(data) if size < 0 else size
        self._rest = data[size:]
        return data[:size]


def _damaged(path: Path, kind: StreamFormat, begin: int, reason: str) -> PreprocError:
    what = "frame" if kind == "zstd" else "member" if kind == "gzip" else "stream"
    return PreprocError(
        f"{path}: the {kind} data are damaged or end early in the {what} that begins at byte "
        f"{begin} ({reason}); get the file again",
        path=path,
    )
