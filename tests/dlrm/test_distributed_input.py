# SPDX-License-Identifier: Apache-2.0
"""A rank reads of a batch of all ranks what it needs, and nothing else."""

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from dlrm.config import DataConfig, DlrmConfig, ModelConfig
from dlrm.data.loader import BatchLoader
from dlrm.data.open_split import SplitPass
from dlrm.data.opened import OpenedDataset
from dlrm.distributed.columns import ColumnLoader, CutBatches, RankColumns, open_rank_split
from dlrm.distributed.placement import Placement, TablePlacement
from recsys.data import split_binary
from recsys.data.errors import DatasetError
from recsys.data.feature_spec import FeatureSpec
from recsys.data.parquet import FOLDER, part_name
from tests.dlrm.conftest import CARDINALITIES, NUM_NUMERICAL, ROWS

SPEC = FeatureSpec.criteo(CARDINALITIES, NUM_NUMERICAL)
CPU = torch.device("cpu")
BATCH = 700  # leaves 6 rows to the last batch: uneven on four ranks


def placement(*kinds):
    """Returns where the four tables lie on four ranks: a number is a rank that has one whole."""
    tables = [
        TablePlacement(n, k) if isinstance(k, str) else TablePlacement(n, "whole", k)
        for n, k in zip(CARDINALITIES, kinds, strict=True)
    ]
    return Placement(4, tuple(tables))


PLACEMENTS = {
    "mixed": placement("replicate", 1, "rows", "replicate"),
    "copies": placement(*["replicate"] * 4),
    "whole": placement(0, 3, 1, 0),
    "rows": placement(*["rows"] * 4),
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


def whole_batches(root, dataset_type, **more):
    config = DataConfig(dataset=str(root), dataset_type=dataset_type)
    source = OpenedDataset(config, SPEC).rows("train")
    return BatchLoader(source=source, batch_size=BATCH, device=CPU, drop_last=False, **more)


@pytest.mark.parametrize("name", PLACEMENTS)
@pytest.mark.parametrize("dataset_type", ["split", "memmap", "parquet", "binary"])
@pytest.mark.parametrize("shuffle", [False, True])
def test_a_rank_reads_its_rows_of_the_batch_of_all_ranks(dataset, name, dataset_type, shuffle):
    placed = PLACEMENTS[name]
    for rank in range(4):
        found = opened(dataset, dataset_type, placed, rank, train=True, shuffle_batch_order=shuffle)
        assert isinstance(found, ColumnLoader) == (dataset_type in ("split", "memmap"))
        expected = CutBatches(
            whole_batches(dataset, dataset_type, shuffle=shuffle, seed=12345),
            RankColumns.of(placed, rank),
        )
        assert found.num_batches == expected.num_batches
        count = 0
        for mine, cut in zip(found.batches(1, 2), expected.batches(1, 2), strict=True):
            assert mine.ids.num_rows == cut.ids.num_rows
            assert torch.equal(mine.numerical, cut.numerical)
            assert torch.equal(mine.label, cut.label)
            assert mine.label.dtype == torch.float32
            assert np.array_equal(mine.ids.local_ids, cut.ids.local_ids)
            assert mine.ids.local_ids.shape == (len(mine.label), len(placed.of_kind("replicate")))
            assert mine.ids.batch_ids.keys() == cut.ids.batch_ids.keys()
            for table, ids in cut.ids.batch_ids.items():
                assert mine.ids.batch_ids[table].dtype == np.int64
                assert np.array_equal(mine.ids.batch_ids[table], ids)
            count += 1
        assert count == found.num_batches - 2


@pytest.mark.merlin
def test_merlins_loader_reads_the_columns_of_a_rank(dataset):
    placed = PLACEMENTS["mixed"]
    for rank in range(4):
        found = opened(dataset, "parquet", placed, rank, loader="merlin")
        expected = opened(dataset, "parquet", placed, rank)
        assert found.num_batches == expected.num_batches
        for mine, ours in zip(found.batches(), expected.batches(), strict=True):
            assert torch.equal(mine.numerical, ours.numerical)
            assert torch.equal(mine.label, ours.label)
            assert np.array_equal(mine.ids.local_ids, ours.ids.local_ids)
            assert mine.ids.batch_ids.keys() == ours.ids.batch_ids.keys()
            for table, ids in ours.ids.batch_ids.items():
                assert np.array_equal(mine.ids.batch_ids[table], ids)


def test_of_split_files_a_rank_reads_its_columns_and_rows_alone(dataset, monkeypatch):
    read = {}
    original = split_binary.read_array

    def counted(fd, path, dtype, offset, count, into=None):
        read[path.name] = read.get(path.name, 0) + count
        return original(fd, path, dtype, offset, count, into)

    monkeypatch.setattr(split_binary, "read_array", counted)
    totals = {}
    for rank in range(4):
        read.clear()
        own = 0
        for batch in opened(dataset, "split", PLACEMENTS["mixed"], rank).batches():
            own += len(batch.label)
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
        for name, count in read.items():
            totals[name] = totals.get(name, 0) + count
    assert totals["label.bin"] == totals["cat_0.bin"] == ROWS["train"]
    assert totals["cat_1.bin"] == ROWS["train"]
    assert totals["cat_2.bin"] == 4 * ROWS["train"]


def copy_with_damage(dataset, folder, dataset_type):
    """Returns a copy of the dataset in which feature cat_1 is damaged past the first rows."""
    source = dataset / FOLDER / "train" if dataset_type == "parquet" else dataset / "train"
    target = folder / source.relative_to(dataset)
    target.mkdir(parents=True)
    for file in source.iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    SPEC.save(folder)
    if dataset_type == "parquet":
        path = target / part_name(1)
        chunk = pq.read_metadata(path).row_group(0).column(1 + NUM_NUMERICAL + 1)
        assert chunk.path_in_schema == "cat_1"
        start = chunk.dictionary_page_offset or chunk.data_page_offset
        size = chunk.total_compressed_size
    else:
        path, start, size = target / "cat_1.bin", 2 * 2500, 64
    with path.open("r+b") as file:
        file.seek(start)
        file.write(b"\xff" * size)
    return folder


@pytest.mark.parametrize("dataset_type", ["split", "memmap", "parquet"])
def test_damage_to_a_feature_that_lies_elsewhere_is_not_met(dataset, tmp_path, dataset_type):
    root = copy_with_damage(dataset, tmp_path, dataset_type)
    placed = PLACEMENTS["mixed"]
    for rank in (0, 2, 3):
        rows = sum(
            batch.ids.num_rows for batch in opened(root, dataset_type, placed, rank).batches()
        )
        assert rows == ROWS["train"]
    with pytest.raises(DatasetError, match=r"cat_1|part_00001"):
        list(opened(root, dataset_type, placed, 1).batches())
