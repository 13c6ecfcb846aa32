# SPDX-License-Identifier: Apache-2.0
"""`recsys-recipes tune`: what it searches, by which split, and how a study goes on."""

import functools
import json
import os
import re
import signal
from pathlib import Path

import optuna
import pytest

from recsys_recipes.tune import main, opened_storage
from tests import harness
from tests.bert4rec import conftest as bert4rec
from tests.harness import assert_tells
from tests.recsys.train.tiny import TINY_DLRM


@pytest.fixture
def tuned(capsys):
    """Runs the program in this process; returns what it prints, its errors where it fails."""

    def run(*words, status=0):
        capsys.readouterr()
        assert main(["tune", *words]) == status
        said = capsys.readouterr()
        return said.err if status else said.out

    return run


@pytest.fixture
def words(tmp_path):
    """Arguments that tune a small BERT4Rec, without those of the search."""
    data = tmp_path / "data"
    data.mkdir()
    bert4rec.write_dataset(data, bert4rec.make_sequences())
    paths = f"--study={tmp_path / 'study.db'}", f"--dataset_path={data}"
    return "bert4rec", *paths, *bert4rec.SMALL_MODEL, "--max_steps=8", "--test_freq=4"


@pytest.fixture
def tune(tuned, words):
    """Searches two settings of that model."""
    searched = "--search=lr=1e-7..1e-2", "--search=norm=pre,post"
    return lambda *flags, search=searched, **status: tuned(*words, *search, *flags, **status)


def of_study(tmp_path):
    with opened_storage(tmp_path / "study.db") as storage:
        study = optuna.load_study(study_name=None, storage=storage)
        return {state.name: study.get_trials(states=[state]) for state in optuna.trial.TrialState}


def opened_files():
    return [os.path.realpath(path) for path in Path("/proc/self/fd").iterdir()]


def test_a_study_finds_by_validation_and_goes_on(tune, tmp_path):
    tune = functools.partial(tune, f"--tensorboard={tmp_path / 'events'}")
    *trials, best = tune("--trials=4", "--finalists=0").splitlines()
    found = [
        re.fullmatch(r"trial (\d): full ndcg@10 (\S+) after 8 steps, lr (\S+), norm (\w+)", line)
        for line in trials
    ]
    assert [int(match[1]) for match in found] == [0, 1, 2, 3]
    best_of = max(found, key=lambda match: float(match[2]))
    assert best == f"Best of 4: --lr={best_of[3]} --norm={best_of[4]}"
    complete = of_study(tmp_path)["COMPLETE"]
    assert not [name for name in opened_files() if "study.db" in name]
    assert len(complete) == 4
    assert all(1e-7 <= trial.params["lr"] <= 1e-2 for trial in complete)
    runs = sorted(folder.name for folder in (tmp_path / "events").iterdir())
    assert runs == [f"trial-{number}" for number in range(4)]
    for number in range(4):
        records = harness.read_log(tmp_path / f"study.db.trial-{number}.json")
        keys = {key for record in records for key in record["data"]}
        assert "full_ndcg@10" in keys
        assert not [key for key in keys if key.startswith("test_full")]
    again = tune("--trials=5", "--finalists=0").splitlines()
    assert [line[:8] for line in again] == ["trial 4:", "Best of "]
    assert tune("--trials=5", "--finalists=0") == again[-1] + "\n"
    assert_tells(tune("--seed=2", status=2), "--study", "--seed 12345", 2)
    refused = tune(search=("--search=lr=1,2",), status=2)
    assert_tells(refused, "--study", "--search lr=1e-7..1e-2 norm=pre,post", "lr=1,2")


def test_further_seeds_decide_between_the_best(tune, tmp_path):
    """What they found is kept: the same command trains nothing."""
    command = functools.partial(
        *(tune, "--trials=5", "--finalists=3"),
        search=("--search=lr=3e-3,4e-3,5e-3,6e-3", "--search=dropout=0.1,0.2"),
    )
    *lines, best = command().splitlines()
    found = [
        re.fullmatch(
            r"finalist, trial (\d): (\S+), (\S+), (\S+) by seed, lr (\S+), dropout (\S+)", x
        )
        for x in lines[5:]
    ]
    complete = of_study(tmp_path)["COMPLETE"]
    ranked = sorted(complete, key=lambda trial: -trial.value)[:3]
    assert [int(match[1]) for match in found] == [trial.number for trial in ranked]
    for match, trial in zip(found, ranked, strict=True):
        assert float(match[2]) == pytest.approx(trial.value, abs=1e-6)
        for seed, score in ((12346, match[3]), (12347, match[4])):
            log = harness.read_log(tmp_path / f"study.db.trial-{match[1]}-seed-{seed}.json")
            measured = [r["data"]["full_ndcg@10"] for r in log if "full_ndcg@10" in r["data"]]
            assert max(measured) == pytest.approx(float(score), abs=1e-6)
    means = [sum(map(float, match.group(2, 3, 4))) for match in found]
    winner = found[means.index(max(means))]
    assert best == f"Best of 5: --lr={winner[5]} --dropout={winner[6]}"
    logs = {path: path.stat().st_mtime_ns for path in tmp_path.glob("study.db.*")}
    assert command().splitlines() == [*lines[5:], best]
    assert {path: path.stat().st_mtime_ns for path in tmp_path.glob("study.db.*")} == logs


def test_a_trial_that_lags_behind_is_given_up(tune, tmp_path):
    """Such as one whose rate is too low to learn anything, once five have set the median."""
    flags = ("--max_steps=60", "--test_freq=10", "--finalists=0")
    tune("--trials=14", *flags, search=("--search=lr=1e-2,9e-3,8e-3,1e-12",))
    hopeless = [t for t in of_study(tmp_path)["PRUNED"] if t.params["lr"] == "1e-12"]
    assert hopeless
    assert {len(trial.intermediate_values) for trial in hopeless} == {1}


def test_the_choice_of_auto_is_tried_first(tune, tmp_path):
    flags = ("--config=auto", "--budget=10m", "--trials=1", "--finalists=0")
    tune(*flags, search=("--search=dropout=0.1,0.5", "--search=lr=1e-6..1e-1"))
    (first,) = of_study(tmp_path)["COMPLETE"]
    assert first.params["dropout"] == "0.5"
    assert first.system_attrs["fixed_params"]["dropout"] == "0.5"


def test_a_command_searches_settings_by_its_own_names(words, tmp_path):
    names = {"--dataset_path=": "--dataset=", "--train_batch_size=": "--batch_size="}
    given = [functools.reduce(lambda w, n: w.replace(*n), names.items(), word) for word in words]
    search = ("--search=batch_size=4,8", "--trials=1", "--finalists=0")
    harness.forked("-m", "recsys_recipes", "tune", *given, *search)
    (trial,) = of_study(tmp_path)["COMPLETE"]
    (log,) = tmp_path.glob("*.json")
    settings = harness.read_log(log)[0]["data"]
    assert str(settings["train_batch_size"]) == trial.params["train_batch_size"]


def test_a_killed_trial_begins_anew(words, tmp_path):
    search = "--search=lr=1e-4..1e-2", "--search=dropout=0.1..0.3"
    steps = ("--max_steps=1000000", "--test_freq=5", "--trials=2")
    command = ("-m", "recsys_recipes.tune", *words, *search, *steps)
    with harness.started_forked(*command) as process:
        log = tmp_path / "study.db.trial-0.json"
        harness.wait_for(lambda: "full_ndcg@10" in json.dumps(harness.read_log(log)), "a trial")
        other = harness.forked(*command, status=2)
        assert_tells(other.stderr, "--study", tmp_path / "study.db")
        process.send_signal(signal.SIGKILL)
        process.wait(harness.PATIENCE_S)
    (killed,) = of_study(tmp_path)["RUNNING"]
    for number, sent in ((1, signal.SIGINT), (2, signal.SIGTERM)):
        with harness.started_forked(*command) as process:
            log = tmp_path / f"study.db.trial-{number}.json"
            harness.wait_for(lambda log=log: harness.read_log(log), "a trial", process=process)
            process.send_signal(sent)
            assert process.wait(harness.PATIENCE_S) == 130
    failed = of_study(tmp_path)["FAIL"]
    assert [trial.params for trial in failed] == [killed.params] * 3


@pytest.mark.parametrize(
    ("flags", "facts"),
    [
        (("--search=lr",), ("--search lr", "NAME=LOW..HIGH", "NAME=VALUE,VALUE")),
        (("--search=lr=2..1",), ("--search 2..1",)),
        (("--search=lr=a..1",), ("--search a..1",)),
        (("--search=lrs=1..2",), ("--search lrs", "lr?")),
        ((), ("--search", "--search lr=1e-4..1e-2")),
        (("--search=lr=1..2", "--trials=0"), ("--trials", 1, 0)),
        (("--search=lr=1..2", "--mode=test"), ("--mode test",)),
        (("--search=lr=1..2", "--export_root=x"), ("--export_root",)),
        (("--search=norm=pre,past",), ("--norm=past", "pre|post")),
        (("--search=lr=1..2", "--num_negatives=9"), ("--num_negatives", "--loss full")),
    ],
)
def test_what_cannot_be_searched_is_refused(tune, tmp_path, flags, facts):
    assert_tells(tune(*flags, search=(), status=2), *facts)
    assert not (tmp_path / "study.db").exists()


def test_another_file_and_trials_that_all_diverge(tune, tmp_path):
    (tmp_path / "study.db").write_text("mine")
    assert_tells(tune(status=2), "--study", tmp_path / "study.db")
    assert (tmp_path / "study.db").read_text() == "mine"
    (tmp_path / "study.db").unlink()
    tune("--search=lr=1e30,1e35", "--trials=2", search=(), status=4)
    assert not of_study(tmp_path)["COMPLETE"]


def test_a_model_is_named_first(tuned):
    assert_tells(tuned("--study=x", "--search=lr=1,2", status=2), "bert4rec", "dlrm")


def test_dlrm_is_not_tuned_by_its_test_split(tuned, tmp_path):
    words = ("dlrm", f"--study={tmp_path / 'new' / 'study'}", "--search=lr=0.1,1", *TINY_DLRM)
    assert_tells(tuned(*words, status=2), "--eval_split test", "validation")
    out = tuned(*words, "--eval_split=validation", "--trials=1", "--max_steps=4")
    assert re.match(r"trial 0: \S+ 0\.\d+ after 4 steps, lr [\d.]+\nBest of 1: --lr=", out)
