# SPDX-License-Identifier: Apache-2.0
"""Item tables with row gradients, accumulated batches, and the memory of a large catalogue."""

import dataclasses

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from bert4rec.config import Bert4RecConfig
from bert4rec.data.batches import TrainBatches, pack
from bert4rec.data.masking import draw_uniformly, next_item_batch
from bert4rec.data.windows import Windows
from bert4rec.model.loss import LossNetwork
from bert4rec.model.network import ItemRows
from bert4rec.nn.layout import SequenceLayout
from bert4rec.nn.targets import LabelledBatch
from bert4rec.train.step import build_step
from recsys.ratings.data.negatives import log_popularity
from recsys.train.optimizers.rows import RowGradients, norm_of_summed_rows
from tests.bert4rec.conftest import peak_mib
from tests.bert4rec.steps import (
    CPU,
    FLOAT32,
    NUM_ITEMS,
    SMALL,
    config,
    make_model,
    sequences,
    train,
)


def make_inputs(settings) -> LabelledBatch:
    windows = Windows(np.array([0, 1, 2]), np.zeros(3, np.int64), np.array([4, 1, 5]))
    inputs = next_item_batch(*pack(sequences(), windows, CPU))
    if settings.objective.loss == "full":
        return inputs
    generator = torch.Generator().manual_seed(1)
    drawn = draw_uniformly(NUM_ITEMS, settings.objective.num_negatives, generator, CPU)
    return dataclasses.replace(inputs, negatives=drawn)


@pytest.mark.parametrize("head", ["tied", "untied"])
@pytest.mark.parametrize("loss", ["sampled", "gbce"])
def test_row_gradients_are_those_of_autograd(head, loss):
    settings = config(head=head, loss=loss)
    inputs = make_inputs(settings)
    dense, rowwise = make_model(settings), make_model(settings)
    LossNetwork(dense, loss)(inputs).backward()
    item_rows = ItemRows(rowwise, ("embedding", "head", "bias"))
    LossNetwork(rowwise, loss)(inputs).backward()
    expected = {
        "embedding": dense.embedding.items.grad,
        "bias": dense.head.bias.grad.unsqueeze(1),
    }
    if head == "untied":
        expected["head"] = dense.head.weight.grad
    found = item_rows.take_row_gradients()
    assert {item_rows.names[of_table.table] for of_table in found} == expected.keys()
    for of_table in found:
        gradient = expected[item_rows.names[of_table.table]]
        summed = torch.zeros_like(gradient).index_add_(0, of_table.rows, of_table.gradients)
        torch.testing.assert_close(summed, gradient)
        torch.testing.assert_close(of_table.squared_norm(), gradient.square().sum())
        of_a_gpu = norm_of_summed_rows(of_table.rows, of_table.gradients)
        torch.testing.assert_close(of_a_gpu, gradient.square().sum())
    others = dict(rowwise.named_parameters())
    for name, parameter in dense.named_parameters():
        if others[name].requires_grad:
            torch.testing.assert_close(others[name].grad, parameter.grad)
        else:
            assert others[name].grad is None
    assert item_rows.take_row_gradients() == []


@pytest.mark.parametrize("head", ["tied", "untied"])
@pytest.mark.parametrize("temperature", [None, 0.1])
def test_the_full_softmax_is_over_the_scores_that_rank(head, temperature):
    settings = config(head=head, temperature=temperature)
    inputs, model = make_inputs(settings), make_model(settings)
    loss = LossNetwork(model, "full")(inputs)
    hidden = model(inputs.items, inputs.layout, inputs.targets, causal=True)
    logits = F.linear(hidden, model.item_vectors(), model.head.bias)
    expected = F.cross_entropy(logits, inputs.labels - 1)
    torch.testing.assert_close(loss, expected)
    expected = torch.autograd.grad(expected, tuple(model.parameters()))
    for gradient, other in zip(
        torch.autograd.grad(loss, tuple(model.parameters())), expected, strict=True
    ):
        torch.testing.assert_close(gradient, other)


@pytest.mark.parametrize("head", ["tied", "untied"])
@pytest.mark.parametrize("clip_norm", [None, 0.01])
def test_the_first_step_of_lazy_adam_is_that_of_adam(head, clip_norm, monkeypatch):
    # Later steps differ: lazy Adam leaves the moments of absent rows alone.
    settings = {"head": head, "loss": "sampled", "clip_norm": clip_norm}
    _, rows, row_loss = train(config(**settings), steps=1)
    monkeypatch.setattr(Bert4RecConfig, "updates_rows", False)
    _, dense, dense_loss = train(config(**settings), steps=1)
    torch.testing.assert_close(row_loss, dense_loss, rtol=1e-5, atol=0)
    for mine, other in zip(rows.parameters(), dense.parameters(), strict=True):
        # Adam divides by the root of the gradient's own square: where a gradient is a rounding
        # error its sign is chance, and that may move an element by twice the rate.
        close = torch.isclose(mine, other, rtol=1e-3, atol=1e-5)
        assert close.float().mean() > 0.99
        torch.testing.assert_close(mine, other, rtol=0, atol=0.021)


@pytest.mark.parametrize("head", ["tied", "untied"])
def test_a_step_leaves_rows_alone_that_no_batch_met(head):
    settings = config(head=head, loss="sampled", weight_decay=0.1)
    before, (_, after, _) = make_model(settings), train(settings, steps=2)
    table = "embedding.items" if head == "tied" else "head.weight"
    old, new = before.get_parameter(table), after.get_parameter(table)
    met = (old != new).any(1)
    assert 0 < int(met.sum()) < len(met)
    assert not torch.equal(before.blocks[0].qkv.weight, after.blocks[0].qkv.weight)


def test_accumulated_batches_are_one_large_batch():
    """Two batches to a step give the gradient of the mean over the targets of both."""
    settings = config(objective="causal", accumulation_steps=2, train_batch_size=3)
    _, trained, (loss,) = train(settings, steps=1)
    batches = next(TrainBatches(settings, sequences()).batches(0, 0)).batches
    lengths = [batch.layout.lengths() for batch in batches]
    assert lengths[0].sum() != lengths[1].sum()
    items, joined = torch.cat([batch.items for batch in batches]), torch.cat(lengths)
    layout = SequenceLayout.of_lengths(joined, int(joined.max()), len(items))
    plain = make_model(settings)
    expected = LossNetwork(plain, "full")(next_item_batch(items, layout))
    expected.backward()
    torch.testing.assert_close(loss, expected.detach())
    for found, parameter in zip(trained.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(found.grad, parameter.grad)


def test_the_row_factor_scales_the_gradient():
    settings = config(loss="sampled")
    step = build_step(settings, sequences(), make_model(settings), FLOAT32)
    (table, *_) = step.item_rows.stored_tables()
    rows, gradients = torch.tensor([3, 3]), torch.ones(2, SMALL["emb_dim"])
    step.row_optimizer.step(
        [RowGradients(0, rows, gradients)], torch.tensor(0.0), factor=torch.tensor(0.5)
    )
    assert table.shape[0] == NUM_ITEMS + 2
    # A tenth of the gradient: 1 in both lookups, halved.
    torch.testing.assert_close(
        step.row_optimizer.state[0]["first_moment"][3], torch.full((8,), 0.1)
    )


def test_popularity_counts_each_item_once_more_than_it_is_trained_on():
    popularity = log_popularity(sequences()).exp()
    total = (sequences().lengths - 2).sum() + NUM_ITEMS
    expected = torch.full((NUM_ITEMS // 2,), 1 / total)
    torch.testing.assert_close(popularity[NUM_ITEMS // 2 :], expected)
    torch.testing.assert_close(popularity.sum(), torch.tensor(1.0))


def test_negatives_cover_the_catalogue():
    drawn = draw_uniformly(4, 4000, torch.Generator().manual_seed(0), CPU)
    assert sorted(set(drawn.tolist())) == [1, 2, 3, 4]


def test_gbce_needs_fewer_negatives_than_items():
    settings = config(loss="gbce", num_negatives=50)
    with pytest.raises(ValueError, match="`num_negatives` 50"):
        build_step(settings, sequences(), make_model(settings), FLOAT32)


@pytest.mark.parametrize(
    ("head", "loss"),
    [
        ("untied", "full"),
        pytest.param("tied", "full", marks=pytest.mark.release),
        pytest.param("tied", "sampled", marks=pytest.mark.release),
        pytest.param("untied", "sampled", marks=pytest.mark.release),
    ],
)
def test_half_a_million_items_train_within_six_gibibytes(tmp_path, head, loss):
    flags = (
        *("--dataset_name=random", "--random_user_count=40", "--random_item_count=500000"),
        *("--random_size=800", "--emb_dim=128", "--max_len=16", "--train_batch_size=8"),
        *("--dupe_factor=1", "--windows=recent", "--max_steps=3"),
        "--baselines=",
    )
    assert peak_mib(tmp_path, *flags, f"--head={head}", f"--loss={loss}") < 6 * 1024
