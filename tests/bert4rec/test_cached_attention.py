# SPDX-License-Identifier: Apache-2.0
"""Attention in blocks against attention on padded sequences; test_network has the naive one."""

import pytest
import torch

from bert4rec.nn import attention
from bert4rec.nn.attention import attend
from bert4rec.nn.cpu import cached_attention
from bert4rec.nn.layout import SequenceLayout

DIM = 12
LENGTHS = {"ragged": [5, 1, 7, 3, 7, 7], "dense": [4, 4, 4, 4, 4, 4]}
ASKED = [2, 0, 4, 3, 0, 1]


def layout_of(lengths):
    return SequenceLayout.of_lengths(torch.tensor(lengths), max(lengths), sum(lengths))


def inputs_of(lengths, asks, dtype):
    """Returns queries, fused projections, the layout of the queries and their places."""
    generator = torch.Generator().manual_seed(4)
    draw = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)  # noqa: E731
    if not asks:
        fused = draw(sum(lengths), 3 * DIM).to(dtype).requires_grad_()
        return None, fused, layout_of(lengths), None
    queries = draw(sum(ASKED), DIM).to(dtype).requires_grad_()
    fused = draw(sum(lengths), 2 * DIM).to(dtype).requires_grad_()
    asked = zip(ASKED, lengths, strict=True)
    places = [place for count, length in asked for place in range(length)[length - count :]]
    return queries, fused, layout_of(ASKED), torch.tensor(places)


def outcome(lengths, *, asks, causal, heads, dtype, probability=0.0):
    queries, fused, query_layout, places = inputs_of(lengths, asks, dtype)
    found = attend(
        queries,
        fused,
        query_layout,
        layout_of(lengths),
        heads,
        query_places=places,
        causal=causal,
        dropout_probability=probability,
    )
    leaves = [x for x in (queries, fused) if x is not None]
    return [found.detach(), *torch.autograd.grad(found.square().sum(), leaves)]


@pytest.mark.parametrize("weights", [1, 200, 1 << 17])
@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("asks", [False, True])
@pytest.mark.parametrize("shape", LENGTHS)
def test_blocks_are_as_exact_as_padded_sequences(shape, asks, causal, heads, weights, monkeypatch):
    lengths = LENGTHS[shape]
    options = {"asks": asks, "causal": causal, "heads": heads}
    monkeypatch.setattr(cached_attention, "_WEIGHTS", weights)
    mine = outcome(lengths, **options, dtype=torch.float32)
    monkeypatch.setattr(attention, "_takes_blocks", lambda _: False)
    exact = outcome(lengths, **options, dtype=torch.float64)
    usual = outcome(lengths, **options, dtype=torch.float32)
    for found, other, truth in zip(mine, usual, exact, strict=True):
        error, theirs = ((x.double() - truth).abs().max() for x in (found, other))
        assert error <= 2 * theirs + 1e-7 * truth.abs().max()


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
