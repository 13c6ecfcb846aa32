# SPDX-License-Identifier: Apache-2.0
"""Merges adapters that are the same for every history into their layers."""

from collections.abc import Mapping

from torch import Tensor

from bert4rec.config import AdapterConfig, ModelConfig
from bert4rec.model.network import ADAPTERS, Bert4Rec
from recsys.train.memory import shapes_alone


def merged_weights(weights: Mapping[str, Tensor], adapter: AdapterConfig) -> dict[str, Tensor]:
    """Returns the weights of a network without adapters that computes the same.

    Args:
        weights: parameters of a network with constant adapters by name; it may have none.
        adapter: settings of the adapters.
    """
    assert adapter.is_constant, "experts weighed by the history have no one weight"
    plain = {name: w for name, w in weights.items() if not name.startswith(ADAPTERS)}
    for name, b in weights.items():
        if name.startswith(ADAPTERS) and name.endswith(".b"):
            layer = name.removeprefix(ADAPTERS).removesuffix(".b")
            change = b.double() @ weights[f"{ADAPTERS}{layer}.a"].double()
            weight = plain[f"{layer}.weight"]  # rounded once
            plain[f"{layer}.weight"] = (weight + adapter.scale * change).to(weight.dtype)
    return plain


def merged(model: Bert4Rec, config: ModelConfig, adapter: AdapterConfig) -> Bert4Rec:
    """Returns a network without adapters that computes the same.

    It shares all tensors but the changed weights.

    Args:
        model: a network with constant adapters.
        config: settings of the network.
        adapter: settings of the adapters.
    """
    with shapes_alone():
        plain = Bert4Rec(config, model.num_items)
    plain.load_state_dict(merged_weights(model.state_dict(), adapter), assign=True)
    return plain.train(model.training).requires_grad_(False)
