# SPDX-License-Identifier: Apache-2.0
"""Batches of every dataset type; streams of parquet, bounded in memory, of other software too."""

import dataclasses
import itertools
import shutil
import threading
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from dlrm.config import DataConfig
from dlrm.data.loader import BatchLoader
from dlrm.data.opened import OpenedDataset
from dlrm.data.synthetic import SyntheticBatches, draw_ids, write_synthetic_dataset
from recsys.data import parquet, row_reader
from recsys.data.click_columns import ClickColumns
from recsys.data.errors import DatasetError
from recsys.data.feature_spec import FeatureSpec
from recsys.data.parquet import ParquetReader, write_parquet_part
from recsys.data.parquet.schema import arrow_schema
from recsys.data.verify.run import verify
from tests import harness
from tests.checkpoints import latest
from tests.dlrm.batches import CPU, FILE_TYPES, assert_same_batches, open_batches
from tests.dlrm.conftest import (
    CARDINALITIES,
    NUM_NUMERICAL,
    ROWS,
    SPEC,
    final,
    losses,
    make_columns,
)
from tests.harness import assert_tells, refusal


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
    with refusal("`batch_size` 10000", "6000 rows"):
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


PARQUET = "--dataset_type=parquet"


def loader(dataset, **settings):
    return open_batches(dataset, "parquet", **settings)


def table_sizes(sizes):
    return f"--num_embeddings_per_feature={','.join(map(str, sizes))}"


def opened_plain(root, sizes=CARDINALITIES):
    """Opens files of other software."""
    config = DataConfig(dataset=str(root), dataset_type="parquet", num_embeddings_per_feature=sizes)
    return OpenedDataset.open(config, 13)


def write_plain(folder, table, row_group_rows=None):
    """Writes a part as other software would: no cardinalities in its schema."""
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, folder / "part.0.parquet", row_group_size=row_group_rows)


def plain_table(columns, id_type="int64", names=("int_0", "int_1", "int_2")):
    numerical = {n: columns.numerical[:, i].astype(np.float64) for i, n in enumerate(names)}
    ids = {f"cat_{i}": c.astype(id_type) for i, c in enumerate(columns.categorical)}
    return pa.table(numerical | ids | {"label": columns.label.astype(np.float32)})


def test_parts_are_read_by_number(tmp_path):
    columns = make_columns(900, 0)
    names = ("a.1", "a.1b", "a.2", "a.10", "b.02", "b.2", "b.11", "c", "é")
    assert sorted(names) != list(names)
    for i, name in enumerate(names):
        write_parquet_part(tmp_path / f"train/{name}.parquet", SPEC, [columns[100 * i :][:100]])
    assert [p.stem for p in ParquetReader(tmp_path, "train", SPEC).files] == list(names)
    (batch,) = loader(tmp_path, batch_size=900).batches()
    assert torch.equal(batch.ids, torch.from_numpy(np.stack(columns.categorical, 1)).long())


class CountedBlocks:
    """Rows as a stream that tells how far it was read."""

    spec, num_rows, made = SPEC, 20_000, 0

    def read(self, start, stop):
        raise AssertionError("a stream is not read by number")

    def stream(self, start):
        for first in range(start, self.num_rows, 1000):
            self.made += 1
            yield make_columns(1000, first)


@pytest.mark.parametrize(("read_ahead", "most"), [(0, 1), (1, 4), (3, 6)])
def test_reading_ahead_is_bounded(read_ahead, most):
    source = CountedBlocks()
    batches = BatchLoader(
        source=source, batch_size=1000, device=CPU, drop_last=False, read_ahead=read_ahead
    ).batches()
    for taken in range(20):
        next(batches)
        time.sleep(0.02)  # it may go on as far as it likes
        assert taken + 1 <= source.made <= min(taken + most, 20)
    assert next(batches, None) is None


@pytest.mark.parametrize("start", [0, 1, 3])
def test_large_row_groups_come_in_pieces(dataset, monkeypatch, start):
    whole = list(loader(dataset).batches(start=start))
    monkeypatch.setattr(parquet, "_MAX_ROWS_AT_ONCE", 900)
    monkeypatch.setattr(parquet, "ROW_GROUP_ROWS", 300)
    reader = parquet.ParquetReader(dataset, "train", SPEC)
    assert max(len(block) for block in reader.stream()) == 300
    assert_same_batches(loader(dataset).batches(start=start), whole)


READ_LARGE_GROUP = """
import sys
import pyarrow as pa
from pathlib import Path
from recsys.data.parquet import ParquetReader

rows = sum(len(block) for block in ParquetReader(Path(sys.argv[1]), "train").stream())
print(rows, pa.default_memory_pool().max_memory())
"""


def test_memory_does_not_grow_with_the_row_group(tmp_path):
    rows, features = 4_000_000, 4
    generator = np.random.default_rng(0)
    spec = FeatureSpec.criteo([2**30] * features, 0)
    ids = tuple(generator.integers(0, 2**30, rows, np.int32) for _ in range(features))
    columns = ClickColumns(np.zeros(rows, bool), np.empty((rows, 0), np.float32), ids)
    arrays = [pa.array(columns.label.astype(np.int32)), *map(pa.array, columns.categorical)]
    table = pa.Table.from_arrays(arrays, schema=arrow_schema(spec))
    write_plain(tmp_path / "train", table, row_group_rows=rows)
    assert pq.read_metadata(tmp_path / "train/part.0.parquet").num_row_groups == 1
    done = harness.python("-c", READ_LARGE_GROUP, tmp_path)
    found, peak = map(int, done.stdout.split())
    assert found == rows
    assert peak < table.nbytes / 2


@pytest.mark.parametrize("read_ahead", [0, 4])
def test_ids_are_checked_once(dataset, monkeypatch, read_ahead):
    checked = []
    check = row_reader.check_ids_of

    def counted(feature, ids, source, first_row):
        checked.append(len(ids))
        check(feature, ids, source, first_row)

    monkeypatch.setattr(row_reader, "check_ids_of", counted)
    assert sum(len(b) for b in loader(dataset, read_ahead=read_ahead).batches()) == ROWS["train"]
    assert sum(checked) == ROWS["train"] * len(SPEC.categorical)


def test_a_damaged_part_is_named_after_the_batches_before_it(dataset, tmp_path):
    root = shutil.copytree(dataset, tmp_path / "copy")
    batches = loader(root, batch_size=500).batches()
    damaged = root / "parquet" / "train" / "part_00001.parquet"
    content = bytearray(damaged.read_bytes())
    content[4:64] = b"\xff" * 60
    damaged.write_bytes(content)
    assert [len(next(batches)) for _ in range(5)] == [500] * 5
    with refusal("row group 0", kind=DatasetError, path=damaged):
        next(batches)


def test_hashing_takes_ids_above_the_table(program, dataset):
    hashed = []
    for dataset_type in ("parquet", "split", "binary"):
        common = (f"--dataset={dataset}", f"--dataset_type={dataset_type}", "--print_freq=5",
                  table_sizes((5, 150, 20_000, 17)), "--max_steps=10")  # fmt: skip
        assert_tells(program.refused(*common), "cat_1", "row")
        hashed.append(losses(program(*common, "--hash_indices")))
    assert hashed[0] == hashed[1] == hashed[2]
    assert len(hashed[0]) == 2


@pytest.mark.parametrize("dataset_type", ["parquet", "split"])
def test_table_sizes_must_be_one_for_each_feature(program, dataset, dataset_type):
    flags = (f"--dataset={dataset}", f"--dataset_type={dataset_type}", table_sizes((5, 6)))
    assert_tells(program.refused(*flags), "--num_embeddings_per_feature", 2, 4)


@pytest.mark.parametrize("id_type", ["int64", "int32", "uint32", "uint64", "uint8"])
def test_files_of_other_software(program, tmp_path, id_type):
    cardinalities = (5, 200, 256, 17) if id_type == "uint8" else CARDINALITIES
    columns = make_columns(3000, 0)
    ids = tuple(c % n for c, n in zip(columns.categorical, cardinalities, strict=True))
    table = plain_table(dataclasses.replace(columns, categorical=ids), id_type)
    for split in ("train", "test"):
        write_plain(tmp_path / split, table)
    opened = opened_plain(tmp_path, cardinalities)
    spec = opened.spec
    assert spec.numerical == ("int_0", "int_1", "int_2")
    assert spec.table_sizes == cardinalities
    assert spec.label == "label"
    (batch,) = BatchLoader(
        source=opened.rows("train"), batch_size=3000, device=CPU, drop_last=False
    ).batches()
    assert torch.equal(batch.ids, torch.from_numpy(np.stack(ids, 1).astype(np.int64)))
    assert np.array_equal(batch.numerical.numpy(), columns.numerical.astype(np.float32))
    program(f"--dataset={tmp_path}", PARQUET, table_sizes(cardinalities), "--max_steps=3")


@pytest.mark.parametrize(("numbers", "tables"), [(3, 4), (0, 4), (3, 0)])
def test_a_checkpoint_knows_its_tables_and_may_have_none(program, tmp_path, numbers, tables):
    columns = make_columns(600, 0)
    ids = tuple(c % 5 for c in columns.categorical[:tables])
    table = plain_table(
        dataclasses.replace(columns, categorical=ids), names=SPEC.numerical[:numbers]
    )
    for split in ("train", "test"):
        write_plain(tmp_path / split, table)
    run, sizes = tmp_path / "run", [table_sizes((5,) * tables)] if tables else []
    trained = final(program.train(tmp_path, run, PARQUET, *sizes))
    assert program.test(tmp_path, run, PARQUET, model=())["auc"] == trained["best_auc"]
    program.train(tmp_path, run, PARQUET, "--epochs=2", "--resume", *sizes)
    assert latest(run).state["step"] == 10
    findings, report = verify(tmp_path)
    assert findings.problems == []
    assert ("num_embeddings_per_feature 5,5,5,5" in report) == bool(tables)


def test_other_files_without_table_sizes_say_what_to_give(program, tmp_path):
    write_plain(tmp_path / "train", plain_table(make_columns(300, 0)))
    flags = (f"--dataset={tmp_path}", PARQUET)
    assert_tells(program.refused(*flags), "--num_embeddings_per_feature")
    assert_tells(program.refused(*flags, table_sizes((5, 200))), 2, 4, "label")


def test_a_run_tells_what_it_took_each_column_for(program, tmp_path):
    table = plain_table(make_columns(3000, 0))
    table = table.append_column("city", pa.array(["x"] * 3000))
    table = table.append_column("when", pa.array([0] * 3000, pa.timestamp("us")))
    for split in ("train", "test"):
        write_plain(tmp_path / split, table)
    program(f"--dataset={tmp_path}", PARQUET, table_sizes(CARDINALITIES), "--max_steps=1")
    taken, ignored = program.stdout.splitlines()[:2]
    assert_tells(taken, "label label", "int_0, int_1, int_2", "cat_0, cat_1, cat_2, cat_3")
    assert_tells(ignored, "city (string)", "when (timestamp[us])")


@pytest.mark.parametrize("first", ["number", "text", "id"])
def test_a_label_that_is_neither_first_nor_named_so(program, tmp_path, first):
    table = plain_table(make_columns(300, 0))
    table = table.rename_columns([{"label": "clicked"}.get(n, n) for n in table.schema.names])
    if first != "number":
        values = ["x"] * 300 if first == "text" else range(300)
        table = table.add_column(0, "user", pa.array(values))
    for split in ("train", "test"):
        write_plain(tmp_path / split, table)
    error = program.refused(f"--dataset={tmp_path}", PARQUET, table_sizes(CARDINALITIES))
    assert_tells(error, '"label"', "'clicked'")


def test_an_id_that_no_signed_integer_holds(tmp_path):
    columns = make_columns(300, 0)
    table = plain_table(columns, "uint64")
    huge = table["cat_2"].to_numpy().copy()
    huge[7] = 2**63
    table = table.set_column(table.schema.names.index("cat_2"), "cat_2", pa.array(huge))
    write_plain(tmp_path / "train", table)
    source = opened_plain(tmp_path).rows("train")
    with refusal("part.0.parquet", "cat_2", "2^63", kind=DatasetError):
        list(source.stream(0))
