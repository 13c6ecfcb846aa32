# SPDX-License-Identifier: Apache-2.0
"""Fifty losses of a fixed run: any change of the arithmetic, the data or the seed shows here.

Equal to 5e-6, not to the bit: a CPU with wider vectors sums in another order, and 50 steps carry
that rounding (2**-24 each) on. After a change that is meant,
`RECIPES_REWRITE_GOLDEN=1 pytest tests/dlrm/test_golden_losses.py` writes the file anew; its diff
is reviewed with the change.
"""

import os
from pathlib import Path

import pytest
import torch

from dlrm.data.batch import Batch
from tests.dlrm.conftest import CARDINALITIES, NUM_NUMERICAL, make_columns
from tests.dlrm.networks import build, train_step

FOLDER = Path(__file__).resolve().parents[1] / "golden" / "losses"
STEPS, BATCH = 50, 64


def losses(optimizer, interaction_op):
    model = build(
        sizes=CARDINALITIES, num_numerical_features=NUM_NUMERICAL, embedding_dim=8,
        bottom_mlp_sizes=(16, 8), top_mlp_sizes=(16, 1), interaction_op=interaction_op,
        dcn_low_rank_dim=4, embedding_type="joint",
    )  # fmt: skip
    with torch.no_grad():
        # torch.rand draws the same float32 values on every CPU; normal_ does not promise to.
        generator = torch.Generator().manual_seed(7)
        modules = (model.bottom_mlp, model.embeddings, model.interaction, model.top_mlp)
        for parameter in (p for module in modules for p in module.parameters()):
            parameter.copy_((torch.rand(parameter.shape, generator=generator) - 0.5) / 2)
    step = train_step(model, optimizer)
    data = make_columns(STEPS * BATCH, seed=7)
    found = []
    for i in range(STEPS):
        part = data[i * BATCH : (i + 1) * BATCH]
        ids = torch.stack([torch.from_numpy(c).long() for c in part.categorical], 1)
        batch = Batch(torch.from_numpy(part.numerical), ids, torch.from_numpy(part.label).float())
        found.append(float(step(batch, 0.05)))
    return found


@pytest.mark.parametrize("optimizer", ["sgd", "rowwise_adagrad", "adam"])
@pytest.mark.parametrize("interaction_op", ["dot", "dcnv2"])
def test_losses(optimizer, interaction_op):
    file = FOLDER / f"dlrm_{optimizer}_{interaction_op}.txt"
    found = losses(optimizer, interaction_op)
    if os.environ.get("RECIPES_REWRITE_GOLDEN"):
        file.write_text("".join(f"{x:.6f}\n" for x in found))
    expected = [float(line) for line in file.read_text().splitlines()]
    assert found == pytest.approx(expected, abs=5e-6)
