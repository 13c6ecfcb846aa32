# SPDX-License-Identifier: Apache-2.0
"""Blocks computed again in backward: the same bits, in less memory."""

import sys
from pathlib import Path

import pytest
import torch

from benchmark.processes import run_process
from bert4rec.data.batches import training_batches
from bert4rec.train.step import build_step
from recsys.train.optimizers.precision import Precision
from tests.bert4rec.test_large_catalogues import CPU, config, make_model, sequences

SCHEMES = [
    {"objective": "cloze", "mask_prob": 0.4},
    {"objective": "causal", "norm": "post", "activation": "gelu"},
    {"objective": "hybrid", "loss": "sampled", "head": "tied", "accumulation_steps": 2},
]


def train(precision, **settings):
    """Returns losses, parameters and moments after three epochs with dropout."""
    given = config(dropout=0.3, attention_dropout=0.2, num_layers=3, clip_norm=0.5, **settings)
    model = make_model(given)
    step = build_step(given, sequences(), model, precision)
    losses = [
        step(batch, 0.01)
        for epoch in range(3)
        for batch in training_batches(given, sequences(), CPU).batches(epoch, 0)
    ]
    return [*losses, *model.parameters(), *step.optimizer.state().values()]


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_losses_and_updates_are_the_same_bits(scheme, dtype):
    precision = Precision(device_type="cpu", dtype=dtype)
    kept = train(precision, **scheme)
    again = train(precision, **scheme, activation_checkpointing=True)
    assert all(torch.equal(a, b) for a, b in zip(kept, again, strict=True))


DEEP = (
    *("--dataset_name=random", "--random_user_count=128", "--random_item_count=500"),
    *("--random_size=19200", "--windows=recent", "--dupe_factor=1", "--train_batch_size=128"),
    *("--num_layers=24", "--emb_dim=32", "--max_len=100", "--max_steps=1"),
    *("--base_device=cpu", "--num_threads=1"),
)


def peak_mib(*flags):
    command = [sys.executable, "-m", "bert4rec.scripts.main", *DEEP, *flags]
    used = run_process(command, env={"PYTHONPATH": str(Path(__file__).resolve().parents[2])})
    assert used.exit_status == 0, used.output
    return used.peak_anon_mib


@pytest.mark.slow
def test_a_deep_model_needs_less_memory(tmp_path):
    log = f"--log_path={tmp_path / 'log.json'}"
    kept, again = peak_mib(log), peak_mib(log, "--activation_checkpointing")
    assert kept - again > 100, f"{again:.0f} MiB instead of {kept:.0f}"
