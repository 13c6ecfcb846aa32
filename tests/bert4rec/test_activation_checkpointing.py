# SPDX-License-Identifier: Apache-2.0
"""Blocks computed again in backward: the same bits, in less memory."""

import pytest
import torch

from recsys.train.optimizers.precision import Precision
from tests.bert4rec.conftest import peak_mib
from tests.bert4rec.steps import config, train

SCHEMES = [
    {"objective": "cloze", "mask_prob": 0.4},
    {"objective": "causal", "norm": "post", "activation": "gelu"},
    {"objective": "hybrid", "loss": "sampled", "head": "tied", "accumulation_steps": 2},
]


def train_all(precision, **settings):
    """Returns losses, parameters and moments after three epochs with dropout."""
    given = config(dropout=0.3, attention_dropout=0.2, num_layers=3, clip_norm=0.5, **settings)
    step, model, losses = train(given, precision, epochs=3)
    return [losses, *model.parameters(), *step.optimizer.state().values()]


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_losses_and_updates_are_the_same_bits(scheme, dtype):
    precision = Precision(device_type="cpu", dtype=dtype)
    kept = train_all(precision, **scheme)
    again = train_all(precision, **scheme, activation_checkpointing=True)
    assert all(torch.equal(a, b) for a, b in zip(kept, again, strict=True))


@pytest.mark.slow
def test_a_deep_model_needs_less_memory(tmp_path):
    deep = (
        *("--dataset_name=random", "--random_user_count=128", "--random_item_count=500"),
        *("--random_size=19200", "--windows=recent", "--dupe_factor=1", "--train_batch_size=128"),
        *("--num_layers=24", "--emb_dim=32", "--max_len=100", "--max_steps=1"),
    )
    kept, again = peak_mib(tmp_path, *deep), peak_mib(tmp_path, *deep, "--activation_checkpointing")
    assert kept - again > 100, f"{again:.0f} MiB instead of {kept:.0f}"
