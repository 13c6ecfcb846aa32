# SPDX-License-Identifier: Apache-2.0
"""A fitted model on a real server: its answers are the lists of the offline test."""

import json
import re

import pytest

from recsys_recipes import fitted
from tests.bert4rec.conftest import NUM_USERS, raw_id
from tests.harness import assert_tells
from tests.triton.conftest import title

pytestmark = pytest.mark.triton_server


@pytest.fixture(scope="module")
def knn(server, ratings, tmp_path_factory):
    """The run of an ItemKNN; it is served with item numbers, and by raw ids and titles."""
    folder = tmp_path_factory.mktemp("item_knn")
    flags = [f"--dataset_path={ratings}", f"--export_root={folder / 'run'}", "--baselines="]
    assert fitted.main(["fitted", "item_knn", *flags, f"--log_path={folder / 'log'}"]) == 0
    server.serve("knn", folder / "run")
    server.serve("named_knn", folder / "run", f"--raw_ids={ratings}", "--titles")
    return folder / "run"


def figures(line):
    return dict(re.findall(r"(hr@10|ndcg@10) (\d\.\d+)", line))


@pytest.mark.parametrize("model", ["knn", "named_knn"])
def test_a_split_through_the_server_has_the_figures_of_the_checkpoint(ask, ratings, knn, model):
    paths = (f"--dataset={ratings}", f"--checkpoint={knn}")
    said = ask("--mode=test", f"--model={model}", *paths, "--tolerance=1e-7")
    served, of_checkpoint = said.splitlines()
    assert_tells(served, NUM_USERS, "version 1")
    assert figures(served) == figures(of_checkpoint)
    assert float(figures(served)["hr@10"]) > 0.5


def test_raw_ids_and_titles_are_answered(ask, knn, tmp_path):
    request = tmp_path / "request.json"
    request.write_text(json.dumps({"history": [[raw_id(3), raw_id(4)]]}))
    (line,) = ask("--model=named_knn", f"--request={request}").splitlines()
    answer = json.loads(line)
    assert raw_id(5) in answer["items"][0][:3]
    assert title(5) in answer["titles"][0][:3]
    request.write_text(json.dumps({"history": [["nothing"]]}))
    assert_tells(ask("--model=named_knn", f"--request={request}", status=2), "nothing", "history")
