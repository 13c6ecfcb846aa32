# SPDX-License-Identifier: Apache-2.0
"""Own ratings from Python, as the commands take them."""

import json

import numpy as np
import pytest
from pyarrow import compute, csv

from recsys_recipes import ratings
from tests import harness

COLUMNS = {"user": "userId", "item": "movieId", "rating": "rating", "timestamp": "timestamp"}


def test_a_table_of_ratings_becomes_recommendations(real_data, tmp_path):
    """As by the commands, on the same file."""
    file = real_data / "ml-latest-small" / "ratings.csv.gz"
    table = csv.read_csv(file)
    table = table.filter(compute.less(table["userId"], 60))
    csv.write_csv(table, tmp_path / "ratings.csv")
    dataset = ratings.prepare(table, tmp_path / "data", columns=COLUMNS, progress="none")
    of_file = ratings.prepare(tmp_path / "ratings.csv", tmp_path / "file", progress="none")
    for path in of_file.rglob("*.parquet"):
        assert (dataset / path.relative_to(of_file)).read_bytes() == path.read_bytes()
    settings = {"preset": "fast", "max_steps": 15, "base_device": "cpu", "emb_dim": 32}
    run = ratings.train(dataset, tmp_path / "run", **settings)
    histories = [[1.0, np.float32(50), 110], ["no such item"], [260]]
    lists = ratings.recommend(histories, dataset, run, top_k=3, base_device="cpu")
    assert [len(items or ()) for items in lists["items"].to_pylist()] == [3, 0, 3]
    for wrong in (1.5, 1e17, float("nan")):
        with harness.refusal(wrong):
            ratings.recommend([[1, wrong]], dataset, run, top_k=3, base_device="cpu")
    with harness.refusal("'50'"):
        ratings.recommend(["50", "110"], dataset, run, top_k=3, base_device="cpu")
    with harness.refusal("'top'"):
        ratings.recommend([[1]], dataset, run, top=3)
    (tmp_path / "histories").write_text("1 50 110\nnone\n260\n")
    done = harness.forked(
        *("-m", "recsys_recipes", "recommend", f"--dataset={dataset}", "--top_k=3"),
        *(f"--checkpoint={run}", f"--recommend_input={tmp_path / 'histories'}"),
        *("--output_format=json", "--base_device=cpu"),
    )
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert [answer.get("items") for answer in answers] == lists["items"].to_pylist()
    assert [answer.get("scores") for answer in answers] == [
        scores and pytest.approx(scores, rel=1e-5) for scores in lists["scores"].to_pylist()
    ]
    quiet = {"baselines": []}
    knn = ratings.train(dataset, tmp_path / "knn", "item_knn", neighbours=20, **quiet)
    blend = ratings.train(dataset, tmp_path / "blend", "blend", blend_of=run, **quiet)
    for other in (knn, blend):
        found = ratings.recommend(histories, dataset, other, top_k=3)
        assert [len(items or ()) for items in found["items"].to_pylist()] == [3, 0, 3]
        assert found != lists
        metrics = ratings.test(dataset, other, baselines=[])
        assert metrics == harness.read_log(other / "log.json")[-1]["data"]


def test_what_is_wrong_raises_errors_that_name_it(tmp_path):
    with harness.refusal("__arrow_c_stream__", "dict"):
        ratings.prepare({"user": [1]}, tmp_path / "data")
    with harness.refusal("`columns`", "'user=u'"):
        ratings.prepare(tmp_path, tmp_path / "data", columns={"user": "u"})
    with harness.refusal("'dlrm'", "item_knn"):
        ratings.train(tmp_path, tmp_path / "run", "dlrm")
    for name, meant in (("dataset_path", "dataset"), ("config", "preset")):
        with harness.refusal(repr(name), repr(meant)):
            ratings.train(tmp_path, tmp_path / "run", **{name: tmp_path})
    with harness.refusal(tmp_path, settings=("dataset",)):
        ratings.train(tmp_path, tmp_path / "run")
