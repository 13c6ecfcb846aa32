# SPDX-License-Identifier: Apache-2.0
"""What editors and type checkers know of the settings of `rr.clicks` and `rr.ratings`."""

import os
import re

import pytest

from tests import harness
from tests.repo import python_stubs

PROGRAM = """\
from pathlib import Path
from typing import Any

import recsys_recipes as rr
from recsys_recipes import clicks

frame: Any = None
given: dict[str, Any] = {}
names = {"user": "customer", "item": "sku"}
data = rr.ratings.prepare(frame, "data", columns=names, min_rating=3, id_type="string")
rr.ratings.prepare(frame, "data", columns="user=customer,item=sku", **given)
rr.ratings.prepare(frame, "data", id_type="text")  # refused
rr.ratings.prepare(frame, "data", minimum=3)  # refused
run = rr.ratings.train(data, "run", preset="fast", lr=1, amp=True, checkpoint=Path("other"))
rr.ratings.train(data, "run", "markov", window=5, decay=0.9)
rr.ratings.train(data, "run", "item_knn", neighbours=20, baselines=[])
rr.ratings.train(data, "run", "item_knn", neighbors=20)  # refused
rr.ratings.train(data, "run", "item_knn", neighbours="20")  # refused
rr.ratings.train(data, "run", neighbours=20)  # refused
rr.ratings.train(data, "run", "ease", ridge=100.0)
rr.ratings.train(data, "run", "gru", emb_dim=64)
rr.ratings.train(data, "run", "blend", blend_of=run)
rr.ratings.train(data, "run", "auto", budget="10m")
rr.ratings.train(data, "run", "auto", emb_dim=64)  # refused
rr.ratings.train(data, "run", "dlrm")  # refused
for model in ("ease", "gru"):
    rr.ratings.train(data, "run", model, last_items=5)
hit_rate: float = rr.ratings.test(data, run, baselines=["markov"])["test_full_hr@10"]
rr.ratings.test(data, run, max_steps=5)  # refused
rr.ratings.recommend([["B01"]], data, run, top_k=5, base_device="cpu")
rr.ratings.recommend([["B01"]], data, run, checkpoint=run)  # refused
clicks.prepare(frame, "data", schema={}, memory_limit="4GiB", split_rows=None, format=["split"])
clicks.prepare(frame, "data", split_fractions=(0.8, 0.1, 0.1), dictionaries=data)
clicks.prepare(frame, "data", split_fractions=0.8)  # refused
clicks.train(data, "run", bottom_mlp_sizes=[64, 16], interaction_op="dot", budget="10m")
clicks.train(data, "run", interaction_op="sum")  # refused
clicks.train(data, "run", "logistic", dataset_subset=0.5)
clicks.train(data, "run", "logistic", seeds=3)  # refused
clicks.train(data, "run", "blend_clicks", blend_of=run)
clicks.train(data, "run", "auto", num_threads=1)
clicks.test(data, run, eval_split="validation", gauc_by="C1")
clicks.test(data, run, mode="train")  # refused
clicks.predict(frame, data, run, test_batch_size=4096)
clicks.predict(frame, data, run, test_batch_size=None)  # refused
"""


@pytest.mark.parametrize("data", python_stubs.STUBS)
def test_the_stubs_have_every_setting(data):
    text = python_stubs.render(data)
    if os.environ.get("RECIPES_REWRITE_GOLDEN"):
        python_stubs.STUBS[data].write_text(text)
    assert text == python_stubs.STUBS[data].read_text(), "run `make golden` and review the diff"


def test_a_type_checker_refuses_settings_that_a_function_does_not_take(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    done = harness.python(
        *("-m", "mypy", "--strict", "--ignore-missing-imports", "--cache-dir", os.devnull),
        "program.py",
        folder=tmp_path,
        status=1,
        MYPYPATH=str(harness.REPOSITORY),
    )
    refused = {(f, int(n)) for f, n in re.findall(r"^(\S+):(\d+): error: ", done.stdout, re.M)}
    lines = enumerate(PROGRAM.splitlines(), 1)
    expected = {("program.py", n) for n, line in lines if line.endswith("# refused")}
    assert refused == expected, done.stdout
