# SPDX-License-Identifier: Apache-2.0
"""The C++ kernel against the NumPy definition, call by call."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from preproc.criteo.engines import reference as criteo_reference
from preproc.criteo.job import semantics_of
from preproc.criteo.kernel import binding, shared_library
from preproc.criteo.rules import (
    NUM_CATEGORICAL,
    REJECT_REASONS,
    CriteoSemantics,
    transform_numerical,
)
from preproc.files.errors import CancelledError
from preproc.files.input_file import InputFile
from preproc.files.progress import Progress
from tests.preproc.criteo.rows import SEMANTICS, TEXTS, good_text, without_labels
from tests.tools import needs

pytestmark = needs("compiled Criteo kernel")


@contextlib.contextmanager
def memory_file() -> Iterator[int]:
    fd = os.memfd_create("test")
    try:
        yield fd
    finally:
        os.close(fd)


def read_all(fd: int, dtype: object) -> np.ndarray:
    size = os.fstat(fd).st_size
    return np.frombuffer(os.pread(fd, size, 0), dtype)


def scanner(semantics: CriteoSemantics, runs_fd: int, **settings: object) -> binding.Scanner:
    defaults = {"table_bytes": 2**20, "progress": Progress()}
    return binding.Scanner(semantics=semantics, runs_fd=runs_fd, **defaults | settings)


def scan(text: bytes, semantics: CriteoSemantics, piece: int = 1000, **settings: object):
    """Returns the result, entries of runs and rejected rows of a text."""
    with memory_file() as runs_fd, memory_file() as rejects_fd:
        with scanner(semantics, runs_fd, rejects_fd=rejects_fd, **settings) as opened:
            for start in range(0, len(text), piece):
                opened.feed(text[start : start + piece])
            result = opened.finish()
        return result, read_all(runs_fd, binding.RUN_ENTRY), read_all(rejects_fd, np.uint8)


def merge_runs(runs: list[np.ndarray], frequency_limit: int, budget: int = 2**21):
    """Returns the result of a merge, and the categories that it keeps."""
    with memory_file() as fd:
        merged = binding.merge_runs(
            runs,
            frequency_limit=frequency_limit,
            budget_bytes=budget,
            dictionary_fd=fd,
            progress=Progress(),
        )
        return merged, read_all(fd, "<u4")


def merge(result, entries, semantics: CriteoSemantics, budget: int = 2**21) -> list[np.ndarray]:
    dictionaries = []
    for column in range(semantics.num_categorical):
        runs = [
            entries[r.first_entry : r.first_entry + r.entries]
            for r in result.runs
            if r.column == column
        ]
        merged, dictionary = merge_runs(runs, semantics.frequency_limit, budget)
        assert merged.kept == len(dictionary)
        dictionaries.append(dictionary)
    return dictionaries


def encode(text: bytes, rows: int, dictionaries, semantics: CriteoSemantics):
    """Returns label, float16, float32 and ids of all rows."""
    with contextlib.ExitStack() as stack:
        fds = [stack.enter_context(memory_file()) for _ in range(3 + semantics.num_categorical)]
        target = binding.EncodeTarget(
            first_row=0,
            rows=rows,
            out_row=0,
            label_fd=fds[0],
            float16_fd=fds[1],
            float32_fd=fds[2],
            categorical_fds=tuple(fds[3:]),
            id_bytes=(4,) * semantics.num_categorical,
        )
        tables = stack.enter_context(binding.open_dictionaries(dictionaries))
        with binding.Encoder(
            dictionaries=tables,
            semantics=semantics,
            targets=[target],
            progress=Progress(),
        ) as encoder:
            encoder.feed(text)
            read, positives = encoder.finish()
        assert read == rows
        label, float16, float32 = (
            read_all(fd, dtype) for fd, dtype in zip(fds[:3], ("?", "<f2", "<f4"), strict=True)
        )
        assert positives == [label.sum()]
        return label, float16, float32, [read_all(fd, "<i4") for fd in fds[3:]]


@given(text=TEXTS, semantics=SEMANTICS, piece=st.sampled_from([1, 7, 64, 1000, 10**6]))
def test_kernel_is_the_definition(tmp_path_factory, text, semantics, piece):
    text = without_labels(text) if semantics.unlabelled else text
    path = tmp_path_factory.getbasetemp() / "kernel_text"
    path.write_bytes(text)
    rows, bad = criteo_reference.read_rows(InputFile(path, len(text), "none", "", 1.0), semantics)
    count = len(rows.label)

    result, entries, rejects = scan(text, semantics, piece=piece)
    assert (result.rows, result.positives) == (count, rows.label.sum())
    assert (result.lines, result.text_bytes) == (count + len(bad), len(text))
    assert result.rejected == {r: sum(b.reason == r for b in bad) for r in REJECT_REASONS}
    at = 0
    for row in bad:
        header = rejects[at : at + 24].view(binding.REJECTED_HEADER)[0]
        at += 24 + int(header["length"])
        assert (header["offset"], header["line"] + 1) == (row.byte_offset, row.line_number)
        assert rejects[at - int(header["length"]) : at].tobytes() == row.row
    assert at == len(rejects)

    expected = criteo_reference.build_dictionaries(rows, count, semantics)
    dictionaries = merge(result, entries, semantics)
    assert all(np.array_equal(d, e) for d, e in zip(dictionaries, expected, strict=True))

    columns = criteo_reference.encode(rows, expected, semantics)
    label, float16, float32, ids = encode(text, count, dictionaries, semantics)
    assert np.array_equal(label, columns.label)
    assert np.array_equal(float32, columns.numerical.ravel())
    assert np.array_equal(float16, columns.numerical.astype(np.float16).ravel())
    assert all(np.array_equal(i, c) for i, c in zip(ids, columns.categorical, strict=True))


@pytest.mark.parametrize("table_bytes", [1, 2**20, 2**24])
@pytest.mark.parametrize("budget", [2**20, 2**24])
def test_small_budgets_change_nothing(table_bytes, budget):
    text = good_text(6000, seed=1, vocabulary=10**9)
    semantics = semantics_of("mlperf")
    expected = merge(*scan(text, semantics, table_bytes=2**28)[:2], semantics, 2**26)
    result, entries, _ = scan(text, semantics, table_bytes=table_bytes)
    if table_bytes < 2**21:
        assert len(result.runs) >= 2 * NUM_CATEGORICAL  # it did spill
    for run in result.runs:
        keys = entries[run.first_entry : run.first_entry + run.entries] >> np.uint64(32)
        assert (keys[1:] > keys[:-1]).all()
    merged = merge(result, entries, semantics, budget)
    assert all(np.array_equal(m, e) for m, e in zip(merged, expected, strict=True))


def test_counts_beyond_32_bits():
    entry = np.array([(5 << 32) | (2**32 - 1)], np.uint64)
    other = np.array([(4 << 32) | (2**32 - 1)], np.uint64)
    merged, _ = merge_runs([entry, other, entry], frequency_limit=2**32)
    assert (merged.kept, merged.distinct) == (1, 2)


def test_crowded_slots():
    """Categories whose keys share their upper bits fill one place of the table."""
    keys = np.arange(2000, dtype=np.uint64)
    categories = [_category_of_key(int(k)) for k in keys]
    rows = [b"0" + b"\t" * 14 + b"%08x" % c + b"\t" * 25 for c in categories]
    # And the last slots, so that entries go round the end of the table.
    rows += [
        b"0" + b"\t" * 14 + b"%08x" % _category_of_key(2**32 - 1 - k) + b"\t" * 25
        for k in range(2000)
    ]
    result, entries, _ = scan(b"\n".join(rows), semantics_of("dlrm"))
    (run,) = result.runs
    assert run.entries == 4000
    expected = np.concatenate([keys, np.uint64(2**32 - 2000) + keys])
    assert np.array_equal(entries >> np.uint64(32), expected)
    assert (entries & np.uint64(2**32 - 1) == 1).all()


def _category_of_key(key: int) -> int:
    key ^= key >> 16
    key = key * pow(0xC2B2AE35, -1, 2**32) % 2**32
    key ^= key >> 13 ^ key >> 26
    key = key * pow(0x85EBCA6B, -1, 2**32) % 2**32
    return key ^ key >> 16


HARD_INTEGERS = [
    58037908, 101320060, 235203552, 313124632, 544287073, 626939156, 699483882, 709943748,
    745122378, 819154840, 951698182, 1123682560, 1148278097, 1233975571, 1249524242, 1275391919,
    1282436702, 1311950162, 1420413668, 1444814252, 1448401191, 1483597714, 1508534041, 1513716308,
    1546604171, 1639298208, 1670100745, 1715765922, 1763375792, 1798096959, 1803159299, 1826015778,
    1832704620, 1846969490, 1916164604, 1926116780, 1926700999, 1981966377, 2036337480,
]  # fmt: skip
"""Integers whose logarithm lies within 4 ulp (float64) of the middle between two float32."""

ROUNDED_TWICE = [10364, 15317]
"""Integers whose logarithm rounds to another float16 when float32 is left out."""


@pytest.mark.parametrize("preset", ["dlrm", "nvidia", "mlperf"])
def test_logarithms_round_like_numpy(preset):
    semantics = semantics_of(preset)
    offset = semantics.numerical_offset
    integers = [h - offset for h in [*HARD_INTEGERS, *ROUNDED_TWICE]]
    integers += [*range(-10, 70_000), -(2**31), 2**31 - 1]
    integers += np.random.default_rng(3).integers(0, 2**31, 100_000).tolist()
    integers += [0] * (-len(integers) % 13)
    rows = [
        b"\t".join([b"0", *(b"%d" % i for i in integers[s : s + 13]), *([b""] * 26)])
        for s in range(0, len(integers), 13)
    ]
    none = [np.empty(0, np.uint32)] * NUM_CATEGORICAL
    _, float16, float32, _ = encode(b"\n".join(rows), len(rows), none, semantics)
    expected = transform_numerical(np.array(integers), np.zeros(len(integers), np.bool_), semantics)
    assert np.array_equal(float32, expected)
    assert np.array_equal(float16, expected.astype(np.float16))


def test_cancel():
    progress = Progress()
    progress.cancel()
    with (
        memory_file() as fd,
        scanner(CriteoSemantics(), fd, progress=progress) as cancelled,
        pytest.raises(CancelledError),
    ):
        cancelled.feed(b"1")


def test_the_checksum_is_of_the_text_however_it_is_cut():
    text = good_text(20, seed=3)[:1003]
    rules = CriteoSemantics()
    checksum = scan(text, rules)[0].checksum
    assert all(scan(text, rules, piece=piece)[0].checksum == checksum for piece in (1, 31, 33, 500))
    others = [text[:i] + bytes([text[i] ^ 1]) + text[i + 1 :] for i in (0, 7, 500, 991, 1002)]
    others += [text[:-1], text + b"\0", text[32:64] + text[:32] + text[64:]]
    assert len({checksum, *(scan(other, rules)[0].checksum for other in others)}) == 9


def test_a_library_from_other_sources_counts_as_not_built():
    with pytest.raises(OSError, match="was built from other sources"):
        shared_library.load(Path("libc.so.6"))


def test_row_limit_counts_the_first_valid_rows():
    text = good_text(2000, seed=5)
    lines = text.split(b"\n")
    lines.insert(100, b"bad")
    text = b"\n".join(lines)
    for limit in (1, 511, 512, 513, 1999, 2000):
        head = b"\n".join(lines[: limit + (limit > 100)])
        expected = scan(head, semantics_of("dlrm"))
        result, entries, _ = scan(text, semantics_of("dlrm"), len(text), row_limit=limit)
        assert (result.rows, result.positives) == (limit, expected[0].positives)
        assert np.array_equal(entries, expected[1])
