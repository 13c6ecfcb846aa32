# SPDX-License-Identifier: Apache-2.0
"""BERT4Rec's training on CUDA: nothing waits for the device."""

import threading

import numpy as np
import pytest

from bert4rec.config import Bert4RecConfig
from bert4rec.data.batches import TrainBatch, TrainBatches
from bert4rec.model.network import Bert4Rec
from bert4rec.train.step import Bert4RecTrainStep, build_step
from recsys.data.sequences.histories import Sequences
from tests.fake_cuda.device import DEVICE, Graph
from tests.fake_cuda.dlrm_steps import PRECISIONS
from tests.fake_cuda.recorder import Recorder
from tests.harness import refusal

NUM_ITEMS = 5000
SIZES = {
    "max_len": 50, "emb_dim": 64, "nhead": 2, "num_layers": 2, "windows": "recent",
    "dupe_factor": 1, "num_negatives": 256, "train_batch_size": 32,
}  # fmt: skip

BEST = {
    "emb_dim": 128, "activation": "gelu", "head": "tied", "dropout": 0.3, "attention_dropout": 0.0,
    "clip_norm": 5.0,
}  # fmt: skip
"""Of the preset, what decides the kernels."""
KERNELS = {"cloze": 619, "causal": 525}
"""Objective -> kernels of two steps."""


def sequences() -> Sequences:
    generator = np.random.default_rng(0)
    offsets = np.concatenate([[0], generator.integers(5, 60, 64).cumsum()])
    items = generator.integers(1, NUM_ITEMS + 1, offsets[-1]).astype(np.int32)
    return Sequences(items, offsets, NUM_ITEMS)


def build(precision: str, **settings: object) -> tuple[Bert4RecTrainStep, TrainBatches]:
    config = Bert4RecConfig.from_dict(SIZES | settings)
    with DEVICE:
        model = Bert4Rec(config.model, NUM_ITEMS)
    step = build_step(config, sequences(), model, PRECISIONS[precision])
    return step, TrainBatches(config, sequences(), DEVICE)


def record_steps(precision: str, **settings: object) -> Recorder:
    """Records an epoch of two steps."""
    step, source = build(precision, **settings)
    with Recorder() as recorder:
        losses = [step(batch, 0.01) for batch in source.batches(0, 0)]
    assert len(losses) == 2
    assert all(loss.device == DEVICE for loss in losses)
    return recorder


@pytest.mark.parametrize(
    ("precision", "settings"),
    [
        ("float16", {"objective": "cloze"}),
        ("bfloat16", {"objective": "causal"}),
        ("float32", {"objective": "hybrid"}),
        ("bfloat16", {"loss": "sampled"}),
        ("bfloat16", {"loss": "gbce"}),
        ("bfloat16", {"loss": "sampled", "clip_norm": 0.01}),
        ("bfloat16", {"loss": "sampled", "head": "tied"}),
        ("bfloat16", {"accumulation_steps": 2, "train_batch_size": 16}),
        ("bfloat16", {"activation_checkpointing": True}),
        ("bfloat16", {"popularity_correction": 0.5}),
    ],
    ids=str,
)
def test_nothing_waits_for_the_device_in_a_step(precision, settings):
    record_steps(precision, **settings)


def test_batches_are_made_by_a_reader_thread_during_the_step(monkeypatch):
    makers = []
    pinned = TrainBatch.pinned

    def noted(batch):
        makers.append(threading.current_thread().name)
        return pinned(batch)

    monkeypatch.setattr(TrainBatch, "pinned", noted)
    record_steps("bfloat16")
    assert len(makers) == 2
    assert all(name.startswith("reader") for name in makers)


def test_packed_sequences_take_flash_attention_if_their_heads_fit():
    def takes_flash_attention(emb_dim: int) -> bool:
        settings = {"objective": "causal", "attention_dropout": 0.0, "emb_dim": emb_dim}
        kernels = record_steps("bfloat16", **settings).kernels()
        return any("varlen_attn" in kernel.op for kernel in kernels)

    assert takes_flash_attention(64)
    assert not takes_flash_attention(50)


@pytest.mark.parametrize(("objective", "kernels"), KERNELS.items())
def test_a_step_launches_the_kernels_of_its_budget(objective, kernels):
    """Where a step became faster, write its figure into the table."""
    recorder = record_steps("float32", objective=objective, **BEST)
    counted = recorder.kernels()
    print(*counted, sep="\n")
    assert sum(kernel.kernels for kernel in counted) == kernels


CAPTURED = [
    ("float32", {"objective": "cloze", "attention_dropout": 0.1}),
    ("bfloat16", {"objective": "causal", **BEST}),
    ("float16", {"objective": "hybrid", "clip_norm": 1.0}),
    ("bfloat16", {"loss": "sampled", "clip_norm": 0.01}),
    ("bfloat16", {"loss": "gbce", "head": "tied"}),
    ("bfloat16", {"popularity_correction": 0.5}),
    ("float16", {"accumulation_steps": 2, "train_batch_size": 16, "clip_norm": 1.0}),
]


@pytest.mark.parametrize(("precision", "settings"), CAPTURED, ids=str)
def test_a_step_of_a_known_size_is_one_launch_for_each_batch(precision, settings):
    step, source = build(precision, cuda_graphs=True, num_layers=1, **settings)
    with Recorder():
        for _ in range(5):  # the sizes of an epoch's batches become known, and are captured
            for batch in source.batches(0, 0):
                step(batch, 0.01)
    replays = Graph.replays
    with Recorder() as recorder:
        losses = [step(batch, 0.01) for batch in source.batches(0, 0)]
    assert all(loss.shape == () for loss in losses)
    assert Graph.replays - replays == 2 * settings.get("accumulation_steps", 1)
    beside = {kernel.op for kernel in recorder.kernels()}
    # Inputs, numbers and the loss: nothing of the step itself.
    assert beside <= {"aten::_to_copy", "aten::copy_", "aten::fill_", "aten::clone", "aten::add"}


def test_a_size_is_captured_once_it_has_occurred_a_few_times():
    step, source = build("bfloat16", cuda_graphs=True, num_layers=1, train_batch_size=48)
    replays = Graph.replays
    launched = []
    with Recorder():
        batch, other = source.batches(0, 0)  # of 48 and 16 sequences
        for group in (batch, batch, batch, other, batch, batch, other):
            step(group, 0.01)
            launched.append(Graph.replays - replays)
    assert launched == [0, 0, 0, 0, 1, 2, 2]


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"activation_checkpointing": True}, ("cuda_graphs", "activation_checkpointing")),
        ({"loss": "sampled", "accumulation_steps": 2}, ("cuda_graphs", "accumulation_steps")),
        ({"parallelism": "dmp"}, ("cuda_graphs",)),
    ],
    ids=str,
)
def test_steps_that_cannot_be_captured_are_refused(settings, named):
    with refusal(settings=named):
        build("bfloat16", cuda_graphs=True, **settings)
