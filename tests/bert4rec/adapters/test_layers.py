# SPDX-License-Identifier: Apache-2.0
"""Adapters of each layer: the same as a dense change of its weight, in training and evaluation."""

import dataclasses

import pytest
import torch

from bert4rec.config import EXPERTS, AdapterConfig, ModelConfig
from bert4rec.model.network import ADAPTERS, Bert4Rec
from bert4rec.model.scoring import last_tokens
from bert4rec.model.weights import merged
from bert4rec.nn.layout import SequenceLayout
from bert4rec.nn.softmax_loss import softmax_cross_entropy

NUM_ITEMS = 23
MASK = NUM_ITEMS + 1
RANK = 8
MODEL = ModelConfig(max_len=9, emb_dim=12, nhead=3, dropout=0.0, attention_dropout=0.0,
                    head_transform=True, activation="gelu")  # fmt: skip
HISTORIES = ([3, 1, 4, 1, 5, MASK], [9, MASK], [2, 6, 5, 3, 5, 8, MASK], [MASK], [3, 1])


def settings(adapter):
    return AdapterConfig(adapter=adapter, adapter_rank=RANK)


def make(adapter, config=MODEL):
    torch.manual_seed(0)
    model = Bert4Rec(config, NUM_ITEMS, settings(adapter)).double()
    model.reset_parameters(0.5)
    return model


def build(adapter, config=MODEL):
    """Returns a model whose adapters are far from zero."""
    model = make(adapter, config)
    for name, parameter in model.named_parameters():
        if name.startswith(ADAPTERS):
            torch.nn.init.normal_(parameter, 0, 0.5)
    return model


def pack(histories):
    lengths = torch.tensor([len(history) for history in histories])
    items = torch.tensor([item for history in histories for item in history])
    return items, SequenceLayout.of_lengths(lengths, int(lengths.max()), len(items))


def outputs(model, histories=HISTORIES, *, causal=False, pruned=True):
    items, layout = pack(histories)
    targets = last_tokens(layout)
    if pruned:
        return model(items, layout, targets, causal=causal)
    whole = type(targets)(torch.arange(len(items)), layout, layout.position_of_token())
    return model(items, layout, whole, causal=causal)[targets.index]


def dense(model, adapter, history, causal):
    """One sequence through the network without adapters, its weights changed by formula."""
    values = dict(model.named_parameters())
    weights = {name: w for name, w in values.items() if not name.startswith(ADAPTERS)}
    factors = torch.ones(RANK, dtype=torch.float64)
    if adapter == "ilora":
        known = [item for item in history if item != MASK]
        z = torch.zeros(MODEL.emb_dim, dtype=torch.float64)
        z = model.embedding.items[known].mean(0) if known else z
        z = (z - z.mean()) / (z.var(correction=0) + 1e-12).sqrt()
        of_experts = (values[f"{ADAPTERS}gate.weight"] @ z).softmax(0)
        factors = of_experts.repeat_interleave(RANK // EXPERTS)
    for name, a in values.items():
        if name.startswith(ADAPTERS) and name.endswith(".a"):
            layer = name[len(ADAPTERS) : -2]
            b = values[f"{ADAPTERS}{layer}.b"]
            change = 16 / RANK * b @ torch.diag(factors) @ a
            weights[f"{layer}.weight"] = weights[f"{layer}.weight"] + change
    plain = Bert4Rec(MODEL, NUM_ITEMS).double()
    items, layout = pack([history])
    arguments = (items, layout, last_tokens(layout))
    return torch.func.functional_call(plain, weights, arguments, {"causal": causal})


@pytest.mark.parametrize("pruned", [True, False])
@pytest.mark.parametrize("adapter", ["lora", "ilora"])
def test_output_and_gradients_are_those_of_dense_weights(adapter, pruned):
    model = build(adapter)
    trained = [p for p in model.parameters() if p.requires_grad]
    result = outputs(model, pruned=pruned)
    truth = torch.cat([dense(model, adapter, history, causal=False) for history in HISTORIES])
    torch.testing.assert_close(result, truth)
    found = torch.autograd.grad(result.square().sum(), trained)
    for gradient, true in zip(
        found, torch.autograd.grad(truth.square().sum(), trained), strict=True
    ):
        torch.testing.assert_close(gradient, true)


def test_a_causal_gate_reads_no_item_that_is_to_be_predicted():
    model = build("ilora", dataclasses.replace(MODEL, positions_from="start"))
    history = [3, 1, 4, 1, 5, 9, 2]
    items, layout = pack([history])
    whole = last_tokens(layout)
    every = type(whole)(torch.arange(7), layout, layout.position_of_token())
    result = model(items, layout, every, causal=True)
    for end in range(1, 8):
        shorter = outputs(model, [history[:end]], causal=True)
        torch.testing.assert_close(result[end - 1 : end], shorter)


def test_adapters_begin_without_any_change():
    model, plain = make("lora"), Bert4Rec(MODEL, NUM_ITEMS).double()
    plain.load_state_dict(model.state_dict(), strict=False)
    assert torch.equal(outputs(model), outputs(plain))


@pytest.mark.parametrize("variant", [{}, {"activation": "swiglu", "temperature": 0.5}])
def test_merged_weights_compute_the_same(variant):
    config = dataclasses.replace(MODEL, **variant)
    model = build("lora", config)
    plain = merged(model, config, settings("lora"))
    assert plain.adapters is None
    assert plain.embedding.items.data_ptr() == model.embedding.items.data_ptr()
    torch.testing.assert_close(outputs(plain), outputs(model))


def test_the_loss_of_a_frozen_table_has_the_same_gradient_of_the_rest():
    torch.manual_seed(0)
    table, bias = torch.randn(23, 8).double(), torch.randn(23).double()
    hidden = torch.randn(70, 8, dtype=torch.float64, requires_grad=True)
    labels = torch.arange(70) % 23
    gradients = []
    for trained in (True, False):
        weights = table.clone().requires_grad_(trained), bias.clone().requires_grad_(trained)
        loss = softmax_cross_entropy(hidden, *weights, labels)
        gradients.append(torch.autograd.grad(loss, hidden)[0])
    assert torch.equal(*gradients)
