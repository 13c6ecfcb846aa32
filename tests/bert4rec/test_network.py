# SPDX-License-Identifier: Apache-2.0
"""Each lever of speed changes nothing but the speed: against a plain padded transformer.

The gradient of attention with dropout, and its rounding, are tested in tests/cuda_ext.
"""

import math

import pytest
import torch
from torch.nn import functional as F

from bert4rec.config import ModelConfig
from bert4rec.model.network import Bert4Rec
from bert4rec.nn import attention
from bert4rec.nn.layout import SequenceLayout
from bert4rec.nn.targets import TargetTokens

NUM_ITEMS = 23
LENGTHS = torch.tensor([5, 1, 7, 3])


def config(**changes):
    values = {"max_len": 9, "emb_dim": 12, "nhead": 3, "num_layers": 3, "dropout": 0.0,
              "attention_dropout": 0.0}  # fmt: skip
    return ModelConfig(**(values | changes))


def build(**changes):
    torch.manual_seed(0)
    model = Bert4Rec(config(**changes), NUM_ITEMS).double()
    model.reset_parameters(0.5)
    return model


def batch(lengths=LENGTHS):
    generator = torch.Generator().manual_seed(1)
    total = int(lengths.sum())
    items = torch.randint(1, NUM_ITEMS + 2, (total,), generator=generator)
    return items, SequenceLayout.of_lengths(lengths, int(lengths.max()), total)


def targets_at(layout, index):
    index = torch.as_tensor(index)
    rows = layout.sequence_of_token()[index]
    counts = torch.bincount(rows, minlength=layout.batch_size)
    return TargetTokens(
        index,
        SequenceLayout.of_lengths(counts, int(counts.max()), len(index)),
        layout.position_of_token()[index],
    )


def swiglu(x):
    first, second = x[:, : x.shape[1] // 2], x[:, x.shape[1] // 2 :]
    return first * torch.sigmoid(first) * second


def naive(model, settings, items, causal):
    """One sequence, one head and one token at a time; no code of the package but the weights."""
    dim, heads = settings.emb_dim, settings.nhead
    table, places = model.embedding.items, model.embedding.positions
    first = settings.max_len - len(items) if settings.positions_from == "end" else 0
    x = table[items] + places[first : first + len(items)]
    x = model.embedding.norm(x)
    act = {"gelu": F.gelu, "relu": F.relu, "swiglu": swiglu}[settings.activation]
    for block in model.blocks:
        source = block.attention_norm(x) if settings.norm == "pre" else x
        q, k, v = (source @ block.qkv.weight.T + block.qkv.bias).split(dim, 1)
        mixed = []
        size = dim // heads
        for h in range(heads):
            part = slice(h * size, (h + 1) * size)
            scores = q[:, part] @ k[:, part].T / math.sqrt(size)
            if causal:
                scores = scores + torch.full_like(scores, -math.inf).triu(1)
            mixed.append(scores.softmax(1) @ v[:, part])
        mixed = torch.cat(mixed, 1) @ block.attention_out.weight.T + block.attention_out.bias
        x = x + mixed
        if settings.norm == "post":
            x = block.attention_norm(x)
        source = block.feed_forward_norm(x) if settings.norm == "pre" else x
        hidden = act(source @ block.expand.weight.T + block.expand.bias)
        x = x + hidden @ block.contract.weight.T + block.contract.bias
        if settings.norm == "post":
            x = block.feed_forward_norm(x)
    if settings.norm == "pre":
        x = model.final_norm(x)
    if settings.head_transform:
        head = model.head
        x = head.norm(F.gelu(x @ head.transform.weight.T + head.transform.bias))
    if settings.temperature is not None:
        x = x / x.square().sum(1, keepdim=True).sqrt() / settings.temperature
    return x


VARIANTS = [
    {},
    {"norm": "post", "activation": "gelu", "head": "tied", "head_transform": True},
    {"positions_from": "start", "num_layers": 1, "nhead": 1},
    {"activation": "swiglu", "temperature": 0.05},
]


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("changes", VARIANTS)
@pytest.mark.parametrize("lengths", [LENGTHS, torch.tensor([4, 4, 4])])
def test_packed_pruned_network_equals_the_naive_one(changes, causal, lengths, native, monkeypatch):
    """Outputs and gradients, with the native attention and with that on padded sequences."""
    if not native:
        monkeypatch.setattr(attention, "_takes_native", lambda *_: False)
    model, twin = build(**changes), build(**changes)
    items, layout = batch(lengths)
    wanted = [0, 2, 5, *range(layout.num_tokens - 3, layout.num_tokens)]
    found = model(items, layout, targets_at(layout, wanted), causal=causal)
    parts = items.split(lengths.tolist())
    plain = torch.cat([naive(twin, config(**changes), part, causal) for part in parts])[wanted]
    torch.testing.assert_close(found, plain, rtol=1e-9, atol=1e-9)
    weights = torch.randn(len(wanted), 12, dtype=torch.float64)
    (found * weights).sum().backward()
    (plain * weights).sum().backward()
    for (name, mine), other in zip(model.named_parameters(), twin.parameters(), strict=True):
        if other.grad is not None:
            torch.testing.assert_close(mine.grad, other.grad, rtol=1e-8, atol=1e-9, msg=name)


def test_temperature_scores_by_the_cosine():
    for head in ("tied", "untied"):
        model = build(temperature=0.1, head=head)
        items, layout = batch()
        hidden = model(items, layout, targets_at(layout, [3]))
        table = model.embedding.items[1:-1] if head == "tied" else model.head.weight
        raw = build(head=head)(items, layout, targets_at(layout, [3]))
        expected = F.cosine_similarity(raw, table) / 0.1
        torch.testing.assert_close((hidden @ model.item_vectors().T)[0], expected)
        vectors, _ = model.vectors_of(torch.tensor([4]))
        torch.testing.assert_close(vectors[0] @ hidden[0], expected[3])


def test_attention_dropout_is_unbiased_and_masks_padding():
    model = build(attention_dropout=0.3, num_layers=1)
    items, layout = batch()
    wanted = targets_at(layout, [2, 14])
    block = model.blocks[0]
    tokens = model.embedding(items, layout)
    source = block.attention_norm(tokens)
    block.train()
    drawn = torch.stack([block._attend(source, layout, wanted, False) for _ in range(4000)])
    block.eval()
    exact = block._attend(source, layout, wanted, False)
    sigma = drawn.std(0) / len(drawn) ** 0.5
    assert ((drawn.mean(0) - exact).abs() < 5 * sigma + 1e-9).all()
