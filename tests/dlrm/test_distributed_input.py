# SPDX-License-Identifier: Apache-2.0
"""A rank reads of a batch of all ranks what it needs, and nothing else."""

import shutil

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from dlrm.config import DataConfig, DlrmConfig, ModelConfig
from dlrm.data.open_split import SplitPass
from dlrm.data.opened import OpenedDataset
from dlrm.distributed.columns import ColumnLoader, CutBatches, RankColumns, open_rank_split
from recsys.data import split_binary
from recsys.data.errors import DatasetError
from recsys.data.parquet import FOLDER, part_name
from tests.dlrm.batches import FILE_TYPES, open_batches
from tests.dlrm.conftest import CARDINALITIES, NUM_NUMERICAL, ROWS, SPEC
from tests.dlrm.ranks import placement_of

BATCH = 700  # leaves 6 rows to the last batch: uneven on four ranks
PLACEMENTS = {
    name: placement_of(4, CARDINALITIES, kinds)
    for name, kinds in {
        "mixed": ("replicate", 1, "rows", "replicate"),
        "copies": ("replicate",) * 4,
        "whole": (0, 3, 1, 0),
        "rows": ("rows",) * 4,
    }.items()
}


def opened(root, dataset_type, placed, rank, split="train", train=False, **more):
    """Opens a rank's batches without a process group."""
    config = DlrmConfig(
        data=DataConfig(dataset=str(root), dataset_type=dataset_type, **more),
        model=ModelConfig(num_numerical_features=NUM_NUMERICAL),
    )
    wanted = SplitPass(split=split, batch_size=BATCH, train=train)
    return open_rank_split(
        config, OpenedDataset(config.data, SPEC), RankColumns.of(placed, rank), wanted
    )


def assert_same_cuts(found, expected):
    """Compares a rank's batches; returns how many there were."""
    count = 0
    for mine, theirs in zip(found, expected, strict=True):
        assert mine.ids.num_rows == theirs.ids.num_rows
        assert torch.equal(mine.numerical, theirs.numerical)
        assert torch.equal(mine.label, theirs.label)
        assert mine.label.dtype == torch.float32
        assert np.array_equal(mine.ids.local_ids, theirs.ids.local_ids)
        assert mine.ids.batch_ids.keys() == theirs.ids.batch_ids.keys()
        for table, ids in theirs.ids.batch_ids.items():
            assert mine.ids.batch_ids[table].dtype == np.int64
            assert np.array_equal(mine.ids.batch_ids[table], ids)
        count += 1
    return count


@pytest.mark.parametrize("name", PLACEMENTS)
@pytest.mark.parametrize("dataset_type", FILE_TYPES)
@pytest.mark.parametrize("shuffle", [False, True])
def test_a_rank_reads_its_rows_of_the_batch_of_all_ranks(dataset, name, dataset_type, shuffle):
    placed = PLACEMENTS[name]
    whole = open_batches(dataset, dataset_type, batch_size=BATCH, shuffle=shuffle, seed=12345)
    for rank in range(4):
        found = opened(dataset, dataset_type, placed, rank, train=True, shuffle_batch_order=shuffle)
        assert isinstance(found, ColumnLoader) == (dataset_type in ("split", "memmap"))
        expected = CutBatches(whole, RankColumns.of(placed, rank))
        assert found.num_batches == expected.num_batches
        count = assert_same_cuts(found.batches(1, 2), expected.batches(1, 2))
        assert count == found.num_batches - 2


@pytest.mark.merlin
def test_merlins_loader_reads_the_columns_of_a_rank(dataset):
    placed = PLACEMENTS["mixed"]
    for rank in range(4):
        found = opened(dataset, "parquet", placed, rank, loader="merlin")
        expected = opened(dataset, "parquet", placed, rank)
        assert found.num_batches == expected.num_batches
        assert_same_cuts(found.batches(), expected.batches())


def test_of_split_files_a_rank_reads_its_columns_and_rows_alone(dataset, monkeypatch):
    read = {}
    original = split_binary.read_array

    def counted(fd, path, dtype, offset, count, into=None):
        read[path.name] = read.get(path.name, 0) + count
        return original(fd, path, dtype, offset, count, into)

    monkeypatch.setattr(split_binary, "read_array", counted)
    total = 0
    for rank in range(4):
        read.clear()
        batches = opened(dataset, "split", PLACEMENTS["mixed"], rank).batches()
        own = sum(len(batch.label) for batch in batches)
        expected = {
            "label.bin": own,
            "numerical.bin": own * NUM_NUMERICAL,
            "cat_0.bin": own,
            "cat_2.bin": ROWS["train"],
            "cat_3.bin": own,
        }
        if rank == 1:
            expected["cat_1.bin"] = ROWS["train"]
        assert read == expected
        total += own
    assert total == ROWS["train"]


def test_damage_to_a_feature_that_lies_elsewhere_is_not_met(dataset, tmp_path):
    """Of parquet too a rank reads its columns alone."""
    root = shutil.copytree(dataset, tmp_path / "copy")
    path = root / FOLDER / "train" / part_name(1)
    chunk = pq.read_metadata(path).row_group(0).column(1 + NUM_NUMERICAL + 1)
    assert chunk.path_in_schema == "cat_1"
    with path.open("r+b") as file:
        file.seek(chunk.dictionary_page_offset or chunk.data_page_offset)
        file.write(b"\xff" * chunk.total_compressed_size)
    for rank in (0, 2, 3):
        batches = opened(root, "parquet", PLACEMENTS["mixed"], rank).batches()
        assert sum(batch.ids.num_rows for batch in batches) == ROWS["train"]
    with pytest.raises(DatasetError, match="part_00001"):
        list(opened(root, "parquet", PLACEMENTS["mixed"], 1).batches())
