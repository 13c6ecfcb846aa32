# SPDX-License-Identifier: Apache-2.0
"""docs/*_in_250_lines.py say what the product computes: both have the same loss at every step."""

import ast
import json
import sys

import numpy as np
import pytest

from tests import harness

STEPS = 200
PROGRAMS = {
    name: harness.REPOSITORY / "docs" / f"{name}_in_250_lines.py" for name in ("dlrm", "bert4rec")
}
LIBRARIES = {"numpy", "pyarrow", "safetensors", "torch", "yaml"}
FLAGS = {
    "dlrm": (
        # Few numbers pass a ReLU, so that none is so close to 0 that rounding decides.
        "--embedding_dim=4",
        "--bottom_mlp_sizes=8,4",
        "--top_mlp_sizes=8,1",
        "--batch_size=48",
        "--lr=0.2",
        "--warmup_steps=20",
        "--decay_start_step=100",
        "--decay_steps=150",
    ),
    "bert4rec": (
        "--max_len=12",
        "--emb_dim=32",
        "--batch_size=32",
        "--lr=0.003",
        "--warmup_steps=40",
        "--clip_norm=0.5",
    ),
}
"""Flags of both programs."""
OF_PRODUCT = {
    "dlrm": ("--epochs=100",),
    "bert4rec": (
        *("--preset=fast", "--dropout=0", "--item_init=normal", "--epochs=1000"),
        "--test_freq=1000",  # only the last step is validated, so it is the best one
    ),
}
CLICKS_SCHEMA = {
    "label": {"column": "bought", "positive": ["1"], "negative": ["0"]},
    "split": {"fractions": [0.8, 0.1, 0.1]},
    "columns": [
        {"name": "price", "role": "numerical", "type": "float"},
        {"name": ["shop", "item"], "role": "categorical", "type": "string"},
    ],
}


def run(module, *arguments):
    """Runs a program of the product to its end."""
    harness.forked("-m", module, *arguments)


def make_criteo(folder):
    run("preproc.generate_criteo", f"--output={folder / 'raw'}", "--rows=6400", "--best_auc=0.95")
    log, fractions = folder / "raw" / "train.txt", "--split_fractions=0.8,0.1,0.1"
    output = f"--output={folder / 'dataset'}"
    run("preproc.clicks", f"--input={log}", output, "--preset=kaggle", fractions)


def make_clicks(folder):
    """A log with a schema, many of whose items are too rare for an id."""
    generator = np.random.default_rng(0)
    shops, items = generator.integers(0, (30, 3000), (6400, 2)).T
    bought, prices = generator.random(6400) < shops / 30, generator.exponential(10, 6400)
    rows = zip(bought, prices, shops, items, strict=True)
    lines = [f"{buys:d},{price:.2f},shop {shop},item {item}" for buys, price, shop, item in rows]
    log, schema = folder / "log.csv", folder / "schema.yaml"
    log.write_text("\n".join(["bought,price,shop,item", *lines, ""]))
    schema.write_text(json.dumps(CLICKS_SCHEMA))
    output = f"--output={folder / 'dataset'}"
    run("preproc.clicks", f"--input={log}", f"--schema={schema}", output)


def make_ratings(folder):
    sizes = ("--users=200", "--items=20", "--interactions=4000", "--continuation=0.8")
    run("preproc.generate_ratings", f"--output={folder / 'ratings.csv'}", *sizes)
    paths = (f"--input={folder / 'ratings.csv'}", f"--output={folder / 'dataset'}")
    # Without the lowest ratings, some histories have three items: one of them is for training.
    run("preproc.movielens", *paths, "--min_rating=3", "--min_user_count=3")


def train_both(model, folder):
    """Trains by the product and by its specification.

    Returns:
        (losses of the product, its last figures by name, losses of the specification, its figures).
    """
    shared = (f"--dataset={folder / 'dataset'}", f"--max_steps={STEPS}", *FLAGS[model])
    log = folder / "log.json"
    quiet = (f"--log_path={log}", "--print_freq=1", "--base_device=cpu", "--num_threads=1")
    run("recsys_recipes", "train", model, *shared, *OF_PRODUCT[model], *quiet, "--baselines=")
    data = [record["data"] for record in harness.read_log(log)]
    losses = np.array([each["loss"] for each in data if "step_time" in each])
    figures = {name: value for each in data for name, value in each.items()}
    *lines, last = harness.python(PROGRAMS[model], *shared).stdout.splitlines()
    steps, specified = zip(*(line.split() for line in lines), strict=True)
    assert [int(step) for step in steps] == [*range(1, STEPS + 1)]
    words = last.split()
    found = dict(zip(words[::2], map(float, words[1::2]), strict=True))
    return losses, figures, np.array(specified, np.float64), found


def assert_same(losses, specified):
    """Asserts that two curves are equal, and fall."""
    assert len(losses) == len(specified) == STEPS
    np.testing.assert_allclose(losses, specified, rtol=0, atol=1e-6)
    assert losses[-20:].mean() < losses[:20].mean() - 0.05


@pytest.mark.parametrize("make", [make_criteo, make_clicks])
def test_dlrm_is_what_its_specification_says(tmp_path, make):
    make(tmp_path)
    losses, figures, specified, found = train_both("dlrm", tmp_path)
    assert_same(losses, specified)
    assert found["auc"] == pytest.approx(figures["auc"], abs=1e-4)


def test_bert4rec_is_what_its_specification_says(tmp_path):
    make_ratings(tmp_path)
    losses, figures, specified, found = train_both("bert4rec", tmp_path)
    assert_same(losses, specified)
    for name in ("hr@10", "ndcg@10"):
        assert found[name] == pytest.approx(figures[f"test_full_{name}"], abs=2e-3)


@pytest.mark.parametrize("path", PROGRAMS.values(), ids=PROGRAMS)
def test_a_specification_is_short_and_stands_alone(path):
    text = path.read_text()
    assert len(text.splitlines()) <= 250
    imported = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            imported |= {name.name.split(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add("." * node.level + (node.module or "").split(".")[0])
    assert imported - sys.stdlib_module_names <= LIBRARIES
    assert not imported & {"importlib", "runpy", "subprocess"}
