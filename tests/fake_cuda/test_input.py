# SPDX-License-Identifier: Apache-2.0
"""DLRM's input for a GPU: batches in a ring of pinned buffers."""

import os

import numpy as np
import pytest
import torch

from dlrm.data.loader import BatchLoader
from dlrm.data.pinned import PinnedBuffers
from recsys.data.click_columns import ClickColumns
from recsys.data.errors import DatasetError
from recsys.data.feature_spec import FeatureSpec
from recsys.data.parquet import ParquetReader, write_parquet_part
from recsys.data.split_binary import SplitBinaryReader, SplitBinaryWriter
from tests.fake_cuda.device import DEVICE, PinnedMemory
from tests.fake_cuda.recorder import Recorder
from tests.harness import refusal

SPEC = FeatureSpec.criteo((100, 3, 40_000, 100_000, 7))
BATCH, BATCHES = 64, 30
ROWS = BATCH * BATCHES - 10
READ_AHEAD = 2


def rows_of_a_split():
    generator = np.random.default_rng(0)
    return ClickColumns(
        generator.random(ROWS) < 0.5,
        generator.random((ROWS, len(SPEC.numerical))).astype(np.float16),
        tuple(generator.integers(0, f.cardinality, ROWS).astype(f.dtype) for f in SPEC.categorical),
    )


@pytest.fixture(params=["narrow", "wide"])
def dataset(request, tmp_path):
    """Writes a split of each flavour."""
    with SplitBinaryWriter(tmp_path / "train", SPEC, ROWS, request.param) as writer:
        writer.write(0, rows_of_a_split())
    return tmp_path


def load(source):
    return BatchLoader(
        source=source, batch_size=BATCH, device=DEVICE, drop_last=False, read_ahead=READ_AHEAD
    )


def loader(dataset, access="pread"):
    return load(SplitBinaryReader(dataset, "train", SPEC, access, check_ids=True))


@pytest.fixture
def refills(monkeypatch):
    """Counts reads into pinned memory, and refuses one before the copy of what was there."""
    counts = []
    preadv = os.preadv

    def checked(fd, buffers, offset):
        counts.append(PinnedMemory.check_write(np.frombuffer(buffers[0], np.uint8).ctypes.data))
        return preadv(fd, buffers, offset)

    monkeypatch.setattr(os, "preadv", checked)
    return counts


def train_on(batches):
    """Copies every batch to the device; returns their sizes."""
    with Recorder():
        return [len(batch) for batch in batches]


@pytest.mark.parametrize("access", ["pread", "memmap"])
def test_pinned_batches_are_the_rows_of_the_split(dataset, access):
    assert_pinned_batches_are_its_rows(loader(dataset, access))


def test_pinned_batches_are_the_rows_of_a_stream(tmp_path):
    rows = rows_of_a_split()
    groups = [rows[start : start + 450] for start in range(0, ROWS, 450)]
    write_parquet_part(tmp_path / "train" / "part_00000.parquet", SPEC, groups)
    source = ParquetReader(tmp_path, "train", SPEC)
    assert_pinned_batches_are_its_rows(load(source))


def assert_pinned_batches_are_its_rows(source):
    ranges = list(source.row_ranges(1, 2))
    batches = source.narrow_batches(1, 2)
    for (start, stop), batch in zip(ranges, batches, strict=True):
        read, expected = batch.buffers.columns(stop - start), source.source.read(start, stop)
        assert np.array_equal(read.label, expected.label)
        assert np.array_equal(read.numerical, expected.numerical)
        for mine, theirs in zip(read.categorical, expected.categorical, strict=True):
            assert mine.dtype == theirs.dtype
            assert np.array_equal(mine, theirs)


def test_files_are_read_into_pinned_memory_that_is_allocated_once(dataset, refills):
    source = loader(dataset)
    sizes = [BATCH] * (BATCHES - 1) + [BATCH - 10]
    assert train_on(source.batches(0)) == sizes
    allocated = len(PinnedMemory.allocated)
    assert refills.count(True) >= BATCHES * (1 + len(SPEC.categorical))
    assert train_on(source.batches(1)) == sizes
    assert len(PinnedMemory.allocated) == allocated


def test_a_buffer_that_is_filled_again_before_it_is_copied_is_refused(
    dataset, refills, monkeypatch
):
    monkeypatch.setattr(PinnedBuffers, "wait", lambda _: None)
    with pytest.raises(AssertionError, match="filled again before it was copied"):
        train_on(loader(dataset).batches())
    assert any(refills)


def test_readers_call_nothing_that_breaks_a_capture_of_any_mode(dataset):
    batches = loader(dataset).narrow_batches()
    next(batches)
    with torch.cuda.graph(None, capture_error_mode="global"):
        assert len(list(batches)) == BATCHES - 1


def test_a_damaged_row_is_named_and_ends_the_epoch(dataset):
    source = loader(dataset)
    path = source.source.paths["cat_1.bin"]
    ids = np.fromfile(path, source.source.dtypes["cat_1.bin"])
    ids[1500] = 3
    ids.tofile(path)
    with refusal("row 1500", 3, "[0, 3)", kind=DatasetError):
        train_on(source.batches())
