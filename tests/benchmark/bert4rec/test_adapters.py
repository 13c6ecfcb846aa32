# SPDX-License-Identifier: Apache-2.0
import pytest
import torch

from benchmark.bert4rec.adapters import (
    COLUMNS,
    METHODS,
    METRICS,
    PRETRAINED,
    Setup,
    Tuned,
    collect,
    open_recipe,
    records,
    table,
    training_step,
)
from tests.bert4rec.conftest import make_program, make_sequences, write_dataset


@pytest.fixture(scope="module")
def setup(tmp_path_factory):
    folder = tmp_path_factory.mktemp("adapters")
    write_dataset(folder / "dataset", make_sequences())
    program = make_program(folder)
    base = folder / "base"
    program(f"--dataset_path={folder / 'dataset'}", f"--export_root={base}", "--max_steps=2")
    return Setup("fast", folder / "dataset", base, folder, steps=1, threads=1)


@pytest.mark.parametrize("method", METHODS)
def test_a_measured_step_trains_what_the_method_trains(setup, method):
    recipe = open_recipe(setup, method)
    step = training_step(recipe)
    before = {name: p.detach().clone() for name, p in recipe.model.named_parameters()}
    step()
    moved = {n for n, p in recipe.model.named_parameters() if not torch.equal(p, before[n])}
    assert moved
    assert all(name.startswith("adapters.") for name in moved) == (method != "full")


def test_the_table_and_the_records_hold_quality_and_cost():
    tuned = {PRETRAINED: Tuned(0.0, dict.fromkeys(METRICS, 0.25))}
    tuned["lora"] = Tuned(0.003, dict.fromkeys(METRICS, 0.5))
    cost = {name: [4.0, 1.0, 2.0] for name in COLUMNS if name not in METRICS}
    samples = collect(tuned, {"lora": cost})
    quality = " | ".join(["0.5000"] * len(METRICS))
    assert f"| lora | 0.003 | {quality} | 2.00 | 2.00 | 2.00 | 2.00 |" in table(tuned, samples)
    made = records(samples, {"dataset": "ml-100k"})
    assert {(r.candidate, r.metric, r.value) for r in made if r.metric == "step_ms"} == {
        ("lora", "step_ms", 2.0)
    }
    assert len(made) == len(METRICS) + len(COLUMNS)
