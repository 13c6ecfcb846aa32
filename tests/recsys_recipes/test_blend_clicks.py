# SPDX-License-Identifier: Apache-2.0
"""A DLRM and a logistic regression, added: weighed by validation rows, saved, tested, deployed."""

import numpy as np
import pytest
import scipy
import torch
from pyarrow import parquet

from dlrm.config import DataConfig
from dlrm.scripts import main as dlrm_main
from dlrm.serve.score import read_requests
from dlrm.train.metrics import roc_auc
from recsys.models.logistic.regression import log_losses
from recsys_recipes import fitted
from recsys_recipes.blending.clicks.serving import ServedClicksBlend
from recsys_recipes.blending.clicks.stored import StoredClicksBlend
from recsys_recipes.models import MODELS, model_of
from recsys_recipes.serving import deploy
from recsys_recipes.serving.raw_clicks import ServedRawClicks
from tests import harness
from tests.dlrm.conftest import DlrmProgram, dataset, trained  # noqa: F401
from tests.harness import assert_tells
from tests.preproc.clicks.schema_log import (
    LINE,
    text_of,
)
from tests.tools import needs

CPU = torch.device("cpu")


def run(name, *flags, status=0):
    assert fitted.main(["fitted", name, *map(str, flags)]) == status


def logits_of(data, checkpoint, folder, split="test"):
    """Returns labels and logits of the predictions of a checkpoint."""
    file = folder / "predictions.parquet"
    words = (f"--load_checkpoint_path={checkpoint}", f"--predictions={file}")
    words += (f"--dataset={data}", f"--eval_split={split}", f"--log_path={folder / 'p'}")
    name = model_of(checkpoint).name
    if name == "dlrm":
        assert harness.call(dlrm_main, "--mode=predict", *words) == 0
    else:
        run(name, "--mode=predict", *words)
    table = parquet.read_table(file)
    return (np.array(table[name].to_numpy()) for name in ("label", "logit"))


@pytest.fixture(scope="module")
def hashing(with_lists, tmp_path_factory):
    """A DLRM of the dataset with lists, that ids are hashed for."""
    folder = tmp_path_factory.mktemp("hashing")
    of_model = ("--lr=0.1", "--hash_indices", "--max_table_size=40", "--batch_norm")
    DlrmProgram(folder).train(with_lists[0], folder / "dlrm", *of_model)
    return folder / "dlrm"


@pytest.fixture(scope="module", params=["plain", "lists"])
def blended(request, dataset, trained, with_lists, hashing, tmp_path_factory):  # noqa: F811
    """A dataset, the run of the DLRM, that of the blend, and its log."""
    folder = tmp_path_factory.mktemp("blend")
    data, dlrm = (dataset, trained) if request.param == "plain" else (with_lists[0], hashing)
    flags = (f"--dataset={data}", f"--blend_of={dlrm}", "--baselines=")
    log = folder / "log"
    run("blend_clicks", *flags, f"--save_checkpoint_path={folder / 'run'}", f"--log_path={log}")
    return data, dlrm, folder / "run", log


@pytest.fixture(scope="module")
def parts(blended, tmp_path_factory):
    """Runs of the DLRM and of the logistic regression alone."""
    data, dlrm, *_ = blended
    folder = tmp_path_factory.mktemp("logistic")
    hashes = ("--hash_indices",) if StoredClicksBlend.open(blended[2]).hash_indices else ()
    flags = (f"--save_checkpoint_path={folder / 'run'}", f"--log_path={folder / 'log'}")
    run("logistic", f"--dataset={data}", *hashes, "--baselines=", *flags)
    return dlrm, folder / "run"


def test_the_weights_have_the_least_loss_of_the_validation_rows(blended, parts, tmp_path):
    data, _, folder, _ = blended
    (labels, first), (_, second) = (logits_of(data, part, tmp_path, "validation") for part in parts)
    labels = labels > 0

    def loss(weights):
        return log_losses(weights[0] * first + weights[1] * second + weights[2], labels).mean()

    found = StoredClicksBlend.open(folder).weights.numpy()
    least = scipy.optimize.minimize(
        loss, [1, 0, 0], method="Nelder-Mead", options={"maxiter": 2000}
    )
    assert loss(found) - least.fun < 1e-5
    (_, of_first), (_, of_second), (_, of_blend) = (
        logits_of(data, each, tmp_path) for each in (*parts, folder)
    )
    expected = found[0] * of_first + found[1] * of_second + found[2]
    np.testing.assert_allclose(of_blend, expected, rtol=1e-5, atol=1e-5)


def test_a_blend_is_tested_beside_its_parts(blended, parts, tmp_path):
    data, _, folder, log = blended
    again = tmp_path / "again"
    loaded = (f"--dataset={data}", f"--load_checkpoint_path={folder}", "--baselines=")
    run("blend_clicks", "--mode=test", *loaded, f"--log_path={again}")
    before, after = harness.last_figures(log), harness.last_figures(again)
    timed = ("avg_inference_latency", "average_test_throughput")
    assert {n: v for n, v in after.items() if n not in timed} == {
        n: v for n, v in before.items() if n not in timed
    }
    for name, part in zip(("dlrm", "logistic"), parts, strict=True):
        labels, logits = (torch.tensor(each) for each in logits_of(data, part, tmp_path))
        assert after[f"{name}_auc"] == pytest.approx(roc_auc(logits, labels > 0), abs=1e-4)
        lead = after["auc"] - after[f"{name}_auc"]
        assert after[f"lead_{name}_auc"] == pytest.approx(lead, abs=1e-6)
    assert "logistic" in after["verdict"]
    assert model_of(folder) is MODELS["blend_clicks"]


def test_served_answers_are_the_predictions(blended, tmp_path):
    data, _, folder, _ = blended
    _, expected = logits_of(data, folder, tmp_path)
    models = f"--repository={tmp_path / 'models'}"
    command = (f"--checkpoint={folder}", models, f"--dataset={data}", "--split=test")
    assert harness.call(deploy, *command) == 0
    served = ServedClicksBlend.open(tmp_path / "models" / "blend_clicks" / "1", CPU)
    requests = read_requests(DataConfig(dataset=str(data)), served.deployment.signature, 300)
    answers = [served.respond(request)["logit"][:, 0] for _, request in requests]
    np.testing.assert_allclose(np.concatenate(answers), expected, rtol=1e-5, atol=1e-5)
    assert harness.call(deploy, *command, "--quantize=int8") == 2
    assert harness.call(deploy, *command, "--backend=native") == 2


@needs("compiled Criteo kernel")
@pytest.mark.parametrize("blended", ["lists"], indirect=True)
def test_raw_rows_are_answered_as_those_of_the_dataset(blended, with_lists, tmp_path):
    data, _, folder, _ = blended
    _, expected = logits_of(data, folder, tmp_path)
    models = f"--repository={tmp_path / 'models'}"
    command = (f"--checkpoint={folder}", "--raw", f"--dataset={data}", models)
    assert harness.call(deploy, *command) == 0
    served = ServedRawClicks.open(tmp_path / "models" / "blend_clicks" / "1", CPU)
    lines = text_of(with_lists[1], LINE).splitlines()[1:]
    answer = served.respond({"line": np.array([[line] for line in lines], np.object_)})
    np.testing.assert_allclose(answer["logit"][:, 0], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("blended", ["plain"], indirect=True)
def test_what_cannot_be_blended_is_refused(blended, parts, with_lists, tmp_path, capsys):
    data, dlrm, _, _ = blended
    common = f"--log_path={tmp_path / 'log'}"
    for flags, settings in (
        ((f"--dataset={data}",), ["--blend_of"]),
        ((f"--dataset={data}", f"--blend_of={parts[1]}"), ["--blend_of", parts[1]]),
        ((f"--dataset={with_lists[0]}", f"--blend_of={dlrm}"), [dlrm, with_lists[0]]),
        (
            (f"--dataset={data}", f"--blend_of={dlrm}", "--eval_split=validation"),
            ["--eval_split"],
        ),
    ):
        run("blend_clicks", *flags, common, status=2)
        assert_tells(capsys.readouterr().err, *settings)
