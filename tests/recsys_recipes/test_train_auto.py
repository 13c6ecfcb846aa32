# SPDX-License-Identifier: Apache-2.0
"""`recsys-recipes train auto`: the best of all models of a dataset."""

import shutil

import numpy as np
import pyarrow as pa

from recsys_recipes import clicks, ratings, train_auto
from recsys_recipes.models import model_of
from tests import harness
from tests.harness import assert_tells


def words(dataset, run):
    return ("train_auto", f"--dataset={dataset}", f"--output={run}", "--budget=2s",
            "--base_device=cpu", "--num_threads=1")  # fmt: skip


def test_the_network_and_a_simple_model_make_one_run(dataset, tmp_path):
    """An interrupted run continues: what was trained stays as it is."""
    run = tmp_path / "run"
    assert train_auto.main(words(dataset, run)) == 0
    assert [model_of(folder).name for folder in (run / "trained", run)] == ["bert4rec", "blend"]
    logged = harness.read_log(run / "log.json")
    of_blend, of_network = logged[-1]["data"], ratings.test(dataset, run / "trained", baselines="")
    chosen = next(each["data"] for each in logged if each["step"] == "PARAMETER")
    assert chosen["blend_of"] == str(run / "trained")
    validation = next(each["data"] for each in logged if each["step"] == [0, 0])
    assert validation["full_ndcg@10"] > 0.5
    assert of_blend["test_full_ndcg@10"] >= 0.9 * of_network["test_full_ndcg@10"]
    before = {file: file.read_bytes() for file in run.glob("step_*/**/*") if file.is_file()}
    for path in run.iterdir():
        if path.name != "trained":
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert train_auto.main(words(dataset, run)) == 0
    again = {file: file.read_bytes() for file in run.glob("step_*/**/*") if file.is_file()}
    assert again == before


def test_of_clicks_the_network_and_a_logistic_regression(tmp_path):
    generator = np.random.default_rng(0)
    ad, age = generator.integers(0, 6, 1500), generator.normal(size=1500).round(2)
    bought = ad / 3 + age > 1 + generator.normal(size=1500)
    table = pa.table({"ad": ad.astype(str), "age": age, "bought": bought.astype(int)})
    schema = {
        "label": {"column": "bought", "positive": ["1"], "negative": ["0"]},
        "columns": [
            {"name": "ad", "role": "categorical", "type": "string"},
            {"name": "age", "role": "numerical", "type": "float"},
        ],
        "split": {"fractions": [0.6, 0.2, 0.2]},
    }
    made = clicks.prepare(table, tmp_path / "data", schema=schema, progress="none")
    run = tmp_path / "run"
    assert train_auto.main(words(made, run)) == 0
    assert [model_of(folder).name for folder in (run / "trained", run)] == ["dlrm", "blend_clicks"]
    assert clicks.test(made, run, baselines="")["auc"] > 0.8


def test_a_folder_that_holds_a_run_is_refused_before_anything_is_trained(dataset, tmp_path, capsys):
    """A finished one, and one that began with other data."""
    assert ratings.train(dataset, tmp_path / "run", "markov", baselines="")
    other = tmp_path / "other"
    ratings.train(dataset, other / "trained", "markov", baselines="")
    for run in (tmp_path / "run", other):
        before = sorted(run.rglob("*"))
        assert train_auto.main(words(dataset, run)) == 2
        assert_tells(capsys.readouterr().err, "--output", run)
        assert sorted(run.rglob("*")) == before
        with harness.refusal(run, settings=("output",)):
            ratings.train(dataset, run, "auto")


def test_what_cannot_be_trained_is_refused(dataset, tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    for flags, facts in (
        ([f"--output={tmp_path / 'run'}"], ["--dataset"]),
        ([f"--dataset={tmp_path / 'empty'}", f"--output={tmp_path / 'run'}"], [tmp_path / "empty"]),
        ([*words(dataset, tmp_path / "run")[1:], "--budget=0s"], ["--budget"]),
    ):
        assert train_auto.main(["train_auto", *flags]) == 2
        assert_tells(capsys.readouterr().err, *facts)
    assert not (tmp_path / "run").exists()
