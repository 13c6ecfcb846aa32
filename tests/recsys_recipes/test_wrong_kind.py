# SPDX-License-Identifier: Apache-2.0
"""Clicks given to commands of ratings, and the other way round: what it is, and who takes it."""

import re
import shlex

import pytest

from recsys_recipes import clicks, fitted, ratings
from recsys_recipes.serving import deploy
from tests import harness

OF_CLICKS, OF_RATINGS = "recsys-recipes train dlrm", "recsys-recipes train bert4rec"
MAKERS = "recsys-recipes prepare clicks", "recsys-recipes prepare ratings"


@pytest.fixture(scope="module")
def made(dataset, with_lists, tmp_path_factory):
    """A dataset and a run of clicks, and the same of ratings, by the names in `{}` of the tests."""
    folder = tmp_path_factory.mktemp("runs")
    flags = (f"--dataset={with_lists[0]}", f"--save_checkpoint_path={folder / 'logistic'}")
    log = f"--log_path={folder / 'log'}"
    assert fitted.main(["fitted", "logistic", *flags, log, "--baselines="]) == 0
    ratings.train(dataset, folder / "markov", "markov", baselines="")
    return {
        "clicks": with_lists[0],
        "logistic": folder / "logistic",
        "ratings": dataset,
        "markov": folder / "markov",
    }


@pytest.mark.parametrize(
    ("words", "facts"),
    [
        (
            "predict --dataset={clicks} --checkpoint={markov} --predictions=x.csv",
            ["--checkpoint {markov}", "ratings", "recsys-recipes test", "recommend"],
        ),
        (
            "recommend --dataset={ratings} --checkpoint={logistic} --recommend_users=all",
            ["--checkpoint {logistic}", "clicks", "recsys-recipes test", "predict"],
        ),
        ("predict bert4rec --checkpoint={markov}", ["'bert4rec'", "recommend"]),
        (
            "predict logistic --dataset={clicks} --checkpoint={markov} --predictions=x.csv",
            ["{markov}", "of markov", "recsys-recipes test markov"],
        ),
        ("test --dataset={clicks} --checkpoint={clicks}", ["{clicks}", "of a dataset"]),
        *(
            (f"{words} --dataset={{clicks}}", ["--dataset {clicks}", OF_CLICKS, MAKERS[1]])
            for words in (
                "train bert4rec --preset=fast",
                "train markov",
                "test --checkpoint={markov}",
                "recommend --checkpoint={markov} --recommend_users=all",
            )
        ),
        *(
            (f"{words} --dataset={{ratings}}", ["--dataset {ratings}", OF_RATINGS, MAKERS[0]])
            for words in (
                "train dlrm --preset=small",
                "train logistic",
                "test --checkpoint={logistic}",
                "predict --checkpoint={logistic} --predictions=x.csv",
            )
        ),
        (
            "train blend --dataset={ratings} --blend_of={logistic}",
            ["--blend_of {logistic}", "clicks", "recsys-recipes train blend_clicks"],
        ),
        (
            "train blend_clicks --dataset={clicks} --blend_of={markov}",
            ["--blend_of {markov}", "ratings", "recsys-recipes train blend"],
        ),
        (
            "train auto --dataset={clicks}/train --output={tmp}",
            ["--dataset {clicks}/train", "recsys-recipes prepare"],
        ),
    ],
)
def test_other_data_are_named_and_the_command_that_takes_them(words, facts, made, tmp_path):
    names = made | {"tmp": tmp_path / "run"}
    given = [word.format(**names) for word in words.split()]
    done = harness.forked("-m", "recsys_recipes", *given, status=2, folder=tmp_path)
    harness.assert_tells(done.stderr, *(fact.format(**names) for fact in facts))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("flags", "facts"),
    [
        ("--checkpoint={markov} --raw --dataset={clicks}", ["--raw, --dataset", "--raw_ids"]),
        ("--checkpoint={logistic} --raw_ids={ratings}", ["--raw_ids", "--raw and --dataset"]),
        ("--checkpoint={markov} --raw_ids={clicks}", ["--raw_ids {clicks}", OF_CLICKS]),
        ("--checkpoint={logistic} --raw --dataset={ratings}", ["--dataset {ratings}", OF_RATINGS]),
    ],
)
def test_a_deployment_names_the_settings_of_other_data(flags, facts, made, tmp_path, capsys):
    given = [flag.format(**made) for flag in flags.split()]
    assert harness.call(deploy, f"--repository={tmp_path}", *given) == 2
    harness.assert_tells(capsys.readouterr().err, *(fact.format(**made) for fact in facts))


def test_a_raw_click_log_is_no_file_of_ratings(tmp_path):
    criteo = tmp_path / "day_0"
    numbers, ids = "\t".join("1234567890123"), "\t".join(f"{n:08x}" for n in range(26))
    criteo.write_text(f"0\t{numbers}\t{ids}\n" * 5)
    with harness.refusal(criteo, "recsys-recipes prepare criteo", settings=("input",)):
        ratings.prepare(criteo, tmp_path / "data", progress="none")
    own = tmp_path / "clicks.csv"
    own.write_text("click,visitor,price\n" + "0,a,1.5\n1,b,2.5\n" * 5)
    with harness.refusal(own, "columns", "recsys-recipes prepare clicks"):
        ratings.prepare(own, tmp_path / "data", progress="none")


def test_raw_rows_are_predicted_by_the_commands_that_the_refusal_names(made, tmp_path):
    log, predictions = made["clicks"].parent / "log.csv", tmp_path / "new.csv"

    def recipes(*words, status=0):
        done = harness.forked("-m", "recsys_recipes", *words, status=status, folder=tmp_path)
        return done.stderr

    predict = ("predict", f"--checkpoint={made['logistic']}", f"--predictions={predictions}")
    error = recipes(*predict, f"--dataset={log}", status=2)
    harness.assert_tells(error, f"--dataset {log}", "--dictionaries", "--unlabelled")
    command = re.findall(r"`recsys-recipes (.*?)`", error)[-1]
    recipes(*shlex.split(command.replace("TRAINED", str(made["clicks"]))))
    recipes(*predict, "--dataset=NEW")
    assert len(predictions.read_text().splitlines()) == 1 + 900


def test_python_names_the_models_of_an_unknown_setting(tmp_path):
    with harness.refusal("'max_len'", "bert4rec", "max_steps"):
        clicks.train(tmp_path, tmp_path / "run", max_len=50)
    with harness.refusal("'epoch'", "epochs"):
        ratings.train(tmp_path, tmp_path / "run", epoch=50)


def test_python_names_the_module_of_a_model_of_other_data(made, tmp_path):
    with harness.refusal("'markov'", "rr.ratings"):
        clicks.test(made["ratings"], made["markov"])
    with harness.refusal("'logistic'", "rr.clicks"):
        ratings.recommend([["a"]], made["ratings"], made["logistic"])
    with harness.refusal("'dlrm'", "rr.clicks"):
        ratings.train(made["ratings"], tmp_path / "run", "dlrm")
