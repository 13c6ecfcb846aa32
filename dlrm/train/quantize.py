# SPDX-License-Identifier: Apache-2.0
"""Turns a trained DLRM into one with 8-bit tables and MLPs."""

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
"""Rows that set the scales of activations, at least; fewer where the split has no more."""


@dataclasses.dataclass(frozen=True, slots=True)
class TableBytes:
    """Memory of the tables before and after."""

    before: int
    after: int


@torch.no_grad()
def quantize(model: Dlrm, batches: Iterable[Batch[Tensor]]) -> TableBytes:
    """Replaces the tables and MLPs of a model in place.

    Args:
        model: trained, on a CPU, without batch norm; not trained any more afterwards.
        batches: rows like those of training, to calibrate the activations on.

    Raises:
        UserError: the model is not on a CPU, or PyTorch was built without oneDNN.
    """
    device = model.mlp_parameters()[0].device
    if device.type != "cpu":
        raise UserError(f"`quantize` int8 runs on a CPU, not on {device.type}")
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        raise UserError("`quantize` int8 needs a PyTorch with oneDNN, which this one is not")
    model.eval()
    rows = 0
    with observed_inputs(model.bottom_mlp) as of_bottom, observed_inputs(model.top_mlp) as of_top:
        for batch in batches:
            model(batch.numerical, batch.ids)
            rows += len(batch)
            if rows >= CALIBRATION_ROWS:
                break
    table = one_table(model.embeddings)
    before = table.numel() * table.element_size()
    values, scale = quantize_rows(table)
    sizes, hashes = model.embeddings.table_sizes, model.embeddings.hash_indices
    model.run_instead(Int8Mlp(model.bottom_mlp, of_bottom), Int8Mlp(model.top_mlp, of_top))
    model.embeddings = FrozenEmbedding(values, scale, sizes, hashes, checks_ids=True)
    return TableBytes(before, values.numel() + 4 * scale.numel())
