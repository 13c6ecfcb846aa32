# SPDX-License-Identifier: Apache-2.0
import itertools
import threading

import numpy as np
import pytest
import torch

from dlrm.data.synthetic import SyntheticBatches, draw_ids, write_synthetic_dataset
from recsys.data.errors import DatasetError
from recsys.data.feature_spec import FeatureSpec
from recsys.data.verify.run import verify
from tests.dlrm.batches import CPU, FILE_TYPES, open_batches
from tests.dlrm.conftest import NUM_NUMERICAL, ROWS, SPEC, make_columns


@pytest.mark.parametrize("dataset_type", FILE_TYPES)
@pytest.mark.parametrize("read_ahead", [0, 3])
@pytest.mark.parametrize(
    ("batch_size", "start"), [(1, 2), (500, 2), (512, 0), (512, 2), (2500, 0), (6000, 0)]
)
def test_yields_the_rows_in_order(dataset, dataset_type, read_ahead, batch_size, start):
    """Also where a batch lies in several parts of parquet."""
    source = open_batches(dataset, dataset_type, batch_size=batch_size, read_ahead=read_ahead)
    whole, first = make_columns(ROWS["train"], 0), start * batch_size
    row = first
    for batch in itertools.islice(source.batches(start=start), 13):
        expected = whole[row : row + len(batch)]
        assert torch.equal(batch.label, torch.from_numpy(expected.label).float())
        assert torch.equal(batch.ids, torch.from_numpy(np.stack(expected.categorical, 1)).long())
        assert np.array_equal(batch.numerical.float(), expected.numerical.astype(np.float32))
        row += len(batch)
    assert row == min(first + 13 * batch_size, ROWS["train"])


def test_training_drops_the_last_short_batch(dataset):
    whole = open_batches(dataset, drop_last=True)
    assert whole.num_batches == ROWS["train"] // 512
    assert [len(b) for b in whole.batches()] == [512] * whole.num_batches


def test_order_of_batches_depends_on_seed_and_epoch_alone(dataset):
    def sums(*batches_of, dataset_type="split", **settings):
        batches = open_batches(dataset, dataset_type, drop_last=True, **settings)
        return [float(batch.numerical.float().sum()) for batch in batches.batches(*batches_of)]

    def order(seed, *batches_of, **settings):
        return sums(*batches_of, shuffle=True, seed=seed, **settings)

    assert sorted(order(1, 0)) == sorted(sums())
    assert order(1, 0) == order(1, 0)
    assert order(1, 0) != order(1, 1)
    assert order(1, 0) != order(2, 0)
    assert order(1, 0, 4) == order(1, 0)[4:]
    assert order(1, 1, dataset_type="parquet") == order(1, 1)


def test_subset_uses_a_share_of_the_batches(dataset):
    assert (
        open_batches(dataset, subset=0.5, drop_last=True).num_batches == ROWS["train"] // 512 // 2
    )


def test_a_batch_larger_than_the_split_is_refused(dataset):
    with pytest.raises(ValueError, match=r"`batch_size` 10000 leaves no whole batch of 6000 rows"):
        open_batches(dataset, batch_size=10_000, drop_last=True)


@pytest.mark.parametrize("dataset_type", ["split", "parquet"])
def test_leaving_early_ends_the_reader_threads(dataset, dataset_type):
    before = threading.active_count()
    batches = open_batches(dataset, dataset_type, read_ahead=4).batches()
    next(batches)
    assert threading.active_count() > before
    del batches
    assert threading.active_count() == before


@pytest.mark.parametrize("dataset_type", FILE_TYPES)
@pytest.mark.parametrize("read_ahead", [0, 4])
def test_ids_outside_their_table_are_named(dataset, dataset_type, read_ahead):
    smaller = FeatureSpec.criteo((5, 150, 40_000, 17), NUM_NUMERICAL)
    wrong = open_batches(dataset, dataset_type, spec=smaller, read_ahead=read_ahead)
    ids = make_columns(ROWS["train"], 0).categorical[1]
    row = int(np.flatnonzero(ids >= 150)[0])
    with pytest.raises(DatasetError, match=rf"feature cat_1, row {row}: id {ids[row]}") as refused:
        list(wrong.batches())
    assert dataset_type != "parquet" or "part_00000.parquet: " in str(refused.value)


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
    root, unfinished = tmp_path / "s", tmp_path / "s.partial"
    write_synthetic_dataset(root, FeatureSpec.criteo((5, 9, 4, 8, 3), 2), 100, "zipf", seed=1)
    root.rename(unfinished)
    write_synthetic_dataset(root, SPEC, 3200, "zipf", seed=1)
    assert not unfinished.exists()
    assert verify(root)[0].problems == []  # nothing of the one that was not finished
    assert sum(len(b) for b in open_batches(root).batches()) == 3200
    assert sum(len(b) for b in open_batches(root, split="test").batches()) == 200
    with pytest.raises(FileExistsError, match="remove it"):
        write_synthetic_dataset(root, SPEC, 3200, "zipf", seed=1)
