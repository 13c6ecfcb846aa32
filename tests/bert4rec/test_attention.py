# SPDX-License-Identifier: Apache-2.0
"""The native attention against attention on padded sequences; test_network has the naive one."""

import pytest
import torch

from bert4rec.nn import attention
from bert4rec.nn.attention import attend
from bert4rec.nn.layout import SequenceLayout
from cuda_ext.error_bounds import Bounded

DIM = 12
LENGTHS = {"ragged": [5, 1, 7, 3, 7, 7], "dense": [4, 4, 4, 4, 4, 4]}
ASKED = [2, 0, 4, 3, 0, 1]


def layout_of(lengths):
    return SequenceLayout.of_lengths(torch.tensor(lengths), max(lengths), sum(lengths))


def inputs_of(lengths, asks, dtype):
    """Returns queries, fused projections, the layout of the queries and their positions."""
    generator = torch.Generator().manual_seed(4)
    draw = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)  # noqa: E731
    if not asks:
        fused = draw(sum(lengths), 3 * DIM).to(dtype).requires_grad_()
        return None, fused, layout_of(lengths), None
    queries = draw(sum(ASKED), DIM).to(dtype).requires_grad_()
    fused = draw(sum(lengths), 2 * DIM).to(dtype).requires_grad_()
    asked = zip(ASKED, lengths, strict=True)
    positions = [
        position for count, length in asked for position in range(length)[length - count :]
    ]
    return queries, fused, layout_of(ASKED), torch.tensor(positions)


def outcome(lengths, *, asks, causal, heads, dtype, probability=0.0):
    queries, fused, query_layout, positions = inputs_of(lengths, asks, dtype)
    found = attend(
        queries,
        fused,
        query_layout,
        layout_of(lengths),
        heads,
        query_positions=positions,
        causal=causal,
        dropout_probability=probability,
    )
    leaves = [x for x in (queries, fused) if x is not None]
    return [found.detach(), *torch.autograd.grad(found.square().sum(), leaves)]


def head_bounds(q, k, v, seen):
    """Bounds one head of one sequence, and the gradients of its sum of squares.

    Args:
        q: [P, E].
        k: [T, E].
        v: [T, E].
        seen: [P, T], 1 where a query looks, 0 elsewhere.
    """
    scale = q.value.shape[1] ** -0.5
    scores = q @ k.t() * scale
    top = Bounded.exact(scores.value.amax(1, keepdim=True))
    powers = (scores - top).exp() * Bounded.exact(seen)
    weights = powers / powers.sum(1)
    mixed = weights @ v
    delta = mixed * 2.0
    to_weights = delta @ v.t()
    to_scores = weights * (to_weights - (weights * to_weights).sum(1))
    return mixed, to_scores @ k * scale, to_scores.t() @ q * scale, weights.t() @ delta


def bounds(lengths, *, asks, causal, heads):
    """Bounds what `outcome` returns in float32: each sequence and head alone."""
    queries, fused, query_layout, positions = inputs_of(lengths, asks, torch.float32)
    columns = fused.detach().split(DIM, 1)
    given = [*columns] if queries is None else [queries.detach(), *columns]
    results = [Bounded.exact(torch.zeros_like(t)) for t in (given[0], *given)]
    asked, known = (layout.offsets.tolist() for layout in (query_layout, layout_of(lengths)))
    for number, length in enumerate(lengths):
        rows = slice(asked[number], asked[number + 1]), slice(known[number], known[number + 1])
        if rows[0].start == rows[0].stop:
            continue
        position = torch.arange(length) if positions is None else positions[rows[0]]
        seen = torch.ones(len(position), length)
        if causal:
            seen = (torch.arange(length) <= position.unsqueeze(1)).float()
        for head in torch.arange(DIM).chunk(heads):
            q, k, v = (
                Bounded.exact(t[r][:, head])
                for t, r in zip(given, (rows[0], rows[1], rows[1]), strict=True)
            )
            to = (rows[0], rows[0], rows[1], rows[1])
            for result, r, computed in zip(results, to, head_bounds(q, k, v, seen), strict=True):
                result.value[r, head], result.error[r, head] = computed.value, computed.error
    if queries is None:
        return [results[0], join(results[1:])]
    return [results[0], results[1], join(results[2:])]


def join(columns):
    return Bounded(
        torch.cat([c.value for c in columns], 1), torch.cat([c.error for c in columns], 1)
    )


@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("asks", [False, True])
@pytest.mark.parametrize("shape", LENGTHS)
def test_native_attention_is_exact_to_the_bounds_of_its_sums(
    shape, asks, causal, heads, monkeypatch
):
    lengths = LENGTHS[shape]
    options = {"asks": asks, "causal": causal, "heads": heads}
    native = outcome(lengths, **options, dtype=torch.float32)
    doubled = outcome(lengths, **options, dtype=torch.float64)
    monkeypatch.setattr(attention, "_takes_native", lambda *_: False)
    padded = outcome(lengths, **options, dtype=torch.float64)
    for result, double, exact, bound in zip(
        native, doubled, padded, bounds(lengths, **options), strict=True
    ):
        torch.testing.assert_close(double, exact, rtol=1e-9, atol=1e-12)
        assert bound.excess(result) <= 1


def test_dropout_of_the_weights_is_part_of_the_gradient():
    """With the draws fixed the function is smooth: its gradient is that of differences."""
    lengths = LENGTHS["ragged"]

    def function(fused):
        torch.manual_seed(1)
        layout = layout_of(lengths)
        return attend(None, fused, layout, layout, 3, dropout_probability=0.4)

    fused = inputs_of(lengths, False, torch.float64)[1]
    assert torch.autograd.gradcheck(function, [fused])


def test_other_seeds_drop_other_weights():
    options = {"asks": False, "causal": False, "heads": 3, "dtype": torch.float32}
    found = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        found.append(outcome(LENGTHS["dense"], **options, probability=0.4))
    assert all(torch.equal(a, b) for a, b in zip(found[0], found[1], strict=True))
    assert not torch.equal(found[0][0], found[2][0])
