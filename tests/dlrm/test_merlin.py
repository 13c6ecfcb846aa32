# SPDX-License-Identifier: Apache-2.0
"""--loader merlin: the batches of merlin-dataloader are those of the default loader.

Tests marked `merlin` run in the environment of `make merlin`; the others need none.
"""

import itertools
import shutil
import sys
import threading

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from dlrm.config import DataConfig
from dlrm.data.loader import BatchLoader
from dlrm.data.merlin import MerlinLoader
from dlrm.data.opened import OpenedDataset
from recsys.data.errors import DatasetError
from recsys.data.feature_spec import FeatureSpec
from recsys.data.parquet import ParquetReader
from tests.dlrm.conftest import CARDINALITIES, NUM_NUMERICAL, ROWS

CPU = torch.device("cpu")
SPEC = FeatureSpec.criteo(CARDINALITIES, NUM_NUMERICAL)
PARQUET = "--dataset_type=parquet"


def merlin(dataset, spec=SPEC, **settings):
    values = {"batch_size": 512, "device": CPU, "drop_last": False} | settings
    return MerlinLoader(reader=ParquetReader(dataset, "train", spec), **values)


def default(dataset, **settings):
    config = DataConfig(dataset=str(dataset), dataset_type="parquet")
    values = {"batch_size": 512, "device": CPU, "drop_last": False} | settings
    return BatchLoader(source=OpenedDataset(config, SPEC).rows("train"), **values)


def losses(records):
    return [r["data"]["loss"] for r in records if "loss" in r["data"]]


def copy_parquet(dataset, folder, change=lambda table: table, name="part_{:05d}.parquet"):
    """Copies the training split, the second part changed."""
    for split in ("train", "test"):
        (folder / "parquet" / split).mkdir(parents=True)
        for index, path in enumerate(sorted((dataset / "parquet" / split).iterdir())):
            table = pq.read_table(path, partitioning=None)
            table = change(table) if index == 1 else table
            pq.write_table(table, folder / "parquet" / split / name.format(index))
    shutil.copy(dataset / "feature_spec.yaml", folder)
    return folder


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
    count = 0
    for one, other in itertools.zip_longest(ours.batches(start=start), theirs.batches(start=start)):
        assert torch.equal(one.label, other.label)
        assert torch.equal(one.ids, other.ids)
        assert torch.equal(one.numerical, other.numerical)
        assert [t.dtype for t in (one.label, one.ids, one.numerical)] == [
            t.dtype for t in (other.label, other.ids, other.numerical)
        ]
        count += 1
    assert count == max(ours.num_batches - start, 0)


@pytest.mark.merlin
def test_split_parquet_and_merlin_give_the_same_loss_curve(program, dataset, capsys):
    found = {}
    for name, flags in {
        "split": ("--dataset_type=split",),
        "parquet": (PARQUET,),
        "merlin": (PARQUET, "--loader=merlin"),
    }.items():
        records = program(f"--dataset={dataset}", *flags, "--print_freq=1", "--epochs=2")
        assert program.exit_code == 0, capsys.readouterr().err
        found[name] = (losses(records), records[-1]["data"]["best_auc"])
    assert len(found["split"][0]) == 2 * -(-ROWS["train"] // 128)
    assert found["split"][1] > 0.8
    assert found["parquet"] == found["split"]
    assert found["merlin"] == found["split"]


@pytest.mark.merlin
def test_a_resumed_run_may_change_its_loader(program, dataset, tmp_path):
    common = (f"--dataset={dataset}", PARQUET, "--print_freq=1", "--save_freq=10")
    whole = losses(program(*common, f"--save_checkpoint_path={tmp_path / 'a'}", "--max_steps=20"))
    saved = f"--save_checkpoint_path={tmp_path / 'b'}"
    program(*common, saved, "--max_steps=10")
    resumed = losses(program(*common, saved, "--max_steps=20", "--resume", "--loader=merlin"))
    assert resumed == whole


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
    ids = np.concatenate([c.categorical[1] for c in ParquetReader(dataset, "train").groups()])
    smaller = FeatureSpec.criteo((5, 150, 40_000, 17), NUM_NUMERICAL)
    row = int(np.flatnonzero(ids >= 150)[0])
    with pytest.raises(DatasetError, match=rf"feature cat_1, row {row}: id {ids[row]} is outside"):
        list(merlin(dataset, smaller).batches())
    assert len(list(merlin(dataset, smaller, check_ids=False).batches())) == 12


def set_value(name, value):
    def change(table):
        index = table.schema.names.index(name)
        column = table.column(name).to_pylist()
        column[3] = value
        field = table.schema.field(index).with_nullable(True)
        return table.set_column(index, field, pa.array(column, field.type))

    return change


@pytest.mark.merlin
@pytest.mark.filterwarnings("ignore:np.find_common_type is deprecated:DeprecationWarning")  # pandas
@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("cat_1", None, r"rows 2048 to 2559 have missing values in \['cat_1'\]"),
        ("num_1", None, "rows 2048 to 2559 have missing values in numerical features"),
        ("label", 2, "label, row 2503: value 2 is neither 0 nor 1"),
    ],
)
def test_values_that_the_default_loader_refuses(dataset, tmp_path, name, value, message):
    copy_parquet(dataset, tmp_path, set_value(name, value))
    with pytest.raises(DatasetError, match=message):
        list(merlin(tmp_path).batches())


@pytest.mark.merlin
def test_a_damaged_part_is_an_error_and_no_hang(dataset, tmp_path):
    copy_parquet(dataset, tmp_path)
    batches = merlin(tmp_path)
    damaged = tmp_path / "parquet/train/part_00001.parquet"
    content = bytearray(damaged.read_bytes())
    content[4:64] = b"\xff" * 60
    damaged.write_bytes(content)
    with pytest.raises(
        DatasetError, match=r"(?s)merlin-dataloader cannot read a part: .*`loader` def"
    ):
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


def test_without_merlin_the_error_says_what_to_install(program, dataset, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "merlin", None)
    monkeypatch.setitem(sys.modules, "merlin.dataloader.torch", None)
    program(f"--dataset={dataset}", PARQUET, "--loader=merlin")
    assert program.exit_code == 2
    error = capsys.readouterr().err
    assert "--loader merlin needs merlin-dataloader" in error
    assert "make merlin" in error


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--dataset_type=split",), "--loader merlin reads --dataset_type parquet alone"),
        ((PARQUET, "--shuffle_batch_order"), "without --shuffle_batch_order"),
    ],
)
def test_what_merlin_cannot_do_is_refused(program, dataset, capsys, flags, message):
    program(f"--dataset={dataset}", "--loader=merlin", *flags)
    assert program.exit_code == 2
    assert message in capsys.readouterr().err
