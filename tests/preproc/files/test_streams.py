# SPDX-License-Identifier: Apache-2.0
"""Compressed files of several streams: whole, or refused with the place of the damage."""

import bz2
import functools
import gzip
import itertools
import lzma
import re

import pytest
import xxhash

from preproc.files.errors import PreprocError
from preproc.files.input_file import InputFile
from tests.preproc.clicks.rows import zstd_compress

SKIPPABLE = b"\x5a\x2a\x4d\x18" + (9).to_bytes(4, "little") + b"who knows"


def zstd(text: bytes) -> bytes:
    """Compresses to a frame with a checksum, as zstd(1) does and Arrow does not."""
    frame = bytearray(zstd_compress(text))
    frame[4] |= 4
    return bytes(frame) + (xxhash.xxh64_intdigest(text) & 0xFFFFFFFF).to_bytes(4, "little")


PACKERS = {
    ".gz": lambda text: gzip.compress(text, mtime=0),
    ".bz2": bz2.compress,
    ".xz": functools.partial(lzma.compress, preset=0),
    ".zst": zstd,
}
TEXTS = (
    b"".join(b"%d,%d\n" % (i, i * i % 97) for i in range(12)),
    b"",
    b"".join(b"%d;%d\n" % (i, i * i % 89) for i in range(12)),
)
every_format = pytest.mark.parametrize("suffix", PACKERS)


@pytest.fixture
def read(tmp_path):
    """Returns the text of a file, or the offset that its refusal names."""

    def read(suffix: str, packed: bytes) -> bytes | int:
        path = tmp_path / f"log{suffix}"
        path.write_bytes(packed)
        refusal = ""
        try:
            return b"".join(InputFile.open(path).blocks())
        except PreprocError as error:
            refusal = str(error)
        assert str(path) in refusal
        at = re.search(r"byte (\d+)", refusal)
        assert at is not None
        assert int(at[1]) <= len(packed)
        return int(at[1])

    return read


@every_format
def test_streams_one_after_the_other(read, suffix):
    pack = PACKERS[suffix]
    large = b"".join(b"%d,%d\n" % (i, i * i % 9973) for i in range(150_000))
    texts = [*TEXTS, large, b"", large[:-1], TEXTS[0]]
    assert read(suffix, b"".join(map(pack, texts))) == b"".join(texts)
    assert read(suffix, pack(b"")) == b""


@every_format
def test_a_flipped_bit_is_harmless_or_told(read, suffix):
    """In the header, the data, the checksum and the footer of each of three streams."""
    packed = [PACKERS[suffix](text) for text in TEXTS]
    begins = list(itertools.accumulate(map(len, packed), initial=0))
    whole = b"".join(packed)
    for bit in range(8 * len(whole)):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        outcome = read(suffix, bytes(damaged))
        if outcome != b"".join(TEXTS):
            # A checksum that is taken for the next stream is the place of the damage.
            assert isinstance(outcome, int), bit
            assert outcome < next(begin for begin in begins if begin > bit // 8), bit


@every_format
def test_a_cut_file_is_told(read, suffix):
    packed = [PACKERS[suffix](text) for text in TEXTS]
    begins = list(itertools.accumulate(map(len, packed), initial=0))
    whole = b"".join(packed)
    for end in range(6, len(whole)):
        last = max(number for number, begin in enumerate(begins) if begin <= end)
        outcome = read(suffix, whole[:end])
        # Without a byte of the next stream nobody can tell that there was one.
        expected = b"".join(TEXTS[:last]) if begins[last] == end else begins[last]
        assert outcome == expected, end


@pytest.mark.parametrize("length", [1, 3, 4, 8, 300, 512, 131_072, 400_000, 1_000_001])
@every_format
def test_zero_bytes_between_streams(read, suffix, length):
    first, second = map(PACKERS[suffix], (TEXTS[0], TEXTS[2]))
    multiple = {".gz": 1, ".xz": 4}.get(suffix)
    is_padding = multiple is not None and length % multiple == 0
    for padded, text in (
        (first + bytes(length) + second, TEXTS[0] + TEXTS[2]),
        (first + bytes(length), TEXTS[0]),
    ):
        assert read(suffix, padded) == (text if is_padding else len(first))


@pytest.mark.parametrize(
    "rest", [b"x", b"\n", b"0,1\n" * 9, b"\0\0\0\0x", b"\0" * 4 + b"0,1\n" * 9]
)
@every_format
def test_what_is_no_stream_is_told(read, suffix, rest):
    packed = PACKERS[suffix](TEXTS[0])
    at = read(suffix, packed + rest)
    zeros = len(rest) - len(rest.lstrip(b"\0")) if suffix in (".gz", ".xz") else 0
    assert at == len(packed) + zeros


def test_frames_of_zstd_that_hold_no_text(read):
    first, second = zstd(TEXTS[0]), zstd(TEXTS[2])
    whole = TEXTS[0] + TEXTS[2]
    assert read(".zst", SKIPPABLE + first + second) == whole
    assert read(".zst", first + SKIPPABLE + SKIPPABLE + second) == whole
    assert read(".zst", first + second + SKIPPABLE) == whole
    for end in range(1, len(SKIPPABLE)):
        assert read(".zst", first + SKIPPABLE[:end]) == len(first)


@every_format
def test_a_text_with_the_name_of_a_compressed_file(read, suffix):
    """Some clients unpack what they fetch, and keep the name."""
    assert read(suffix, TEXTS[0]) == TEXTS[0]
