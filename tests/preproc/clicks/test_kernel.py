# SPDX-License-Identifier: Apache-2.0
"""Parts of the C++ kernel that no dataset shows; tests of the native engine have the rest."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from preproc.clicks.kernel import binding, shared_library
from preproc.clicks.rules import ClicksSemantics
from preproc.clicks.schema.row_format import criteo_format
from preproc.files.errors import CancelledError
from preproc.files.progress import Progress
from tests.preproc.clicks.rows import good_text
from tests.tools import needs

pytestmark = needs("compiled Criteo kernel")


@contextlib.contextmanager
def memory_file() -> Iterator[int]:
    fd = os.memfd_create("test")
    try:
        yield fd
    finally:
        os.close(fd)


@contextlib.contextmanager
def scanner(progress: Progress, row_limit: int = binding.NO_LIMIT) -> Iterator[binding.Scanner]:
    rules = ClicksSemantics()
    with (
        memory_file() as fd,
        binding.Scanner(
            semantics=rules,
            row_format=criteo_format(),
            table_bytes=2**20,
            runs_fd=fd,
            row_limit=row_limit,
            progress=progress,
        ) as opened,
    ):
        yield opened


def checksum(text: bytes, piece: int = 1000) -> object:
    """Returns the checksum of a text that is scanned in pieces."""
    with scanner(Progress()) as opened:
        for start in range(0, len(text), piece):
            opened.feed(text[start : start + piece])
        return opened.finish().checksum


def test_the_checksum_is_of_the_text_however_it_is_cut():
    text = good_text(20, seed=3)[:1003]
    assert {checksum(text, piece) for piece in (1, 31, 33, 500)} == {checksum(text)}
    others = [text[:i] + bytes([text[i] ^ 1]) + text[i + 1 :] for i in (0, 7, 500, 991, 1002)]
    others += [text[:-1], text + b"\0", text[32:64] + text[:32] + text[64:]]
    assert len({checksum(other) for other in [text, *others]}) == 9


def test_counts_beyond_32_bits():
    entry = np.array([(5 << 32) | (2**32 - 1)], np.uint64)
    other = np.array([(4 << 32) | (2**32 - 1)], np.uint64)
    with memory_file() as fd:
        merged = binding.merge_runs(
            [entry, other, entry],
            limits=(2**32, 0),
            budget_bytes=2**21,
            keys_fd=fd,
            progress=Progress(),
        )
    assert (merged.kept, merged.distinct) == (1, 2)


def test_cancel():
    progress = Progress()
    progress.cancel()
    with scanner(progress) as cancelled, pytest.raises(CancelledError):
        cancelled.feed(b"1")


def test_a_reader_tells_when_it_needs_no_more_text():
    """So that the rest of a file is neither unpacked nor written as text."""
    with scanner(Progress(), row_limit=30) as opened:
        for _ in range(2):
            assert not opened.is_done
            opened.feed(good_text(20, seed=3))
        assert opened.is_done
        assert opened.finish().rows == 30


def test_a_library_from_other_sources_counts_as_not_built():
    with pytest.raises(OSError, match=r"libc\.so\.6"):
        shared_library.load(Path("libc.so.6"))
