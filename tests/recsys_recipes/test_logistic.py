# SPDX-License-Identifier: Apache-2.0
"""A logistic regression as a model: fitted, tested, predicted with and deployed by its commands."""

import numpy as np
import pytest
import torch
from pyarrow import csv, parquet

from dlrm.config import DataConfig
from dlrm.data.opened import OpenedDataset
from dlrm.scripts import main as dlrm_main
from dlrm.serve.score import read_requests
from dlrm.train.metrics import roc_auc
from recsys.data.click_columns import ClickColumns
from recsys.data.feature_spec import FeatureSpec
from recsys.data.split_binary import SplitBinaryWriter
from recsys.models.logistic.regression import LogisticRegression, log_losses
from recsys.models.logistic.rows import SplitRows
from recsys.serve.client.requests import BadRequestError
from recsys_recipes import clicks, fitted
from recsys_recipes.logistic.serving import ServedLogistic
from recsys_recipes.models import MODELS, model_of
from recsys_recipes.serving import deploy
from recsys_recipes.serving.raw_clicks import ServedRawClicks
from tests import harness
from tests.dlrm.conftest import CARDINALITIES, ROWS, SPEC, dataset, make_columns  # noqa: F401
from tests.harness import assert_tells, refusal
from tests.preproc.clicks.schema_log import (
    LINE,
    text_of,
)
from tests.tools import needs

CPU = torch.device("cpu")
HASHED = (5, 60, 1000, 9)
"""Fewer rows than ids."""


def run(*flags, status=0):
    assert fitted.main(["fitted", "logistic", *map(str, flags)]) == status


@pytest.fixture(scope="module", params=["plain", "hashed", "parquet", "lists"])
def trained(request, dataset, with_lists, tmp_path_factory):  # noqa: F811
    """A run: its flags for a dataset, sizes of its tables, its folder and its log."""
    folder = tmp_path_factory.mktemp(request.param)
    of_training, data = ["--baselines="], (f"--dataset={dataset}",)
    if request.param == "plain":
        of_training = []
    if request.param == "lists":
        data = (f"--dataset={with_lists[0]}",)
    if request.param == "parquet":
        data += ("--dataset_type=parquet",)
    if request.param == "hashed":
        sizes = ",".join(map(str, HASHED))
        of_training += ["--hash_indices", f"--num_embeddings_per_feature={sizes}"]
    log = folder / "log"
    run(*data, *of_training, f"--save_checkpoint_path={folder / 'run'}", f"--log_path={log}")
    return request.param, data, folder / "run", log


def rows_of(data, split, sizes=()):
    """Returns the rows of a split and the sizes of its tables."""
    values = dict(flag.removeprefix("--").split("=") for flag in data)
    opened = OpenedDataset.open(DataConfig(**values), 0)
    reader = opened.rows(split)
    return SplitRows([reader.read(0, reader.num_rows)]), sizes or opened.spec.table_sizes


def test_the_figures_are_those_of_a_fit_to_all_training_rows(trained):
    kind, data, folder, log = trained
    (train, sizes), (validation, _), (test, _) = (
        rows_of(data, split, HASHED if kind == "hashed" else ())
        for split in ("train", "validation", "test")
    )
    model = LogisticRegression.fit(train, validation, sizes, refit=False)
    logits = model.logits(test.blocks[0])
    found = harness.last_figures(log)
    assert found["auc"] == pytest.approx(
        roc_auc(torch.from_numpy(logits), torch.from_numpy(test.labels)), abs=1e-5
    )
    assert found["log_loss"] == pytest.approx(log_losses(logits, test.labels).mean(), abs=1e-6)
    assert ("lead_constant_auc" in found) == (kind == "plain")
    assert "logistic_regression_auc" not in found  # no model is compared with itself
    assert model_of(folder) is MODELS["logistic"]


def predictions(data, folder, file):
    words = (f"--load_checkpoint_path={folder}", f"--predictions={file}", f"--log_path={file}.log")
    run("--mode=predict", *data, *words)
    return csv.read_csv(file) if file.suffix == ".csv" else parquet.read_table(file)


def test_a_checkpoint_is_tested_and_predicts_as_it_was(trained, tmp_path):
    kind, data, folder, log = trained
    again = tmp_path / "again"
    baselines = [] if kind == "plain" else ["--baselines="]
    loaded = (f"--load_checkpoint_path={folder}", f"--log_path={again}")
    run("--mode=test", *data, *loaded, *baselines)
    timed = ("avg_inference_latency", "average_test_throughput")
    before, after = (
        {name: value for name, value in harness.last_figures(each).items() if name not in timed}
        for each in (log, again)
    )
    assert after == before
    table = predictions(data, folder, tmp_path / "test.parquet")
    assert table.column_names == ["row", "label", "probability", "logit", "file", "line"]
    label, probability, logit = (
        torch.tensor(table[name].to_numpy()) for name in ("label", "probability", "logit")
    )
    assert roc_auc(logit, label > 0) == before["auc"]
    torch.testing.assert_close(probability, torch.sigmoid(logit))


def test_served_answers_are_the_predictions(trained, tmp_path):
    kind, data, folder, _ = trained
    expected = predictions(data, folder, tmp_path / "test.parquet")["logit"].to_numpy()
    models = tmp_path / "models"
    command = (f"--checkpoint={folder}", f"--repository={models}", *data, "--split=test")
    assert harness.call(deploy, *command) == 0
    served = ServedLogistic.open(models / "logistic" / "1", CPU)
    values = dict(flag.removeprefix("--").split("=") for flag in data)
    requests = read_requests(DataConfig(**values), served.deployment.signature, 300)
    answers = [served.respond(request) for _, request in requests]
    found = np.concatenate([answer["logit"][:, 0] for answer in answers])
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)
    request = served.warmup_request(2)
    request["categorical"][1, 0] = 10**6
    if kind == "hashed":
        assert np.isfinite(served.respond(request)["logit"]).all()
    else:
        with refusal("row 1", "feature 0", 10**6, kind=BadRequestError):
            served.respond(request)


@pytest.mark.parametrize("trained", ["plain"], indirect=True)
def test_commands_find_the_model_in_the_checkpoint(trained, tmp_path):
    _, data, folder, log = trained
    words = (*data, f"--checkpoint={folder}", f"--log_path={tmp_path / 'log'}")
    harness.forked("-m", "recsys_recipes", "test", *words, "--baselines=")
    assert harness.last_figures(tmp_path / "log")["auc"] == harness.last_figures(log)["auc"]
    file = tmp_path / "found.parquet"
    harness.forked("-m", "recsys_recipes", "predict", *words, f"--predictions={file}")
    assert parquet.read_table(file).equals(predictions(data, folder, tmp_path / "named.parquet"))


@needs("compiled Criteo kernel")
@pytest.mark.parametrize("trained", ["lists"], indirect=True)
def test_raw_rows_are_answered_as_those_of_the_dataset(trained, with_lists, tmp_path):
    _, data, folder, _ = trained
    expected = predictions(data, folder, tmp_path / "test.parquet")["logit"].to_numpy()
    models = f"--repository={tmp_path / 'models'}"
    assert harness.call(deploy, f"--checkpoint={folder}", "--raw", *data, models) == 0
    served = ServedRawClicks.open(tmp_path / "models" / "logistic" / "1", CPU)
    lines = text_of(with_lists[1], LINE).splitlines()[1:]
    answer = served.respond({"line": np.array([[line] for line in lines], np.object_)})
    np.testing.assert_allclose(answer["logit"][:, 0], expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("trained", ["plain"], indirect=True)
@pytest.mark.parametrize(
    ("flags", "setting"),
    [
        (("--format=onnx",), "--format"),
        (("--backend=native",), "--backend"),
        (("--quantize=int8",), "--quantize"),
        (("--top_k=3",), "--top_k"),
        (("--raw",), "--raw"),
    ],
)
def test_what_cannot_be_deployed_is_refused(trained, flags, setting, tmp_path, capsys):
    models = tmp_path / "models"
    command = (f"--checkpoint={trained[2]}", f"--repository={models}", *flags)
    assert harness.call(deploy, *command) == 2
    assert_tells(capsys.readouterr().err, setting)
    assert not list(models.glob("*/1"))


@pytest.mark.parametrize("trained", ["plain"], indirect=True)
def test_a_run_is_neither_replaced_nor_taken_for_another(trained, with_lists, tmp_path, capsys):
    _, data, folder, _ = trained
    before = {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    log = f"--log_path={tmp_path / 'log'}"
    run(*data, f"--save_checkpoint_path={folder}", log, status=2)
    assert_tells(capsys.readouterr().err, "--save_checkpoint_path", folder)
    assert {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()} == before
    loaded = f"--load_checkpoint_path={folder}"
    run("--mode=test", f"--dataset={with_lists[0]}", loaded, log, status=2)
    assert_tells(capsys.readouterr().err, folder, with_lists[0])
    assert harness.call(dlrm_main, "--mode=test", *data, loaded, log) == 2
    assert_tells(capsys.readouterr().err, folder, "DLRM")


def test_where_validation_is_tested_the_last_training_rows_choose(dataset, tmp_path):  # noqa: F811
    log = tmp_path / "log"
    run(f"--dataset={dataset}", "--eval_split=validation", "--baselines=", f"--log_path={log}")
    rows = make_columns(ROWS["train"], 0)
    cut = [SplitRows([rows[part]]) for part in (slice(5400), slice(5400, 6000))]
    model = LogisticRegression.fit(*cut, CARDINALITIES, refit=True)
    tested = make_columns(ROWS["validation"], 1)
    loss = log_losses(model.logits(tested), tested.label).mean()
    assert harness.last_figures(log)["log_loss"] == pytest.approx(loss, abs=1e-6)
    assert "verdict" not in harness.last_figures(log)


def write(folder, splits, spec=SPEC):
    """Writes a dataset of split binary without a manifest."""
    folder.mkdir()
    spec.save(folder)
    for split, columns in splits.items():
        with SplitBinaryWriter(folder / split, spec, len(columns)) as writer:
            writer.write(0, columns)
    return folder


@pytest.mark.parametrize(("tables", "numbers"), [(CARDINALITIES, 0), ((), 3)])
def test_features_of_one_kind_are_enough(tables, numbers, tmp_path):
    spec = FeatureSpec.criteo(tables, numbers)
    splits = {
        split: ClickColumns(
            columns.label, columns.numerical[:, :numbers], columns.categorical[: len(tables)]
        )
        for seed, split in enumerate(("train", "validation", "test"))
        for columns in (make_columns(3000, seed),)
    }
    folder = write(tmp_path / "data", splits, spec)
    flags = (f"--dataset={folder}", f"--log_path={tmp_path / 'log'}", "--baselines=")
    run(*flags, f"--save_checkpoint_path={tmp_path / 'run'}")
    train, validation = (SplitRows([splits[split]]) for split in ("train", "validation"))
    model = LogisticRegression.fit(train, validation, tables, refit=False)
    expected = model.logits(splits["test"])
    table = predictions((f"--dataset={folder}",), tmp_path / "run", tmp_path / "test.csv")
    np.testing.assert_allclose(table["logit"].to_numpy(), expected, rtol=0, atol=1e-5)
    models = f"--repository={tmp_path / 'models'}"
    deployed = (f"--checkpoint={tmp_path / 'run'}", models, f"--dataset={folder}", "--split=test")
    assert harness.call(deploy, *deployed) == 0


def test_rows_that_teach_nothing_are_refused(tmp_path, capsys):
    columns = make_columns(40, 0)
    quiet = ClickColumns(np.zeros(40, bool), columns.numerical, columns.categorical)
    for name, train in (("quiet", quiet), ("one", columns[:1])):
        folder = write(tmp_path / name, {"train": train, "test": columns})
        run(f"--dataset={folder}", f"--log_path={tmp_path / 'log'}", status=2)
        assert_tells(capsys.readouterr().err, "--dataset", folder)
    run("--dataset_type=synthetic_gpu", status=2)
    assert_tells(capsys.readouterr().err, "--dataset_type")


def test_rows_that_no_memory_holds_are_refused_with_how_many_would(tmp_path, capsys):
    columns = make_columns(1, 0)
    folder = write(tmp_path / "large", {"train": columns, "test": columns})
    for file in (folder / "train").iterdir():
        with file.open("r+b") as sparse:  # zeros that take no space
            sparse.truncate(file.stat().st_size << 36)
    run(f"--dataset={folder}", f"--log_path={tmp_path / 'log'}", status=2)
    assert_tells(capsys.readouterr().err, "--dataset_subset", f"{1 << 36:,}")


@needs("real data")
def test_python_trains_and_predicts_with_any_model_of_clicks(real_data, tmp_path):
    log = real_data / "avazu" / "train_8k.csv.gz"
    schema = clicks.infer(log, tmp_path / "schema.yaml")
    data = clicks.prepare(log, tmp_path / "data", schema=schema, progress="none")
    folder = clicks.train(data, tmp_path / "run", "logistic", baselines="")
    assert clicks.test(data, folder, baselines="")["auc"] > 0.6
    answers = clicks.predict(log, data, folder)
    assert answers.num_rows == count_rows(data)
    assert 0.1 < np.mean(answers["probability"].to_numpy()) < 0.3
    with refusal("'forest'", "logistic"):
        clicks.train(data, tmp_path / "other", "forest")
    with refusal("'max_steps'"):
        clicks.train(data, tmp_path / "other", "logistic", max_steps=3)


def count_rows(data):
    """Counts the rows of all splits of a dataset."""
    opened = OpenedDataset.open(DataConfig(dataset=str(data)), 0)
    return sum(opened.rows(split).num_rows for split in ("train", "validation", "test"))
