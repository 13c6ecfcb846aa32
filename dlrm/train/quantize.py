# SPDX-License-Identifier: Apache-2.0
"""Quantizes the tables and MLPs of a trained DLRM to 8 bits."""

import contextlib
import dataclasses
from collections.abc import Iterable

import torch
from torch import Tensor

from dlrm.data.batch import Batch
from dlrm.model.network import Dlrm
from dlrm.nn.frozen_embedding import FrozenEmbedding, one_table, quantize_rows
from dlrm.nn.int8_mlp import Int8Mlp, observed_inputs
from recsys.errors import UserError

CALIBRATION_ROWS = 65_536
"""Least rows that calibrate the scales of activations; all of a smaller split."""


@dataclasses.dataclass(frozen=True, slots=True)
class TableBytes:
    """Memory of the tables before and after quantization, in bytes."""

    before: int
    after: int


@torch.no_grad()
def quantize(model: Dlrm, batches: Iterable[Batch[Tensor]]) -> TableBytes:
    """Quantizes the tables and MLPs of a model in place.

    Args:
        model: trained, on a CPU, without batch norm; it cannot be trained afterwards.
        batches: rows like those of training, to calibrate the activations.

    Raises:
        UserError: the model is not on a CPU, or PyTorch was built without oneDNN.
    """
    device = model.mlp_parameters()[0].device
    if device.type != "cpu":
        raise UserError(f"`quantize` int8 runs on a CPU, not on {device.type}", setting="quantize")
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        raise UserError(
            "`quantize` int8 needs a PyTorch built with oneDNN; this one is not", setting="quantize"
        )
    model.eval()
    rows = 0
    with contextlib.ExitStack() as observing:
        observed = [
            tuple(
                observing.enter_context(observed_inputs(mlp))
                for mlp in (network.bottom_mlp, network.top_mlp)
            )
            for network in model.networks
        ]
        for batch in batches:
            model(batch.numerical, batch.ids)
            rows += len(batch)
            if rows >= CALIBRATION_ROWS:
                break
    table = one_table(model.embeddings)
    before = table.numel() * table.element_size()
    values, scale = quantize_rows(table)
    sizes, hashes = model.embeddings.table_sizes, model.embeddings.hash_indices
    for network, (of_bottom, of_top) in zip(model.networks, observed, strict=True):
        network.run_instead(
            Int8Mlp(network.bottom_mlp, of_bottom), Int8Mlp(network.top_mlp, of_top)
        )
    model.embeddings = FrozenEmbedding(values, scale, sizes, hashes, checks_ids=True)
    return TableBytes(before, values.numel() + 4 * scale.numel())
