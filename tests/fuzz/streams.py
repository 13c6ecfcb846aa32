# SPDX-License-Identifier: Apache-2.0
"""Compressed files of several members, padded and damaged, beside the standard library."""

import bz2
import contextlib
import gzip
import lzma
import zlib
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

from preproc.files.errors import PreprocError
from preproc.files.input_file import InputFile
from tests.fuzz.target import Draws, Target


def _zstd(text: bytes) -> bytes:
    return pa.compress(text, codec="zstd", asbytes=True)


def _unzstd(packed: bytes) -> bytes:
    return pa.CompressedInputStream(pa.BufferReader(packed), "zstd").read()


def _raw_gzip(text: bytes) -> bytes:
    """Compresses without the `gzip` module's fixed header: strategies, and a stored block."""
    packer = zlib.compressobj(len(text) % 10, zlib.DEFLATED, 31, 8, len(text) % 5)
    return packer.compress(text) + packer.flush()


_PACK: dict[str, tuple[Callable[[bytes], bytes], ...]] = {
    "gzip": (gzip.compress, _raw_gzip),
    "zstd": (_zstd,),
    "bzip2": (bz2.compress,),
    "xz": (
        lambda text: lzma.compress(text, preset=0),
        lambda text: lzma.compress(text, check=lzma.CHECK_CRC32, preset=0),
    ),
}
_UNPACK = {"gzip": gzip.decompress, "bzip2": bz2.decompress, "xz": lzma.decompress, "zstd": _unzstd}
_PADDING = {"gzip": 1, "xz": 4}
_REPEATS = dict.fromkeys(_PACK, (1,) * 9 + (2, 99)) | dict.fromkeys(("gzip", "zstd"), (1, 99, 9999))
"""Some texts are longer than the blocks in which they are read."""
_SKIPPED = b"\x5e\x2a\x4d\x18\x03\x00\x00\x00abc"
"""A frame of zstd without text."""


def streams(folder: Path, data: bytes) -> None:
    """Reads every byte of the text, or refuses the file."""
    draws = Draws(data)
    kind = draws.pick(tuple(_PACK))
    texts, packed = [], b""
    for _ in range(1 + draws.below(4)):
        text = draws.bytes(draws.below(64)) * draws.pick(_REPEATS[kind])
        texts.append(text)
        packed += draws.pick(_PACK[kind])(text)
        packed += bytes(draws.below(3) * _PADDING.get(kind, 0))
        packed += _SKIPPED if kind == "zstd" and draws.below(4) == 1 else b""
    sent = draws.edited(packed)
    path = folder / f"log.{kind}"
    path.write_bytes(sent)
    refusal, text = "", b""
    try:
        file = InputFile.open(path)
        read = file.compression
        if file.is_table:
            return
        text = b"".join(file.blocks())
    except PreprocError as error:
        refusal = str(error)
        assert str(path) in refusal
    if sent == packed:
        assert (refusal, text) == ("", b"".join(texts))
    elif not refusal and read in _UNPACK:
        # What the library makes of it, or what was packed: the libraries end at padding, for
        # example, and read an empty last block in one piece or in many otherwise.
        expected = [b"".join(texts)]
        with contextlib.suppress(OSError, EOFError, lzma.LZMAError, zlib.error):
            expected.append(_UNPACK[read](sent))
        assert text in expected


TARGETS = (Target(streams),)
