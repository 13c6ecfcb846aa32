# SPDX-License-Identifier: Apache-2.0
"""`--config auto`: what it chooses by, and that the choice can be repeated."""

import shlex
import signal

import numpy as np
import pytest

from bert4rec.auto.choice import CHOSEN, Traits, choose
from bert4rec.scripts import main
from recsys_recipes import ratings
from tests.bert4rec.conftest import parse
from tests.bert4rec.test_resume import signal_at_step
from tests.checkpoints import assert_same, latest
from tests.harness import Program

QUIET = ("--base_device=cpu", "--num_threads=1", "--baselines=", "--num_eval_negatives=5")


def make(folder, name, users, items, length, **how):
    """Makes a dataset of users who go from an item to the next one; returns its folder."""
    generator = np.random.default_rng(3)
    lines = ["user,item,timestamp"]
    for user in range(users):
        first = generator.integers(items)
        lines += [f"{user},{(first + i) % items},{i}" for i in range(length)]
    lines += [f"{users},{item},{item}" for item in range(items)]  # so that each item is met
    table = folder / f"{name}.csv"
    table.write_text("\n".join(lines) + "\n")
    columns = "user=user,item=item,timestamp=timestamp"
    return ratings.prepare(table, folder / name, columns=columns, progress="none", **how)


@pytest.fixture(scope="module")
def short(tmp_path_factory):
    """A dataset of short histories and few items."""
    return make(tmp_path_factory.mktemp("short"), "ratings", 200, 30, 6)


@pytest.fixture(scope="module")
def long(tmp_path_factory):
    """A dataset of long histories, with many interactions of each item."""
    return make(tmp_path_factory.mktemp("long"), "ratings", 300, 80, 60)


@pytest.fixture(scope="module")
def longer(tmp_path_factory):
    """A dataset of histories twice as long."""
    return make(tmp_path_factory.mktemp("longer"), "ratings", 300, 240, 120)


@pytest.fixture
def program(tmp_path):
    """The program as a user calls it, but for the baselines, with its log in the test's folder."""
    return Program(main, tmp_path, QUIET)


def auto(program, dataset, *flags):
    """Trains with auto; returns the settings of the run."""
    return settings(program("--config=auto", f"--dataset_path={dataset}", *flags))


def settings(records):
    return next(r["data"] for r in records if r["step"] == "PARAMETER")


def choice(dataset, *flags):
    """Returns the settings that auto takes, before it looks at the budget."""
    return parse("--config=auto", f"--dataset_path={dataset}", *flags).to_dict()


def command(capsys):
    """Returns the arguments of the command that was printed, without those of `QUIET`."""
    begin, lines = "python -m bert4rec.scripts.main", capsys.readouterr().out.splitlines()
    line = next(line for line in lines if line.startswith(begin))
    return [word for word in shlex.split(line)[3:] if word not in QUIET]


def test_the_histories_decide(short, long, tmp_path):
    of_short, of_long = choice(short), choice(long)
    assert of_short["max_len"] < of_long["max_len"] <= 80
    assert of_short["dropout"] > of_long["dropout"]
    assert of_short["loss"] == of_long["loss"] == "full"
    assert of_short["validation_users"] is None
    large = choice(make(tmp_path, "large", 4500, 10_500, 5))
    assert large["loss"] == "sampled"
    assert 0 < large["validation_users"] < 4500


def test_choices_fit_what_is_given(tmp_path):
    """The correction of the popularity needs the softmax over all items."""
    large = make(tmp_path, "large", 100, 10_500, 5)
    assert choice(large)["loss"] == "sampled"
    assert choice(large, "--popularity_correction=0.3")["loss"] == "full"
    assert choice(large, "--max_len=7")["max_len"] == 7


def test_a_temporal_split_validates_as_it_says(tmp_path):
    dataset = make(tmp_path, "temporal", 4500, 50, 5, split="temporal:0.9")
    assert choice(dataset)["validation_users"] is None
    assert choice(dataset, "--temporal_validation=users")["temporal_validation"] == "users"


def test_the_printed_command_makes_the_same_checkpoint(program, short, tmp_path, capsys):
    chosen = auto(program, short, f"--export_root={tmp_path / 'auto'}", "--max_steps=24")
    assert chosen["item_init"] == "neighbours"
    words = command(capsys)
    assert "--max_steps=24" in words
    assert not [word for word in words if word.startswith(("--config", "--budget", "--resume"))]
    moved = [w.replace(str(tmp_path / "auto"), str(tmp_path / "again")) for w in words]
    repeated = settings(program(*moved))
    assert "Auto" not in capsys.readouterr().out
    assert repeated | {"export_root": chosen["export_root"]} == chosen
    assert_same(tmp_path / "again", tmp_path / "auto")


def test_flags_that_are_given_override_the_choice(program, short, capsys):
    flags = (
        "--emb_dim=16",
        "--loss=sampled",
        "--num_negatives=20",
        "--max_steps=30",
        "--patience=2",
    )
    chosen = auto(program, short, *flags)
    assert [chosen[flag[2:].partition("=")[0]] for flag in flags] == [16, "sampled", 20, 30, 2]
    assert set(flags) <= set(command(capsys))
    # A given length is trained, however many epochs auto would take.
    assert chosen["num_epochs"] * 2 >= 30


def test_users_and_lengths_decide_the_epochs():
    """An epoch has a window of each history: few are few steps, long ones need several."""
    sizes = {"items": 500, "median": 5, "longest": 300, "leaves_one_out": True}

    def epochs(users, per_user):
        traits = Traits(users=users, interactions=users * per_user, **sizes)
        return choose(traits, {}, 128).settings["num_epochs"]

    assert epochs(100_000, 5) == epochs(50_000, 20) < epochs(50_000, 100) < epochs(1000, 100)


def test_the_help_tells_of_all_that_is_chosen():
    """`CHOSEN` names every setting of a choice, and the steps that fit into a budget."""
    chosen = {"max_steps"}
    for users, items in ((100, 50), (10_000, 50_000)):
        sizes = {"users": users, "items": items, "interactions": users * 5}
        traits = Traits(**sizes, median=5, longest=9, leaves_one_out=True)
        chosen |= choose(traits, {}, 128).settings.keys()
    assert chosen == CHOSEN


def test_a_given_length_is_taken(short):
    assert choice(short)["num_epochs"] > 100
    assert choice(short, "--max_steps=20")["num_epochs"] == 10
    assert choice(short, "--max_steps=5000")["num_epochs"] == 2500
    chosen = choice(short, "--num_epochs=3")
    assert (chosen["num_epochs"], chosen["max_steps"]) == (3, None)


def test_a_resumed_run_goes_on_as_chosen(program, short, tmp_path, monkeypatch):
    whole, parts = (f"--export_root={tmp_path / name}" for name in ("whole", "parts"))
    given = ("--dropout=0.1", "--max_steps=24")
    chosen = auto(program, short, whole, *given)
    with monkeypatch.context() as patched:
        signal_at_step(5, signal.SIGTERM, patched)
        begun = auto(program, short, parts, *given)
    assert 5 <= latest(tmp_path / "parts").state["step"] < latest(tmp_path / "whole").state["step"]
    # A new choice would drop another share, and take other steps in a second.
    resumed = auto(program, short, parts, "--resume", "--budget=1s")
    assert resumed | {"resume": False} == begun
    assert begun | {"export_root": chosen["export_root"]} == chosen
    assert_same(tmp_path / "parts", tmp_path / "whole")


def test_an_interrupted_trial_leaves_nothing(program, short, tmp_path, monkeypatch):
    with monkeypatch.context() as patched:
        signal_at_step(1, signal.SIGINT, patched)
        program("--config=auto", f"--dataset_path={short}", f"--export_root={tmp_path / 'run'}",
                status=130)  # fmt: skip
    assert not (tmp_path / "run").exists()


def test_a_budget_shortens_the_training(program, short, long, capsys):
    small = ("--emb_dim=16", "--num_layers=1", "--patience=1")
    assert auto(program, short, "--budget=1000h", *small)["max_steps"] is None
    capsys.readouterr()
    chosen = auto(program, long, "--budget=1s", "--max_len=120")
    assert chosen["max_steps"] < chosen["num_epochs"] * 3  # batches
    assert f"--max_steps={chosen['max_steps']}" in command(capsys)
    assert chosen["max_len"] == 120  # as given


def test_a_budget_too_short_for_long_histories_halves_them(program, long, longer, capsys):
    assert auto(program, longer, "--budget=1s")["max_len"] == 50
    assert "--max_len=50" in command(capsys)
    assert auto(program, long, "--budget=1s")["max_len"] == 80  # forty would be too short


def test_what_auto_cannot_choose_is_refused(program, short, tmp_path, capsys):
    def refused(*flags):
        capsys.readouterr()
        program(f"--dataset_path={short}", *flags, status=2)
        return capsys.readouterr().err

    auto(program, short, f"--export_root={tmp_path / 'run'}", "--max_steps=2")
    of_run = f"--load_checkpoint_path={tmp_path / 'run'}"
    assert "--config auto" in refused("--config=auto", of_run)
    assert "--mode test" in refused("--config=auto", "--mode=test", of_run)
    assert "--budget" in refused("--config=fast", "--budget=5m")
    assert "--budget" in refused("--config=auto", "--budget=soon")
    # Before any step: a folder in use.
    assert "--resume" in refused("--config=auto", f"--export_root={tmp_path / 'run'}")
