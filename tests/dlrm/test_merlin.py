# SPDX-License-Identifier: Apache-2.0
"""--loader merlin: the batches of merlin-dataloader are those of the default loader.

Tests marked `merlin` run in the environment of `make merlin`; the others need none.
"""

import shutil
import sys
import threading

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from dlrm.data.merlin import MerlinLoader
from recsys.data.errors import DatasetError
from recsys.data.feature_spec import FeatureSpec
from recsys.data.parquet import ParquetReader
from tests.dlrm.batches import CPU, assert_same_batches, open_batches
from tests.dlrm.conftest import NUM_NUMERICAL, ROWS, SPEC, final, losses
from tests.harness import assert_tells, refusal

PARQUET = "--dataset_type=parquet"


def merlin(dataset, spec=SPEC, **settings):
    values = {"batch_size": 512, "device": CPU, "drop_last": False} | settings
    return MerlinLoader(reader=ParquetReader(dataset, "train", spec), **values)


def default(dataset, **settings):
    return open_batches(dataset, "parquet", **settings)


def copy_parquet(dataset, folder):
    """Copies the parquet files; returns the second part of the training split."""
    for split in ("train", "test"):
        shutil.copytree(dataset / "parquet" / split, folder / "parquet" / split)
    shutil.copy(dataset / "feature_spec.yaml", folder)
    return folder / "parquet" / "train" / "part_00001.parquet"


@pytest.mark.merlin
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"batch_size": 700, "drop_last": True},
        {"batch_size": 6000},
        {"read_ahead": 0},
        {"subset": 0.4, "drop_last": True},
    ],
    ids=str,
)
@pytest.mark.parametrize("start", [0, 2])
def test_yields_the_batches_of_the_default_loader(dataset, settings, start):
    ours, theirs = default(dataset, **settings), merlin(dataset, **settings)
    assert ours.num_batches == theirs.num_batches
    count = assert_same_batches(theirs.batches(start=start), ours.batches(start=start))
    assert count == max(ours.num_batches - start, 0)


@pytest.mark.merlin
def test_split_parquet_and_merlin_give_the_same_loss_curve(program, dataset):
    curves = []
    for flags in (("--dataset_type=split",), (PARQUET,), (PARQUET, "--loader=merlin")):
        records = program(f"--dataset={dataset}", *flags, "--print_freq=1", "--epochs=2")
        curves.append((losses(records), final(records)["best_auc"]))
    assert len(curves[0][0]) == 2 * -(-ROWS["train"] // 128)
    assert curves[0][1] > 0.8
    assert curves[1] == curves[0]
    assert curves[2] == curves[0]


@pytest.mark.merlin
def test_a_resumed_run_may_change_its_loader(program, dataset, tmp_path):
    common = (PARQUET, "--print_freq=1", "--save_freq=10")
    whole = losses(program.train(dataset, tmp_path / "a", *common, "--max_steps=20"))
    program.train(dataset, tmp_path / "b", *common, "--max_steps=10")
    more = ("--max_steps=20", "--resume", "--loader=merlin")
    assert losses(program.train(dataset, tmp_path / "b", *common, *more)) == whole


@pytest.mark.merlin
def test_leaving_early_ends_the_threads(dataset):
    before = threading.active_count()
    batches = merlin(dataset).batches()
    next(batches)
    assert threading.active_count() > before
    del batches
    assert threading.active_count() == before


@pytest.mark.merlin
def test_ids_outside_their_table_are_named(dataset):
    ids = np.concatenate([c.categorical[1] for c in ParquetReader(dataset, "train").stream()])
    smaller = FeatureSpec.criteo((5, 150, 40_000, 17), NUM_NUMERICAL)
    row = int(np.flatnonzero(ids >= 150)[0])
    with refusal("cat_1", f"row {row}", ids[row], kind=DatasetError):
        list(merlin(dataset, smaller).batches())
    assert len(list(merlin(dataset, smaller, check_ids=False).batches())) == 12


@pytest.mark.merlin
@pytest.mark.filterwarnings("ignore:np.find_common_type is deprecated:DeprecationWarning")  # pandas
@pytest.mark.parametrize(
    ("name", "value", "facts"),
    [
        ("cat_1", None, [2048, 2559, "['cat_1']"]),
        ("num_1", None, [2048, 2559, "numerical"]),
        ("label", 2, ["label", "row 2503", 2]),
    ],
)
def test_values_that_the_default_loader_refuses(dataset, tmp_path, name, value, facts):
    second = copy_parquet(dataset, tmp_path)
    table = pq.read_table(second, partitioning=None)
    index = table.schema.names.index(name)
    column = table.column(name).to_pylist()
    column[3] = value
    field = table.schema.field(index).with_nullable(True)
    pq.write_table(table.set_column(index, field, pa.array(column, field.type)), second)
    with refusal(*facts, kind=DatasetError):
        list(merlin(tmp_path).batches())


@pytest.mark.merlin
def test_a_damaged_part_is_an_error_and_no_hang(dataset, tmp_path):
    damaged = copy_parquet(dataset, tmp_path)
    batches = merlin(tmp_path)
    content = bytearray(damaged.read_bytes())
    content[4:64] = b"\xff" * 60
    damaged.write_bytes(content)
    with refusal("merlin-dataloader", "`loader` default", kind=DatasetError):
        list(batches.batches())


@pytest.mark.merlin
def test_parts_are_read_by_number(dataset, tmp_path):
    copy_parquet(dataset, tmp_path)
    parts = sorted((tmp_path / "parquet/train").iterdir())
    for path, name in zip(parts, ("part.2", "part.3", "part.10"), strict=True):
        path.rename(path.with_name(f"{name}.parquet"))
    expected = torch.cat([b.ids for b in default(dataset).batches()])
    for loader in (default(tmp_path), merlin(tmp_path)):
        assert torch.equal(torch.cat([b.ids for b in loader.batches()]), expected)


def test_without_merlin_the_error_says_what_to_install(program, dataset, monkeypatch):
    monkeypatch.setitem(sys.modules, "merlin", None)
    monkeypatch.setitem(sys.modules, "merlin.dataloader.torch", None)
    error = program.refused(f"--dataset={dataset}", PARQUET, "--loader=merlin")
    assert_tells(error, "--loader merlin", "make merlin")


@pytest.mark.parametrize(
    ("flags", "facts"),
    [
        (("--dataset_type=split",), ["--loader merlin", "--dataset_type parquet"]),
        ((PARQUET, "--shuffle_batch_order"), ["--loader merlin", "--shuffle_batch_order"]),
    ],
)
def test_what_merlin_cannot_do_is_refused(program, dataset, flags, facts):
    assert_tells(program.refused(f"--dataset={dataset}", "--loader=merlin", *flags), *facts)
