# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from bert4rec.nn.dropout import dropout
from bert4rec.nn.items import lookup_before_head
from bert4rec.nn.row_softmax import rows_per_block
from bert4rec.nn.softmax_loss import generalised_bce, sampled_softmax, softmax_cross_entropy


def problem(targets=6, items=37, dim=5, seed=0):
    generator = torch.Generator().manual_seed(seed)
    draw = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)  # noqa: E731
    labels = torch.randint(0, items, (targets,), generator=generator)
    return draw(targets, dim), draw(items, dim), draw(items), labels


# Blocks of one item, of some items, of 32 targets, and of all.
BLOCKS = pytest.mark.parametrize("max_logits", [1, 300, 1400, 10_000])


@BLOCKS
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_blocked_cross_entropy_equals_the_plain_one(max_logits, dtype):
    *leaves, labels = problem(targets=70)
    inputs = [leaf.to(dtype).requires_grad_() for leaf in leaves]
    found = softmax_cross_entropy(*inputs, labels, max_logits)
    gradients = torch.autograd.grad(found * 3, inputs)
    leaves = [leaf.to(dtype).double().requires_grad_() for leaf in leaves]
    plain = F.cross_entropy(F.linear(*leaves), labels)
    expected = torch.autograd.grad(plain * 3, leaves)
    # Losses are float32 by contract, whatever the type of the vectors.
    torch.testing.assert_close(found.double(), plain, rtol=1e-6, atol=1e-6)
    for mine, other in zip(gradients, expected, strict=True):
        assert mine.dtype == dtype
        torch.testing.assert_close(mine.double(), other, rtol=1e-5, atol=1e-6)


@BLOCKS
def test_large_logits_neither_overflow_nor_vanish(max_logits):
    hidden, weight, bias, labels = problem(targets=70)
    inputs = [leaf.float().requires_grad_() for leaf in (hidden * 300, weight, bias)]
    loss = softmax_cross_entropy(*inputs, labels, max_logits)
    plain = F.cross_entropy(F.linear(*inputs), labels)
    torch.testing.assert_close(loss, plain, rtol=1e-5, atol=1e-5)
    assert all(g.isfinite().all() for g in torch.autograd.grad(loss, inputs))


@BLOCKS
@pytest.mark.parametrize("of_hidden", [torch.bfloat16, torch.float32])
def test_autocast_computes_the_same_logits_in_backward(max_logits, of_hidden):
    """Vectors of the targets, in half precision or not, meet items in single precision."""
    hidden, weight, bias, labels = problem(targets=70, dim=64)
    inputs = [hidden.to(of_hidden), weight.float(), bias.float()]
    inputs = [t.requires_grad_() for t in inputs]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = softmax_cross_entropy(*inputs, labels, max_logits)
    assert found.dtype == torch.float32
    gradients = torch.autograd.grad(found, inputs)
    # The probabilities of a target add up to one, so the gradients of its logits to zero.
    assert gradients[2].sum().abs() < 1e-2
    plain = F.cross_entropy(F.linear(inputs[0].float(), *inputs[1:]), labels)
    torch.testing.assert_close(found, plain, rtol=2e-2, atol=2e-2)
    for mine, other in zip(gradients, torch.autograd.grad(plain, inputs), strict=True):
        assert mine.dtype == other.dtype
        assert (mine - other).float().norm() < 5e-2 * other.float().norm()
        assert (mine - other).float().norm() > 1e-4 * other.float().norm(), "not in bfloat16"


@pytest.mark.parametrize(
    ("targets", "items", "bound", "expected"),
    [
        (11_000, 1_682, 1 << 24, 128),
        (20, 500_000, 1 << 24, 20),
        (900, 500_000, 1 << 24, 32),
        (900, 600_000, 1 << 24, 0),  # 32 rows would not fit: the items have to be split
        (5, 37, 6, 0),
    ],
)
def test_blocks_fit_the_bound(targets, items, bound, expected):
    rows = rows_per_block(targets, items, bound, torch.device("cpu"))
    assert rows == expected
    assert rows * items <= bound


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
def test_a_tied_head_has_one_gradient_of_the_table_and_edges_that_are_no_items(max_logits):
    torch.manual_seed(0)
    table = torch.randn(402, 16, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(400, dtype=torch.float64, requires_grad=True)
    rows, labels = torch.tensor([1, 5, 5, 401]), torch.tensor([4, 4, 399, 0])

    def loss(vectors, table, edge_rows):
        return softmax_cross_entropy(
            torch.tanh(vectors), table, bias, labels, max_logits, edge_rows=edge_rows
        )

    plain = loss(F.embedding(rows, table), table[1:-1], 0)
    expected = torch.autograd.grad(plain, (table, bias))
    with LargeBuffers(400 * 16 * 8) as buffers:
        found = loss(*lookup_before_head(table, rows), edge_rows=1)
        found.backward()
    assert torch.equal(found, plain)
    torch.testing.assert_close((table.grad, bias.grad), expected)
    assert (table.grad[[5, 401]] != 0).all()
    assert buffers.addresses == {table.data_ptr(), table.grad.data_ptr()}


def test_no_target_costs_nothing():
    hidden, weight, bias, labels = problem(targets=0)
    hidden.requires_grad_()
    loss = softmax_cross_entropy(hidden, weight, bias, labels)
    loss.backward()
    assert float(loss.detach()) == 0.0


@pytest.mark.parametrize("log_expected", [0.0, -2.0])
def test_sampled_softmax_over_all_items_is_the_full_softmax(log_expected):
    """Of the logits less the logarithm of the times that each item but the true one is drawn."""
    hidden, weight, bias, labels = problem()
    logits = F.linear(hidden, weight, bias)
    true = logits.gather(1, labels[:, None])[:, 0]
    found = sampled_softmax(true, logits, labels, torch.arange(37), log_expected)
    lowered = logits - log_expected * (torch.arange(37) != labels[:, None])
    expected = F.cross_entropy(lowered, labels)
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=0)


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
