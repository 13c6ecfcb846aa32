# SPDX-License-Identifier: Apache-2.0
"""Vectors of numerical features: their definition, their knots, and runs with them."""

import itertools

import numpy as np
import pytest
import torch

from dlrm.model.weights import DlrmCheckpoint
from dlrm.nn.numerical import NumericalEmbedding
from dlrm.train.statistics import find_knots
from recsys.data.click_columns import ClickColumns
from recsys.data.feature_spec import FeatureSpec
from recsys.data.split_binary import SplitBinaryReader, SplitBinaryWriter
from tests.checkpoints import assert_same
from tests.dlrm.conftest import NUM_NUMERICAL, ROWS, final, make_columns
from tests.dlrm.networks import batch, build, train_step

KINDS = ("bins", "piecewise_linear")
KNOTS = torch.tensor([[-1.0, 0.0, 0.5, 4.0], [0.0, 1.0, 1.0, 1.0], [2.0, 2.0, 2.0, 2.0]])
"""Of three features: one of three intervals, one of a single interval, one of a single value."""
VALUES = torch.tensor([-9.0, -1.0, -0.25, 0.0, 0.3, 0.5, 1.0, 2.0, 3.99, 4.0, 50.0])


def embedding(kind, dtype=torch.float32):
    torch.manual_seed(3)
    module = NumericalEmbedding(kind, len(KNOTS), 3, 5)
    module.set_knots(KNOTS)
    return module.to(dtype)


def vector(module, feature, x):
    """The definition, an interval at a time, in float64."""
    knots = KNOTS[feature].double().tolist()
    weight = module.weight[feature].detach().double()
    if module.bias is None:
        return weight[sum(x >= knot for knot in knots[1:-1])]
    total = module.bias[feature].detach().double().clone()
    for t, (low, high) in enumerate(itertools.pairwise(knots)):
        if low < high:
            total += weight[t] * min(max((x - low) / (high - low), 0), 1)
    return total.relu()


@pytest.mark.parametrize("kind", KINDS)
def test_each_number_has_the_vector_of_the_definition(kind):
    module = embedding(kind)
    found = module(VALUES.unsqueeze(1).expand(-1, len(KNOTS)))
    assert found.shape == (len(VALUES), len(KNOTS), 5)
    for row, x in enumerate(VALUES.tolist()):
        for feature in range(len(KNOTS)):
            expected = vector(module, feature, x).float()
            torch.testing.assert_close(found[row, feature], expected)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_those_of_finite_differences(kind):
    module = embedding(kind, torch.float64)
    numbers = VALUES.double().unsqueeze(1).expand(-1, len(KNOTS)).contiguous()
    parameters = [p.detach().requires_grad_() for p in module.parameters()]
    names = [name for name, _ in module.named_parameters()]

    def forward(*values):
        state = dict(zip(names, values, strict=True))
        return torch.func.functional_call(module, state, (numbers,))

    assert torch.autograd.gradcheck(forward, parameters)


@pytest.mark.parametrize("rows", [0, 1, 7])
@pytest.mark.parametrize("kind", KINDS)
def test_any_number_of_rows(kind, rows):
    assert embedding(kind)(torch.zeros(rows, len(KNOTS))).shape == (rows, len(KNOTS), 5)


@pytest.mark.parametrize("interaction", ["dot", "cuda_dot", "cat", "dcnv2"])
@pytest.mark.parametrize("num_tables", [0, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_each_interaction_takes_the_vectors_of_numbers(kind, num_tables, interaction):
    sizes = (7, 3, 50)[:num_tables]
    settings = {"numerical_embedding": kind, "interaction_op": interaction, "numerical_bins": 4}
    model = build(sizes=sizes, **settings, dcn_low_rank_dim=3)
    data = batch(sizes=sizes)
    answers = model.eval()(data.numerical, data.ids)
    knots = model.networks[0].numerical_embedding.knots.clone()
    model.set_knots(knots + 1)
    assert not torch.equal(answers, model.eval()(data.numerical, data.ids))
    before = [p.detach().clone() for p in model.mlp_parameters()]
    train_step(model, "adam")(data, 0.1)
    assert not any(map(torch.equal, before, model.mlp_parameters()))


def test_knots_are_quantiles_of_the_training_rows(dataset):
    knots = find_knots(SplitBinaryReader(dataset, "train"), ROWS["train"], 8)
    numbers = make_columns(ROWS["train"], 0).numerical.astype(np.float32)
    assert knots.shape == (NUM_NUMERICAL, 9)
    for own, values in zip(knots.numpy(), numbers.T, strict=True):
        assert (own[0], own[-1]) == (values.min(), values.max())
        bins = np.searchsorted(own[1:-1], values, side="right")
        assert np.bincount(bins, minlength=8) == pytest.approx(ROWS["train"] / 8, rel=0.02)


def test_a_value_of_many_rows_has_an_interval_and_few_values_one_each(tmp_path):
    many = np.concatenate([np.zeros(900), np.linspace(1, 2, 100)])
    few = np.repeat([1, 2, 5], [500, 300, 200])
    write_dataset(tmp_path, np.stack([many, few, 0 * few], 1).astype(np.float16))
    heavy, distinct, constant = find_knots(SplitBinaryReader(tmp_path, "train"), 1000, 4).tolist()
    assert heavy[:2] == [0, 1]
    assert distinct == [1, 2, 5, 5, 5]
    assert constant == [0] * 5


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_keeps_the_knots_of_its_training_rows(program, dataset, tmp_path, kind):
    """A test and a resumed run take them from the checkpoint."""
    flags = (f"--numerical_embedding={kind}", "--numerical_bins=8", "--test_freq=20", "--seeds=2")
    flags = (*flags, "--interaction_op=cat", "--optimizer=adam", "--lr=0.01")
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    records = program.train(dataset, whole, *flags)
    for stop in (["--max_steps=13"], []):
        program.train(dataset, parts, *flags, *stop, "--resume")
    assert_same(parts, whole)
    model = DlrmCheckpoint.open(whole).load()
    knots = find_knots(SplitBinaryReader(dataset, "train"), ROWS["train"], 8)
    for network in model.networks:
        assert torch.equal(network.numerical_embedding.knots, knots)
    tested = program.test(dataset, whole)
    assert tested["auc"] == pytest.approx(final(records)["best_auc"], abs=1e-6)


def test_a_run_without_numbers_has_no_vectors_of_them(program, dataset, tmp_path):
    write_dataset(tmp_path / "ids", np.empty((512, 0), np.float16))
    message = program.refused(f"--dataset={tmp_path / 'ids'}", "--numerical_embedding=bins")
    assert "--numerical_embedding" in message
    message = program.refused(f"--dataset={dataset}", "--numerical_bins=1")
    assert "--numerical_bins" in message


def write_dataset(folder, numbers):
    """Writes a dataset of numbers and one categorical feature, all splits alike."""
    rows, features = numbers.shape
    folder.mkdir(exist_ok=True)
    spec = FeatureSpec.criteo((5,), features)
    spec.save(folder)
    ids = (np.arange(rows) % 5).astype(spec.categorical[0].dtype)
    columns = ClickColumns(np.arange(rows) % 2 == 0, numbers, (ids,))
    for split in ("train", "validation", "test"):
        with SplitBinaryWriter(folder / split, spec, rows) as writer:
            writer.write(0, columns)
