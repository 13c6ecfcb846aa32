# SPDX-License-Identifier: Apache-2.0
"""Fitted models of clicks on a real server: their answers are the offline predictions."""

import json
import re

import pytest

from recsys_recipes import fitted
from tests.harness import assert_tells

pytestmark = pytest.mark.triton_server


@pytest.fixture(scope="module")
def runs(server, dataset, dlrm_run, tmp_path_factory):
    """The runs of a logistic regression and of its blend with a DLRM, which are served."""
    folder = tmp_path_factory.mktemp("fitted")
    common = (f"--dataset={dataset}", "--baselines=", f"--log_path={folder / 'log'}")
    for name, flags in (("logistic", ()), ("blend_clicks", (f"--blend_of={dlrm_run}",))):
        saved = f"--save_checkpoint_path={folder / name}"
        assert fitted.main(["fitted", name, *common, *flags, saved]) == 0
        server.serve(name, folder / name)
    return folder


@pytest.mark.parametrize("model", ["logistic", "blend_clicks"])
def test_a_split_through_the_server_has_the_figures_of_the_checkpoint(ask, dataset, runs, model):
    paths = (f"--dataset={dataset}", f"--checkpoint={runs / model}")
    said = ask("--mode=test", f"--model={model}", *paths, "--tolerance=1e-6")
    served, of_checkpoint = said.splitlines()
    assert_tells(served, 1250, "version 1")
    first, second = (re.search(r"auc (\d\.\d+)", line)[1] for line in (served, of_checkpoint))
    assert first == second
    assert float(first) > 0.8


@pytest.mark.parametrize("model", ["logistic", "blend_clicks"])
def test_requests_are_answered_or_refused(ask, runs, model, tmp_path):
    file = tmp_path / "request.json"
    row = {"numerical": [[0.5, 0, -1]], "categorical": [[1, 2, 3, 4]]}
    file.write_text(json.dumps(row))
    (line,) = ask(f"--model={model}", f"--request={file}").splitlines()
    assert 0 < json.loads(line)["probability"][0][0] < 1
    file.write_text(json.dumps(row | {"categorical": [[5, 2, 3, 4]]}))
    assert_tells(ask(f"--model={model}", f"--request={file}", status=2), "categorical", 5)


def test_latency_is_measured(ask, dataset, runs):
    flags = (f"--dataset={dataset}", "--batch_sizes=8", "--seconds=0.2")
    assert len(ask("--mode=load", "--model=logistic", *flags).splitlines()) == 2
