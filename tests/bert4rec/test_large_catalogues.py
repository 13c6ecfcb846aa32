# SPDX-License-Identifier: Apache-2.0
import dataclasses
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from benchmark.processes import run_process
from bert4rec.config import Bert4RecConfig
from bert4rec.data.batches import pack, training_batches
from bert4rec.data.masking import next_item_batch
from bert4rec.data.negative_sampler import NegativeSampler, log_popularity
from bert4rec.data.windows import Windows
from bert4rec.model.loss import LossInputs, LossNetwork
from bert4rec.model.network import Bert4Rec, ItemRows
from bert4rec.train.step import build_sampler, build_step
from recsys.data.sequences import Sequences
from recsys.train.optimizers.precision import Precision
from recsys.train.optimizers.rows import RowGradients, norm_of_summed_rows

NUM_ITEMS = 50
SMALL = {
    "max_len": 8, "emb_dim": 8, "nhead": 2, "num_layers": 2, "dropout": 0.0,
    "attention_dropout": 0.0, "windows": "recent", "dupe_factor": 1, "num_negatives": 12,
    "train_batch_size": 6,
}  # fmt: skip
CPU = torch.device("cpu")


def config(**settings):
    return Bert4RecConfig.from_dict(SMALL | settings)


def sequences() -> Sequences:
    generator = np.random.default_rng(0)
    lengths = generator.integers(5, 12, 20)
    offsets = np.concatenate([[0], lengths.cumsum()])
    # The upper half of the catalogue occurs in no history.
    items = generator.integers(1, NUM_ITEMS // 2, offsets[-1]).astype(np.int32)
    return Sequences(items, offsets, NUM_ITEMS)


def make_model(settings) -> Bert4Rec:
    torch.manual_seed(0)
    model = Bert4Rec(settings.model, NUM_ITEMS)
    with torch.no_grad():
        model.head.bias.normal_(0, 0.1)
    return model


def make_inputs(settings) -> LossInputs:
    windows = Windows(np.array([0, 1, 2]), np.zeros(3, np.int64), np.array([4, 1, 5]))
    items, layout = pack(sequences(), windows, CPU)
    asked = next_item_batch(items, layout)
    sampler = build_sampler(settings, sequences(), CPU)
    drawn = sampler.draw(torch.Generator().manual_seed(1))
    return LossInputs(
        items=asked.items,
        layout=asked.layout,
        targets=asked.targets,
        labels=asked.labels,
        causal=True,
        negatives=drawn.items,
        log_expected=drawn.log_expected,
    )


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
    inputs, model = make_inputs(config(loss="sampled")), make_model(settings)
    inputs = dataclasses.replace(inputs, negatives=None, log_expected=None)
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


def train(settings, steps=1, epoch=0):
    model = make_model(settings)
    step = build_step(settings, sequences(), model, Precision(device_type="cpu"))
    batches = training_batches(settings, sequences(), CPU).batches(epoch, 0)
    losses = [float(step(next(batches), 0.01)) for _ in range(steps)]
    return {name: p.detach() for name, p in model.named_parameters()}, losses


@pytest.mark.parametrize("head", ["tied", "untied"])
@pytest.mark.parametrize("clip_norm", [None, 0.01])
def test_the_first_step_of_lazy_adam_is_that_of_adam(head, clip_norm, monkeypatch):
    # Later steps differ: lazy Adam leaves the moments of absent rows alone.
    settings = {"head": head, "loss": "sampled", "clip_norm": clip_norm}
    rows, row_loss = train(config(**settings))
    monkeypatch.setattr(Bert4RecConfig, "updates_rows", False)
    dense, dense_loss = train(config(**settings))
    assert row_loss == pytest.approx(dense_loss, rel=1e-5)
    for name, tensor in dense.items():
        # Adam divides by the root of the gradient's own square: where a gradient is a rounding
        # error its sign is chance, and that may move an element by twice the rate.
        close = torch.isclose(rows[name], tensor, rtol=1e-3, atol=1e-5)
        assert close.float().mean() > 0.99
        torch.testing.assert_close(rows[name], tensor, rtol=0, atol=0.021)


@pytest.mark.parametrize("head", ["tied", "untied"])
def test_a_step_leaves_rows_alone_that_no_batch_met(head):
    settings = config(head=head, loss="sampled", weight_decay=0.1)
    before = {name: p.detach() for name, p in make_model(settings).named_parameters()}
    after, _ = train(settings, steps=2)
    table = "embedding.items" if head == "tied" else "head.weight"
    met = (before[table] != after[table]).any(1)
    assert 0 < int(met.sum()) < len(met)
    assert torch.equal(before[table][~met], after[table][~met])
    assert not torch.equal(before["blocks.0.qkv.weight"], after["blocks.0.qkv.weight"])


def test_accumulated_batches_are_one_large_batch():
    """Two batches to a step give the gradient of the mean over the targets of both."""
    settings = config(objective="causal", accumulation_steps=2, train_batch_size=3)
    joined = config(objective="causal", train_batch_size=6)
    model = make_model(settings)
    source = training_batches(settings, sequences(), CPU)
    step = build_step(settings, sequences(), model, Precision(device_type="cpu"))
    group = next(source.batches(0, 0))
    loss = step(group, 0.0)
    found = {name: p.grad.clone() for name, p in model.named_parameters()}
    asked = [next_item_batch(batch.items, batch.layout) for batch in group.batches]
    plain = make_model(joined)
    total = sum(len(a.labels) for a in asked)
    assert len(asked[0].labels) != len(asked[1].labels)
    expected_loss = 0.0
    network = LossNetwork(plain, "full")
    for a in asked:
        inputs = LossInputs(
            items=a.items, layout=a.layout, targets=a.targets, labels=a.labels, causal=True
        )
        batch_loss = network(inputs) * len(a.labels) / total
        batch_loss.backward()
        expected_loss += float(batch_loss.detach())
    assert float(loss) == pytest.approx(expected_loss, rel=1e-5)
    for name, parameter in plain.named_parameters():
        torch.testing.assert_close(found[name], parameter.grad)


def test_the_row_factor_scales_the_gradient():
    settings = config(loss="sampled")
    step = build_step(settings, sequences(), make_model(settings), Precision(device_type="cpu"))
    (table, *_) = step.item_rows.stored_tables()
    rows, gradients = torch.tensor([3, 3]), torch.ones(2, SMALL["emb_dim"])
    step.row_optimizer.step(
        [RowGradients(0, rows, gradients)], torch.tensor(0.0), factor=torch.tensor(0.5)
    )
    assert table.values.shape[0] == NUM_ITEMS + 2
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
    drawn = NegativeSampler(4, 4000, CPU).draw(torch.Generator().manual_seed(0))
    assert sorted(set(drawn.items.tolist())) == [1, 2, 3, 4]
    torch.testing.assert_close(drawn.log_expected, torch.full((4000,), 1000.0).log())


def test_gbce_needs_fewer_negatives_than_items():
    with pytest.raises(ValueError, match="`num_negatives` 50"):
        build_sampler(config(loss="gbce", num_negatives=50), sequences(), CPU)


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
    log = tmp_path / "log.json"
    used = run_process(
        [
            *(sys.executable, "-m", "bert4rec.scripts.main", "--dataset_name=random"),
            *("--random_user_count=200", "--random_item_count=500000", "--random_size=4000"),
            *("--emb_dim=128", "--max_len=16", "--train_batch_size=8", "--dupe_factor=1"),
            *("--windows=recent", "--max_steps=3", f"--head={head}"),
            *(f"--loss={loss}", f"--log_path={log}", "--num_threads=1", "--base_device=cpu"),
        ],
        env={"PYTHONPATH": str(Path(__file__).resolve().parents[2])},
    )
    assert "average_train_throughput" in log.read_text()
    assert used.exit_status == 0, used.output
    assert used.peak_anon_mib < 6 * 1024
