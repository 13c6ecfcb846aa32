# SPDX-License-Identifier: Apache-2.0
import threading

import numpy as np
import pytest
import torch

from dlrm.config import DataConfig
from dlrm.data.loader import BatchLoader
from dlrm.data.opened import OpenedDataset
from dlrm.data.synthetic import SyntheticBatches, draw_ids, write_synthetic_dataset
from recsys.data.errors import DatasetError
from recsys.data.feature_spec import FeatureSpec
from recsys.data.verify.run import verify
from tests.dlrm.conftest import CARDINALITIES, NUM_NUMERICAL, ROWS, make_columns

CPU = torch.device("cpu")
FILE_TYPES = ("split", "memmap", "binary", "parquet")


def loader(dataset, dataset_type="split", split="train", **settings):
    config = DataConfig(dataset=str(dataset), dataset_type=dataset_type)
    spec = FeatureSpec.load(dataset, NUM_NUMERICAL)
    values = {"batch_size": 512, "device": CPU, "drop_last": False} | settings
    return BatchLoader(source=OpenedDataset(config, spec).rows(split), **values)


@pytest.mark.parametrize("dataset_type", FILE_TYPES)
@pytest.mark.parametrize("read_ahead", [0, 3])
def test_yields_the_rows_in_order(dataset, dataset_type, read_ahead):
    expected = make_columns(ROWS["train"], 0)
    row = 0
    for batch in loader(dataset, dataset_type, read_ahead=read_ahead).batches():
        part = expected[row : row + len(batch)]
        assert torch.equal(batch.label, torch.from_numpy(part.label).float())
        assert torch.equal(batch.ids, torch.from_numpy(np.stack(part.categorical, 1)).long())
        assert torch.equal(
            batch.numerical.float(), torch.from_numpy(part.numerical.astype(np.float32))
        )
        row += len(batch)
    assert row == ROWS["train"]


def test_training_drops_the_last_short_batch(dataset):
    whole = loader(dataset, drop_last=True)
    assert whole.num_batches == ROWS["train"] // 512
    assert [len(b) for b in whole.batches()] == [512] * whole.num_batches


def test_order_of_batches_depends_on_seed_and_epoch_alone(dataset):
    def order(seed, epoch, start=0):
        shuffled = loader(dataset, shuffle=True, seed=seed, drop_last=True)
        return [float(b.numerical.float().sum()) for b in shuffled.batches(epoch, start)]

    plain = [float(b.numerical.float().sum()) for b in loader(dataset, drop_last=True).batches()]
    assert sorted(order(1, 0)) == sorted(plain)
    assert order(1, 0) == order(1, 0)
    assert order(1, 0) != order(1, 1)
    assert order(1, 0) != order(2, 0)
    assert order(1, 0, start=4) == order(1, 0)[4:]


def test_subset_uses_a_share_of_the_batches(dataset):
    assert loader(dataset, subset=0.5, drop_last=True).num_batches == ROWS["train"] // 512 // 2


def test_a_batch_larger_than_the_split_is_refused(dataset):
    with pytest.raises(ValueError, match=r"`batch_size` 10000 leaves no whole batch of 6000 rows"):
        loader(dataset, batch_size=10_000, drop_last=True)


def test_leaving_early_ends_the_reader_threads(dataset):
    before = threading.active_count()
    batches = loader(dataset, read_ahead=4).batches()
    next(batches)
    assert threading.active_count() > before
    del batches
    assert threading.active_count() == before


@pytest.mark.parametrize("dataset_type", FILE_TYPES)
def test_ids_outside_their_table_are_named(dataset, dataset_type):
    config = DataConfig(dataset=str(dataset), dataset_type=dataset_type)
    smaller = FeatureSpec.criteo((5, 150, 40_000, 17), NUM_NUMERICAL)
    source = OpenedDataset(config, smaller).rows("train")
    wrong = BatchLoader(source=source, batch_size=512, device=CPU, drop_last=False)
    ids = make_columns(ROWS["train"], 0).categorical[1]
    row = int(np.flatnonzero(ids >= 150)[0])
    with pytest.raises(DatasetError, match=rf"feature cat_1, row {row}: id {ids[row]}"):
        list(wrong.batches())


@pytest.mark.parametrize("distribution", ["uniform", "zipf"])
def test_synthetic_ids_stay_in_their_tables(distribution):
    generator = torch.Generator().manual_seed(0)
    sizes = torch.tensor([1, 2, 1000, 10_000_000])
    ids = draw_ids(sizes, 20_000, distribution, generator)
    assert (ids >= 0).all()
    assert (ids < sizes).all()
    share_of_first_percent = float((ids[:, 3] < 100_000).float().mean())
    assert (share_of_first_percent > 0.5) == (distribution == "zipf")


def test_synthetic_batches_are_fresh_and_repeatable():
    def make(seed):
        return SyntheticBatches(
            spec=FeatureSpec.criteo((100, 10), 2),
            num_rows=1000,
            batch_size=100,
            device=CPU,
            distribution="uniform",
            drop_last=True,
            seed=seed,
        )

    first = [b.ids for b in make(0).batches()]
    assert len(first) == 10
    assert not torch.equal(first[0], first[1])
    again = [b.ids for b in make(0).batches(start=3)]
    assert torch.equal(again[0], first[3])
    assert not torch.equal(next(iter(make(1).batches())).ids, first[0])


def test_synthetic_dataset_on_disk_reads_back(tmp_path):
    spec = FeatureSpec.criteo(CARDINALITIES, NUM_NUMERICAL)
    write_synthetic_dataset(tmp_path / "s", spec, 3200, "zipf", seed=1)
    assert sum(len(b) for b in loader(tmp_path / "s").batches()) == 3200
    assert sum(len(b) for b in loader(tmp_path / "s", split="test").batches()) == 200
    with pytest.raises(FileExistsError, match="remove it"):
        write_synthetic_dataset(tmp_path / "s", spec, 3200, "zipf", seed=1)


def test_a_synthetic_dataset_has_nothing_of_one_that_was_not_finished(tmp_path):
    root, unfinished = tmp_path / "s", tmp_path / "s.partial"
    write_synthetic_dataset(root, FeatureSpec.criteo((5, 9, 4), 2), 100, "zipf", seed=1)
    root.rename(unfinished)
    write_synthetic_dataset(root, FeatureSpec.criteo((5, 9), 2), 100, "zipf", seed=1)
    assert not unfinished.exists()
    assert verify(root)[0].problems == []
