# SPDX-License-Identifier: Apache-2.0
"""Training on days that follow days: tables grow, and nothing depends on when a category came."""

import dataclasses
import gzip
import random
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from dlrm.nn.growing_rows import INITIAL_STD, draw_new_rows, initial_rows
from preproc.clicks.applied import semantics_of_dataset
from preproc.clicks.job import semantics_of_schema
from recsys.data.growing.categories import category_numbers, reused_ids
from recsys.data.manifest import Manifest
from tests import harness
from tests.checkpoints import assert_same, latest, tensors
from tests.dlrm.conftest import SMALL_MODEL
from tests.dlrm.days import ALL_FOR_TRAINING, FIRST, write_logs
from tests.harness import assert_tells
from tests.preproc.clicks import schema_log
from tests.preproc.clicks.passing_days import rules as eviction_rules
from tests.preproc.clicks.passing_days import write_day
from tests.preproc.clicks.rows import extend, run
from tests.tools import needs

pytestmark = needs("compiled Criteo kernel")

BATCH = ("--batch_size=64",)


def with_final_ids(logs: list[Path], days: Path, output: Path, **settings: object) -> None:
    """Prepares the same days with the dictionaries of the last one, as if all ids were known."""
    last = sorted(days.iterdir())[-1]
    history: list[dict[str, object]] = []
    for number, log in enumerate(logs):
        day = output / f"day_{number:04d}"
        semantics = semantics_of_dataset(last, {"split_rows": ALL_FOR_TRAINING})
        run(log, day, semantics=semantics, dictionaries=last, **settings)
        manifest = dataclasses.replace(Manifest.load(day), history=list(history))
        manifest.save(day)
        history.append({"name": day.name, "fingerprint": manifest.fingerprint, "sources": []})


@pytest.fixture(scope="module")
def logs(tmp_path_factory) -> list[Path]:
    return write_logs(tmp_path_factory.mktemp("of_logs") / "logs")


@pytest.fixture(scope="module")
def days(logs, tmp_path_factory) -> Path:
    """A dataset that grew by three days."""
    folder = tmp_path_factory.mktemp("grown") / "days"
    for log in logs:
        extend(folder, log, FIRST)
    return folder


@pytest.fixture(scope="module")
def known(logs, days, tmp_path_factory) -> Path:
    """The same days with the ids of the last one."""
    folder = tmp_path_factory.mktemp("known") / "days"
    with_final_ids(logs, days, folder)
    return folder


OPTIMIZERS = {
    "sgd": (),
    "rowwise_adagrad": ("--optimizer=rowwise_adagrad", "--lr=0.05"),
    "adam": ("--optimizer=adam", "--lr=0.01", "--embedding_type=multi_table"),
    "dropout": ("--dropout=0.2", "--shuffle_batch_order", "--embedding_type=joint_sparse"),
    "networks": ("--seeds=2", "--embedding_init=0.05", "--numerical_embedding=bins"),
}


@pytest.mark.parametrize("case", OPTIMIZERS)
def test_growing_gives_the_parameters_of_known_ids(program, days, known, tmp_path, case):
    flags = ("--grow", *BATCH, *OPTIMIZERS[case])
    program.train(days, tmp_path / "grown", *flags)
    program.train(known, tmp_path / "known", *flags)
    sizes = [Manifest.load(day).cardinalities for day in sorted(days.iterdir())]
    assert all(earlier < later for earlier, later in zip(sizes[0], sizes[2], strict=True))
    assert_same(tmp_path / "grown", tmp_path / "known")


def test_lists_and_texts_grow(program, tmp_path):
    schema = schema_log.write_schema(
        tmp_path,
        defaults={"frequency_limit": 1},
        columns=[
            {n: v for n, v in column.items() if n not in ("max_ids", "frequency_limit")}
            for column in schema_log.SCHEMA["columns"]
        ],
    )
    first = semantics_of_schema(schema, {"split_rows": ALL_FOR_TRAINING})
    logs = []
    for number in range(2):
        logs.append(tmp_path / f"log_{number}.csv")
        logs[-1].write_bytes(schema_log.text_of(schema_log.rows(200, seed=number)))
        extend(tmp_path / "days", logs[-1], first, schema=schema)
    with_final_ids(logs, tmp_path / "days", tmp_path / "known_days")
    for name, folder in (("grown", "days"), ("known", "known_days")):
        program.train(tmp_path / folder, tmp_path / name, "--grow", *BATCH, "--lr=0.01")
    assert_same(tmp_path / "grown", tmp_path / "known")


def test_day_by_day_gives_the_same_as_all_days_at_once(program, logs, tmp_path):
    for number, log in enumerate(logs):
        extend(tmp_path / "days", log, FIRST)
        resume = ("--resume",) if number else ()
        program.train(tmp_path / "days", tmp_path / "daily", "--grow", *BATCH, *resume)
        assert latest(tmp_path / "daily").state["step"] == 5 * (number + 1)
        if number == 1:
            shutil.rmtree(tmp_path / "days" / "day_0000")  # no longer needed
    for folder in ("whole", "again"):
        program.train(tmp_path / "days", tmp_path / folder, "--grow", *BATCH)
    assert_same(tmp_path / "whole", tmp_path / "again")


def test_days_of_real_rows(program, real_data, tmp_path):
    """Seven slices of the sample: growing, and knowing all ids before."""
    packed = (real_data / "criteo_kaggle" / "sample_100k.tsv.gz").read_bytes()
    lines = gzip.decompress(packed).splitlines(keepends=True)[:3500]
    logs = []
    for number in range(7):
        logs.append(tmp_path / f"log_{number}")
        logs[-1].write_bytes(b"".join(lines[500 * number :][:500]))
        extend(tmp_path / "days", logs[-1], FIRST)
    with_final_ids(logs, tmp_path / "days", tmp_path / "known_days")
    for name, folder in (("grown", "days"), ("known", "known_days")):
        program.train(tmp_path / folder, tmp_path / name, "--grow", *BATCH, "--lr=0.05")
    assert_same(tmp_path / "grown", tmp_path / "known")


def command(days: Path, folder: Path, *flags: str) -> list[str]:
    return [
        *("-m", "dlrm.scripts.main", f"--dataset={days}", f"--save_checkpoint_path={folder}"),
        *(f"--log_path={folder}.json", "--num_threads=1", "--save_freq=2", "--print_freq=1"),
        *("--optimizer=rowwise_adagrad", "--grow", "--progressive", *SMALL_MODEL, *BATCH, *flags),
    ]


def test_killed_on_any_day_and_resumed_gives_the_same(days, tmp_path):
    harness.forked(*command(days, tmp_path / "whole"))
    draw = random.Random(3)
    for day, step in ((0, draw.randrange(2, 5)), (1, draw.randrange(1, 5)), (2, 2)):
        with harness.started_forked(*command(days, tmp_path / "killed", "--resume")) as process:
            harness.wait_for_line(process, lambda line, day=day: f"day_{day:04d} (" in line)
            harness.wait_for_line(process, lambda line, step=step: f"[{step}/5]" in line)
    harness.forked(*command(days, tmp_path / "killed", "--resume"))
    assert_same(tmp_path / "killed", tmp_path / "whole")
    states = [latest(tmp_path / name).state for name in ("killed", "whole")]
    assert states[0]["days"] == states[1]["days"]


def test_each_day_is_tested_before_it_is_trained_on(program, days, tmp_path):
    """The test is that of the model of the day before, which gives unknown categories id 0."""
    flags = ("--grow", "--progressive", *BATCH)
    shutil.copytree(days, tmp_path / "days")
    for number in (2, 1):
        shutil.move(tmp_path / "days" / f"day_{number:04d}", tmp_path / f"later_{number}")
    program.train(tmp_path / "days", tmp_path / "run", *flags)
    by_served_ids = tmp_path / "served"
    semantics = semantics_of_dataset(tmp_path / "days" / "day_0000", {})
    log = next(path for path in days.parent.parent.glob("*/logs/log_1"))
    run(log, by_served_ids, semantics=semantics, dictionaries=tmp_path / "days" / "day_0000")
    expected = program.test(by_served_ids, tmp_path / "run")
    for number in (1, 2):
        shutil.move(tmp_path / f"later_{number}", tmp_path / "days" / f"day_{number:04d}")
    records = program.train(tmp_path / "days", tmp_path / "run", *flags, "--resume")
    tests = latest(tmp_path / "run").state["days"]
    assert [test["day"] for test in tests] == ["day_0001", "day_0002"]
    for name in ("auc", "log_loss", "calibration"):
        assert tests[0][name] == pytest.approx(expected[name], rel=1e-6)
    logged = [record["data"] for record in records if "tested_step" in record["data"]]
    assert [record["auc"] for record in logged] == [test["auc"] for test in tests]
    table = [line for line in program.stdout.splitlines() if line.startswith("day_000")][-2:]
    for line, test in zip(table, tests, strict=True):
        assert_tells(line, test["day"], f"{test['auc']:.4f}", f"{test['log_loss']:.4f}")


@pytest.fixture(scope="module")
def evicted(tmp_path_factory) -> Path:
    """Four days on which new categories get the ids of others."""
    folder = tmp_path_factory.mktemp("evicted")
    for number in range(4):
        extend(folder / "days", write_day(folder / "logs", number), eviction_rules(1))
    return folder / "days"


def test_categories_with_reused_ids_start_anew(program, evicted, tmp_path):
    """Row and optimizer state of a reused id are those of a new category, all others stay."""
    days = sorted(evicted.iterdir())
    for day in days[:-1]:
        shutil.copytree(day, tmp_path / "days" / day.name)
    flags = ("--grow", "--optimizer=adam", "--lr=0.01", *BATCH)
    program.train(tmp_path / "days", tmp_path / "run", *flags)
    before = tensors(tmp_path / "run")
    shutil.copytree(days[-1], tmp_path / "days" / days[-1].name)
    seed = latest(tmp_path / "run").config["seed"]
    started = {}

    def keep(embeddings, states, *others):
        draw_new_rows(embeddings, states, *others)
        for feature, shard in embeddings.shards().items():
            started[feature] = [
                shard.view(embeddings.stored_tables()).clone(),
                *(shard.view([state[name] for state in states]).clone() for name in states[0]),
            ]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dlrm.recipe.draw_new_rows", keep)
        program.train(tmp_path / "days", tmp_path / "run", *flags, "--resume")
    num_reused = 0
    for feature in range(26):
        reused = torch.from_numpy(reused_ids(days[-1], feature))
        num_reused += len(reused)
        weight, *state = started[feature]
        numbers = category_numbers(days[-1], feature, len(weight))
        drawn = numbers[reused.numpy() - 1], weight.shape[1], INITIAL_STD
        assert torch.equal(weight[reused], initial_rows(seed, f"cat_{feature}", *drawn))
        assert all(not each[reused].any() for each in state)
        kept = torch.ones(len(before[f"embedding_{feature}.weight"]), dtype=torch.bool)
        kept[reused] = False
        known = torch.nonzero(kept).squeeze(1)
        assert torch.equal(weight[known], before[f"embedding_{feature}.weight"][known])
    assert num_reused > 20


def test_day_by_day_with_reused_ids_gives_the_same(program, evicted, tmp_path):
    for number, day in enumerate(sorted(evicted.iterdir())):
        shutil.copytree(day, tmp_path / "days" / day.name)
        resume = ("--resume",) if number else ()
        program.train(tmp_path / "days", tmp_path / "daily", "--grow", *BATCH, *resume)
    program.train(evicted, tmp_path / "whole", "--grow", "--progressive", *BATCH)
    assert_same(tmp_path / "whole", tmp_path / "daily")


def test_initial_rows_depend_on_the_category_alone():
    categories = np.array([7, 2**64 - 1, 0, 7], np.uint64)
    rows = initial_rows(5, "shop", categories, 6, std=0.5)
    assert torch.equal(rows[0], rows[3])
    assert torch.equal(initial_rows(5, "shop", categories[1:2], 6, std=0.5)[0], rows[1])
    for other in (
        initial_rows(6, "shop", categories, 6, 0.5),
        initial_rows(5, "x", categories, 6, 0.5),
    ):
        assert not torch.equal(other, rows)
    many = initial_rows(1, "shop", np.arange(40_000, dtype=np.uint64), 8, std=0.5).double()
    assert many.std().item() == pytest.approx(0.5, rel=0.01)
    assert abs(many.mean().item()) < 0.005
    assert many.abs().max().item() <= 0.5 * 3**0.5
    columns = np.corrcoef(many.T.numpy())
    assert np.abs(columns - np.eye(8)).max() < 0.03


def test_a_run_on_days_has_a_preset_of_its_own(program, days, tmp_path):
    """Unless the user gives a setting of the model or the optimizer, or a preset."""
    cases = {"adam": (), "sgd": ("--embedding_dim=8", "--bottom_mlp_sizes=8", "--warmup_steps=0")}
    for optimizer, flags in cases.items():
        folder = tmp_path / optimizer
        where = (f"--dataset={days}", f"--save_checkpoint_path={folder}", "--grow")
        program(*where, *flags, "--base_device=cpu", model=())
        assert latest(folder).config["optimizer"] == optimizer


CONFLICTS = {
    "hash_indices": "--hash_indices",
    "id_statistics": "--id_statistics=100",
    "reset_embeddings": "--reset_embeddings",
    "max_steps": "--max_steps=3",
}


@pytest.mark.parametrize("name", CONFLICTS)
def test_settings_that_need_fixed_tables_are_refused(program, days, tmp_path, name):
    flags = (f"--dataset={days}", f"--save_checkpoint_path={tmp_path / 'run'}", "--grow")
    assert_tells(program.refused(*flags, CONFLICTS[name]), "--grow", f"--{name}")
    assert not (tmp_path / "run").exists()


def test_runs_that_cannot_grow_are_refused(program, days, dataset, tmp_path):
    assert_tells(program.refused(f"--dataset={days}", "--grow"), "--save_checkpoint_path")
    save = f"--save_checkpoint_path={tmp_path / 'run'}"
    assert_tells(program.refused(f"--dataset={dataset}", save, "--grow"), dataset, "day_0000")
    assert_tells(program.refused(f"--dataset={days}", save, "--progressive"), "--grow")
    assert_tells(program.refused(f"--dataset={days}", save), days, "--grow")
    day = days / "day_0001"
    assert_tells(program.refused(f"--dataset={day}", save, "--grow"), day, "day_0000")
    shutil.copytree(days, tmp_path / "days")
    program.train(tmp_path / "days", tmp_path / "run", "--grow", *BATCH)
    shutil.rmtree(tmp_path / "days" / "day_0002")
    ahead = program.refused(f"--dataset={tmp_path / 'days'}", save, "--grow", *BATCH, "--resume")
    assert_tells(ahead, tmp_path / "days", "--dataset")
