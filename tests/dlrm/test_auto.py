# SPDX-License-Identifier: Apache-2.0
"""`--preset auto`: who takes it, what it chooses by, and that the choice can be repeated."""

import dataclasses
import functools
import itertools
import shlex
import signal

import numpy as np
import pytest

from dlrm.auto.candidates import CHOSEN, candidates
from dlrm.auto.choice import Traits
from dlrm.config import DataConfig
from dlrm.scripts import main
from recsys_recipes import clicks
from tests import harness
from tests.checkpoints import assert_same, latest
from tests.dlrm.conftest import CapturedProgram

QUIET = ("--base_device=cpu", "--num_threads=1", "--baselines=")
DENSE, RARE = "cat", "dot"
"""Interaction of each kind of settings."""


def write_log(folder, name, columns, label):
    """Writes a csv of named columns with a click each; returns its path."""
    path = folder / f"{name}.csv"
    rows = zip(label.astype(int), *columns.values(), strict=True)
    lines = [",".join(["click", *columns]), *(",".join(map(str, row)) for row in rows)]
    path.write_text("\n".join(lines) + "\n")
    return path


def prepare(log, columns, split="{fractions: [0.8, 0.1, 0.1]}"):
    """Prepares a log by a schema with these columns; returns the dataset."""
    schema, output = log.with_suffix(".yaml"), log.with_suffix("")
    lines = ["label: {column: click}", "columns:", *(f"- {{{c}}}" for c in columns)]
    schema.write_text("\n".join([*lines, f"split: {split}"]) + "\n")
    return clicks.prepare(log, output, schema=schema, progress="none")


def draw(seed, logits):
    return np.random.default_rng(seed).random(len(logits)) < 1 / (1 + np.exp(-logits))


def make_frequent(folder, rows=2000, **how):
    """Makes a dataset of ids with some twenty training rows each, whose logits add up."""
    generator = np.random.default_rng(5)
    sizes = (rows // 25, 40, 6, 4)
    ids = {f"id_{i}": generator.integers(0, size, rows) for i, size in enumerate(sizes)}
    effects = [generator.normal(0, 1.5, size) for size in sizes]
    logits = sum(effect[each] for effect, each in zip(effects, ids.values(), strict=True))
    columns = [f"name: {n}, role: categorical, type: int" for n in ids]
    return prepare(write_log(folder, "frequent", ids, draw(6, logits)), columns, **how)


def make_pairs(folder):
    """Makes a dataset whose clicks depend on a pair of frequent ids; others have many values."""
    generator = np.random.default_rng(5)
    ids = {f"id_{i}": generator.integers(0, size, 2000) for i, size in enumerate((80, 8, 6, 4))}
    label = draw(6, generator.normal(0, 3, (8, 6))[ids["id_1"], ids["id_2"]])
    columns = [f"name: {n}, role: categorical, type: int" for n in ids]
    return prepare(write_log(folder, "pairs", ids, label), columns)


def make_seen(folder):
    """Makes a dataset of 300 pairs of ids, which are clicks, among random ones."""
    generator = np.random.default_rng(5)
    known = generator.integers(0, 100, (300, 2))
    label = generator.random(6000) < 0.5
    drawn = known[generator.integers(0, len(known), 6000)], generator.integers(0, 100, (6000, 2))
    user, item = np.where(label[:, None], *drawn).T
    columns = [f"name: {n}, role: categorical, type: int" for n in ("user", "item")]
    return prepare(write_log(folder, "seen", {"user": user, "item": item}, label), columns)


def make_numbers(folder, name="numbers", **how):
    generator = np.random.default_rng(7)
    numbers = {f"x_{i}": generator.normal(size=1500).round(3) for i in range(3)}
    label = draw(8, 2 * numbers["x_0"] * numbers["x_1"] - numbers["x_2"])
    columns = [f"name: {n}, role: numerical, type: float, bins: quantiles:8" for n in numbers]
    return prepare(write_log(folder, name, numbers, label), columns, **how)


def make_lists(folder):
    generator = np.random.default_rng(9)
    lists = [generator.integers(0, 30, generator.integers(0, 5)) for _ in range(1500)]
    label = draw(10, np.array([3 * np.sum(each % 2) - 3 for each in lists]))
    seen = ["|".join(map(str, each)) for each in lists]
    numbers = generator.normal(size=1500).round(3)
    log = write_log(folder, "lists", {"seen": seen, "x": numbers}, label)
    seen_column = "name: seen, role: categorical_list, type: int"
    return prepare(log, [seen_column, "name: x, role: numerical, type: float, transform: none"])


@pytest.fixture(scope="module")
def frequent(tmp_path_factory):
    """A dataset for which two candidates are raced."""
    return make_frequent(tmp_path_factory.mktemp("frequent"))


@pytest.fixture
def program(tmp_path):
    """The program as a user calls it, but for the baselines, with its log in the test's folder."""
    return CapturedProgram(main, tmp_path, QUIET)


def train(program, dataset, folder, *flags, **status):
    return program(f"--dataset={dataset}", f"--save_checkpoint_path={folder}", *flags, **status)


def command(program):
    """Returns the arguments of the command that was printed, without those of `QUIET`."""
    line = next(
        x for x in program.stdout.splitlines() if x.startswith("python -m dlrm.scripts.main")
    )
    return [word for word in shlex.split(line)[3:] if word not in QUIET]


def settings(records):
    return next(r["data"] for r in records if r["step"] == "PARAMETER")


def evaluations(records):
    return [r["data"]["auc"] for r in records if "auc" in r["data"] and r["step"]]


def test_the_printed_command_makes_the_same_checkpoint_without_a_race(program, frequent, tmp_path):
    chosen = settings(train(program, frequent, tmp_path / "auto", "--epochs=3"))
    assert (chosen["eval_split"], chosen["seeds"], chosen["epochs"]) == ("validation", 4, 3)
    # The sizes, two candidates without and with statistics of ids, and the choice.
    assert program.stdout.count("Auto: ") == 6
    words = command(program)
    assert not [word for word in words if word.startswith(("--preset", "--budget", "--resume"))]
    moved = [w.replace(str(tmp_path / "auto"), str(tmp_path / "again")) for w in words]
    repeated = settings(program(*moved))
    assert "Auto" not in program.stdout
    folder = "save_checkpoint_path"
    assert repeated | {folder: chosen[folder]} == chosen
    assert_same(tmp_path / "again", tmp_path / "auto")


@pytest.mark.parametrize(
    ("make", "better"),
    # By a sixth and more, on any processor.
    [(make_pairs, DENSE), (functools.partial(make_frequent, rows=1200), RARE)],
    ids=[DENSE, RARE],
)
def test_validation_decides_against_the_rule_too(make, better, program, tmp_path):
    dataset = make(tmp_path)
    flags = ("--preset=auto", "--id_statistics=0", "--seeds=1")
    chosen = settings(train(program, dataset, tmp_path / "auto", *flags))
    assert chosen["interaction_op"] == better
    found = candidates(Traits.of(DataConfig(dataset=str(dataset)), 0), {}, 1)
    assert [candidate.settings["interaction_op"] for candidate in found] == [DENSE, RARE]
    losses = {
        candidate.settings["interaction_op"]: min(
            record["data"]["log_loss"]
            for record in program(f"--dataset={dataset}", *flags_of(candidate))
            if "log_loss" in record["data"] and record["step"]
        )
        for candidate in found
    }
    assert min(losses, key=losses.get) == better


def test_statistics_of_ids_are_taken_where_they_are_better(program, tmp_path):
    made = make_seen(tmp_path)
    chosen = settings(train(program, made, tmp_path / "with", "--seeds=1"))
    assert chosen["id_statistics"]
    chosen = settings(
        train(
            program, made, tmp_path / "without", "--preset=auto", "--id_statistics=0", "--seeds=1"
        )
    )
    assert not chosen["id_statistics"]


def flags_of(candidate):
    values = candidate.settings | {"seeds": 1}
    if not values["decay_steps"]:
        values.pop("decay_start_step", None)
    spelled = {n: ",".join(map(str, v)) if isinstance(v, tuple) else v for n, v in values.items()}
    return [f"--{name}={value}" for name, value in spelled.items()]


def test_flags_that_are_given_override_the_choice(program, frequent, tmp_path):
    flags = ("--seeds=2", "--batch_size=512", "--epochs=2", "--eval_split=test")
    chosen = settings(train(program, frequent, tmp_path / "run", *flags))
    values = [chosen[name] for name in ("seeds", "batch_size", "epochs", "eval_split")]
    assert values == [2, 512, 2, "test"]
    assert set(flags) <= set(command(program))
    with_rate = ("--preset=auto", "--lr=0.002", "--epochs=1")
    chosen = settings(program(f"--dataset={frequent}", *with_rate))
    assert (chosen["lr"], chosen["embedding_dim"]) in {(0.002, 16), (0.002, 32)}


def test_a_model_or_rate_of_ones_own_is_no_auto(program, frequent, dataset):
    """Nor is a dataset without a schema: both have the defaults, whose warm-up is refused."""
    for flags in ([f"--dataset={frequent}", "--lr=0.1"], [f"--dataset={dataset}"]):
        assert "--warmup_steps" in program.refused(*flags)
    assert settings(program(f"--dataset={frequent}", "--preset=small"))["lr"] == 0.003


def test_a_dataset_without_a_schema_takes_auto_by_name(program, dataset):
    chosen = settings(program(f"--dataset={dataset}", "--preset=auto", "--max_steps=20"))
    assert (chosen["eval_split"], chosen["optimizer"]) != ("test", "sgd")


def test_a_resumed_run_keeps_its_choice(program, frequent, tmp_path):
    begun = settings(train(program, frequent, tmp_path / "run", "--epochs=1"))
    longer = ("--epochs=2", f"--save_checkpoint_path={tmp_path / 'whole'}")
    program(*command(program), *longer)
    # A race would take fewer networks in a second.
    again = ("--epochs=2", "--budget=1s", "--resume")
    resumed = settings(train(program, frequent, tmp_path / "run", *again))
    assert begun["seeds"] == resumed["seeds"] == 4
    assert resumed | {"epochs": 1, "resume": False} == begun
    assert_same(tmp_path / "run", tmp_path / "whole")


def test_an_interrupted_race_leaves_nothing_and_begins_again(frequent, tmp_path):
    words = ("-m", "recsys_recipes", "train", "dlrm", f"--dataset={frequent}", *QUIET)
    paths = (f"--output={tmp_path / 'run'}", f"--log_path={tmp_path / 'log.json'}")
    # Epochs without an end, until the signal comes.
    endless = ("--epochs=1000000", "--patience=1000000", "--plateau_factor=1", "--preset=auto")
    with harness.started_forked(*words, *paths, *endless) as process:
        harness.wait_for_line(process, lambda line: line.startswith("Auto: "))
        process.send_signal(signal.SIGINT)
        process.stdout.read()
        assert process.wait(harness.PATIENCE_S) == 130
    assert list(tmp_path.iterdir()) == []
    done = harness.forked(*words, *paths, "--max_steps=20", "--resume")
    assert latest(tmp_path / "run").state["step"] == 20
    assert "recsys-recipes train dlrm" in done.stdout


def test_a_budget_takes_fewer_networks(program, frequent, tmp_path):
    endless = ("--preset=auto", "--patience=1000000", "--plateau_factor=1")
    numbers = make_numbers(tmp_path)  # neither of whose candidates ends before its time
    chosen = settings(train(program, numbers, tmp_path / "run", "--budget=1s", *endless))
    assert chosen["seeds"] <= 2  # each of two trials takes a quarter of the second or longer
    assert "--budget" in program.refused(f"--dataset={frequent}", "--preset=small", "--budget=5m")
    for unclear in ("soon", "10"):  # seconds or minutes
        assert "10m" in program.refused(f"--dataset={frequent}", f"--budget={unclear}")


def test_test_rows_do_not_choose_where_none_validate(program, tmp_path):
    split = "{fractions: [0.9, 0, 0.1]}"
    made = make_frequent(tmp_path, 800, split=split)
    records = train(program, made, tmp_path / "run", "--seeds=1")
    chosen = settings(records)
    assert chosen["eval_split"] == "test"
    assert len(evaluations(records)) == 1
    state = latest(tmp_path / "run").state
    assert state["best_epoch"] == chosen["epochs"] > 1
    steps = 720 // chosen["batch_size"] * chosen["epochs"]
    assert chosen["decay_start_step"] + chosen["decay_steps"] == steps


@pytest.mark.parametrize("make", [make_numbers, make_lists])
def test_logs_of_numbers_and_lists_take_auto(make, program, tmp_path):
    records = train(program, make(tmp_path), tmp_path / "run", "--epochs=6")
    chosen = settings(records)
    assert chosen["interaction_op"] == DENSE
    assert chosen["numerical_embedding"] in ("piecewise_linear", "bins")
    assert max(evaluations(records)) > 0.6


@pytest.mark.parametrize(("largest", "interaction"), [(5_000_000, RARE), (1000, DENSE)])
def test_millions_of_rows_are_not_raced(largest, interaction):
    sizes = {"validation_rows": 10**5, "largest_table": largest, "tables": 26, "numbers": 13}
    sizes["table_rows"] = 2 * largest
    traits = Traits(rows=5_000_000, **sizes)
    for given in ({}, {"batch_size": 512, "epochs": 3}):
        (only,) = candidates(traits, given, 1)
        chosen = only.settings
        assert (chosen["interaction_op"], chosen["seeds"]) == (interaction, 1)
        values = chosen | given
        steps = 5_000_000 // values["batch_size"] * values["epochs"]
        assert chosen["decay_start_step"] + chosen["decay_steps"] == steps
    raced = candidates(dataclasses.replace(traits, rows=900_000, largest_table=50_000), {}, 1)
    assert len(raced) > 1


def test_the_help_tells_of_all_that_candidates_choose():
    """`CHOSEN` names the settings of every candidate, and no other."""
    names = ("rows", "validation_rows", "largest_table", "numbers")
    sizes = ((300, 5_000_000), (0, 100), (100, 100_000, 5_000_000), (0, 3))
    chosen = set()
    for values, world_size in itertools.product(itertools.product(*sizes), (1, 2)):
        traits = Traits(
            **dict(zip(names, values, strict=True)), table_rows=300, tables=1, combinations=300
        )
        for each in candidates(traits, {}, world_size):
            chosen |= {*each.settings, *(each.refined.settings if each.refined else ())}
    assert chosen == CHOSEN


def test_python_takes_auto_too(frequent, tmp_path):
    run = clicks.train(frequent, tmp_path / "run", max_steps=20, base_device="cpu", baselines="")
    config = latest(run).config
    assert (config["eval_split"], config["best_by"]) == ("validation", "log_loss")


def test_several_processes_take_the_rule(frequent, tmp_path):
    flags = (f"--dataset={frequent}", f"--save_checkpoint_path={tmp_path / 'run'}", "--epochs=1")
    log = f"--log_path={tmp_path / 'log.json'}"
    harness.call_on_ranks(2, main, *flags, log, *QUIET)
    chosen = settings(harness.read_log(tmp_path / "log.json"))
    assert (chosen["batch_norm"], chosen["eval_split"]) == (False, "validation")


def test_statistics_of_ids_are_refused_with_lists(program, tmp_path):
    flags = (f"--dataset={make_lists(tmp_path)}", "--preset=auto", "--id_statistics=1024")
    assert "--id_statistics" in program.refused(*flags)


def test_what_auto_cannot_choose_is_refused(program, frequent, tmp_path):
    train(program, frequent, tmp_path / "run", "--max_steps=5")
    of_run = (f"--dataset={frequent}", f"--load_checkpoint_path={tmp_path / 'run'}")
    assert "--preset auto" in program.refused("--preset=auto", *of_run)
    assert "--mode test" in program.refused("--preset=auto", "--mode=test", *of_run)
    assert "--dataset_type" in program.refused("--preset=auto", "--dataset_type=synthetic_gpu")
    # Before any race: a folder in use, a log that cannot be written.
    flags = (f"--dataset={frequent}", f"--save_checkpoint_path={tmp_path / 'run'}")
    assert "--resume" in program.refused(*flags)
    assert "auc" not in program.stdout
