# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from bert4rec.nn.dropout import dropout
from bert4rec.nn.item_lookup import lookup_before_head
from bert4rec.nn.softmax_loss import generalised_bce, sampled_softmax, softmax_cross_entropy


def problem(targets=6, items=37, dim=5, seed=0):
    generator = torch.Generator().manual_seed(seed)
    draw = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)  # noqa: E731
    labels = torch.randint(0, items, (targets,), generator=generator)
    return draw(targets, dim), draw(items, dim), draw(items), labels


@pytest.mark.parametrize("max_logits", [1, 6, 100, 10_000])
@pytest.mark.parametrize("with_bias", [True, False])
def test_blocked_cross_entropy_equals_the_plain_one(max_logits, with_bias):
    hidden, weight, bias, labels = problem()
    bias = bias if with_bias else None
    inputs = [t.requires_grad_() for t in (hidden, weight, bias) if t is not None]
    found = softmax_cross_entropy(hidden, weight, bias, labels, max_logits)
    gradients = torch.autograd.grad(found * 3, inputs)
    plain = F.cross_entropy(F.linear(hidden, weight, bias), labels)
    expected = torch.autograd.grad(plain * 3, inputs)
    # Losses are float32 by contract, whatever the type of the vectors.
    torch.testing.assert_close(found.double(), plain, rtol=1e-6, atol=1e-6)
    for mine, other in zip(gradients, expected, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("max_logits", [6, 100])
def test_rows_at_the_edges_of_a_table_are_no_items(max_logits):
    hidden, weight, bias, labels = problem()
    expected_inputs = [t.clone().requires_grad_() for t in (hidden, weight, bias)]
    expected = softmax_cross_entropy(*expected_inputs, labels, max_logits)
    inputs = [hidden, F.pad(weight, (0, 0, 2, 2), value=9.0), bias]
    inputs = [t.requires_grad_() for t in inputs]
    found = softmax_cross_entropy(*inputs, labels, max_logits, edge_rows=2)
    assert torch.equal(found, expected)
    to_hidden, to_weight, to_bias = torch.autograd.grad(expected, expected_inputs)
    gradients = torch.autograd.grad(found, inputs)
    padded = F.pad(to_weight, (0, 0, 2, 2))
    for mine, other in zip(gradients, (to_hidden, padded, to_bias), strict=True):
        assert torch.equal(mine, other)


@pytest.mark.parametrize("max_logits", [6, 100])
def test_autocast_computes_the_same_logits_in_backward(max_logits):
    """Half-precision vectors of the targets meet items in single precision."""
    hidden, weight, bias, labels = problem(dim=64)
    inputs = [hidden.to(torch.bfloat16), weight.float(), bias.float()]
    inputs = [t.requires_grad_() for t in inputs]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = softmax_cross_entropy(*inputs, labels, max_logits)
    gradients = torch.autograd.grad(found, inputs)
    # The probabilities of a target add up to one, so the gradients of its logits to zero.
    assert gradients[2].sum().abs() < 1e-2
    plain = F.cross_entropy(F.linear(inputs[0].float(), *inputs[1:]), labels)
    torch.testing.assert_close(found, plain, rtol=2e-2, atol=2e-2)
    for mine, other in zip(gradients, torch.autograd.grad(plain, inputs), strict=True):
        assert mine.dtype == other.dtype
        assert (mine - other).float().norm() < 5e-2 * other.float().norm()


class LargeBuffers(TorchDispatchMode):
    """Collects the addresses of the large buffers that operations write."""

    def __init__(self, least_bytes):
        super().__init__()
        self.least_bytes = least_bytes
        self.addresses = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor):
            storage = result.untyped_storage()
            if storage.nbytes() >= self.least_bytes:
                self.addresses.add(storage.data_ptr())
        return result


@pytest.mark.parametrize("max_logits", [1 << 24, 64])
def test_a_tied_head_has_one_gradient_of_the_table(max_logits):
    torch.manual_seed(0)
    table = torch.randn(402, 16, dtype=torch.float64, requires_grad=True)
    rows, labels = torch.tensor([1, 5, 5, 401]), torch.tensor([4, 4, 399, 0])

    def loss(vectors, table, edge_rows):
        return softmax_cross_entropy(
            torch.tanh(vectors), table, None, labels, max_logits, edge_rows=edge_rows
        )

    (expected,) = torch.autograd.grad(loss(F.embedding(rows, table), table[1:-1], 0), table)
    with LargeBuffers(400 * 16 * 8) as buffers:
        loss(*lookup_before_head(table, rows), edge_rows=1).backward()
    torch.testing.assert_close(table.grad, expected)
    assert (table.grad[[5, 401]] != 0).all()
    assert buffers.addresses == {table.data_ptr(), table.grad.data_ptr()}


def test_no_target_costs_nothing():
    hidden, weight, bias, labels = problem(targets=0)
    hidden.requires_grad_()
    loss = softmax_cross_entropy(hidden, weight, bias, labels)
    loss.backward()
    assert float(loss.detach()) == 0.0


def test_sampled_softmax_over_all_items_is_the_full_softmax():
    hidden, weight, bias, labels = problem()
    logits = F.linear(hidden, weight, bias)
    everything = torch.arange(37)
    true = logits.gather(1, labels[:, None])[:, 0]
    found = sampled_softmax(true, logits, labels, everything)
    torch.testing.assert_close(found.double(), F.cross_entropy(logits, labels), rtol=1e-5, atol=0)


def test_log_q_correction_approaches_the_full_softmax():
    hidden, weight, bias, labels = problem(items=400)
    logits = F.linear(hidden, weight, bias) * 0.4  # few large terms: the estimate converges fast
    generator = torch.Generator().manual_seed(3)
    shares = torch.linspace(1, 5, 400, dtype=torch.float64)
    shares /= shares.sum()
    errors = []
    for corrected in (True, False):
        found = []
        for _ in range(200):
            drawn = torch.multinomial(shares, 100, replacement=True, generator=generator)
            log_q = torch.log(shares * 100)
            found.append(
                sampled_softmax(
                    logits.gather(1, labels[:, None])[:, 0],
                    logits[:, drawn],
                    labels,
                    drawn,
                    # The true item is always there: its probability of being drawn is one.
                    torch.zeros(6) if corrected else None,
                    log_q[drawn] if corrected else None,
                )
            )
        mean = torch.stack(found).double().mean()
        errors.append(abs(float(mean - F.cross_entropy(logits, labels))))
    assert errors[0] < 0.03
    assert errors[0] < errors[1] / 5


def test_gbce_without_calibration_is_binary_cross_entropy():
    true, negative = torch.tensor([0.5, -1.0]), torch.tensor([[0.1, 2.0], [-0.3, 0.4]])
    labels, negatives = torch.tensor([0, 1]), torch.tensor([5, 6])
    found = generalised_bce(true, negative, labels, negatives, 100, 0.0)
    expected = -(torch.sigmoid(true).log() + (1 - torch.sigmoid(negative)).log().sum(1)).mean()
    torch.testing.assert_close(found, expected)


def test_full_calibration_weighs_the_positive_by_the_sampling_rate():
    true, negative = torch.tensor([0.5]), torch.zeros(1, 2)
    both = [
        generalised_bce(true, negative, torch.tensor([0]), torch.tensor([5, 6]), 101, t)
        for t in (0.0, 1.0)
    ]
    positive = -torch.sigmoid(true).log()[0]
    torch.testing.assert_close(both[0] - both[1], positive * (1 - 2 / 100))


def test_a_negative_that_is_the_target_does_not_count():
    true, labels = torch.tensor([1.0]), torch.tensor([3])
    with_it = torch.tensor([[9.0, 0.5]]), torch.tensor([3, 8])
    without = torch.tensor([[0.5]]), torch.tensor([8])
    torch.testing.assert_close(
        sampled_softmax(true, with_it[0], labels, with_it[1]),
        sampled_softmax(true, without[0], labels, without[1]),
    )


@pytest.mark.parametrize("probability", [0.1, 0.2, 0.5])
@pytest.mark.parametrize("shape", [(7,), (100, 33)])
def test_dropout_keeps_the_mean_and_its_gradient_is_its_factor(probability, shape):
    torch.manual_seed(0)
    values = torch.ones(shape, requires_grad=True)
    results = torch.stack([dropout(values, probability, True) for _ in range(400)])
    levels = round(probability * 256)
    kept = results[results != 0].detach()
    torch.testing.assert_close(kept, torch.full_like(kept, 256 / (256 - levels)))
    share = float((results == 0).double().mean())
    spread = (probability / results.numel()) ** 0.5
    assert abs(share - levels / 256) < 5 * spread
    one = dropout(values, probability, True)
    (gradient,) = torch.autograd.grad(one.sum(), values)
    assert torch.equal(gradient, one)
    assert dropout(values, probability, False) is values
