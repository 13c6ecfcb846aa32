# SPDX-License-Identifier: Apache-2.0
"""Scores a split, and measures the latency of inference."""

import dataclasses
import itertools
import time
from collections.abc import Iterable

import torch

from dlrm.data.batch import Batch
from dlrm.model.single import Dlrm
from dlrm.train.metrics import ClickMetrics, click_metrics
from training.precision import Precision
from training.timing import LatencySummary, synchronize

_BENCHMARK_WARMUP_STEPS = 10
_DISTINCT_BATCHES = 64
"""Batches kept for the inference benchmark: one batch over and over would stay in the cache."""


@dataclasses.dataclass(frozen=True, slots=True)
class SplitScores:
    """What an evaluation of a split found.

    Attributes:
        metrics: quality of the predictions.
        samples_per_s: rows over the whole time, reading included.
        mean_latency_s: mean time of a batch, reading included.
    """

    metrics: ClickMetrics
    samples_per_s: float
    mean_latency_s: float


@torch.no_grad()
def score_split(
    model: Dlrm,
    batches: Iterable[Batch],
    precision: Precision,
    device: torch.device,
    metrics_device: torch.device,
) -> SplitScores:
    """Scores every row of a split.

    Args:
        model: put into evaluation mode here.
        batches: of the split, on `device`.
        precision: of the forward pass.
        device: of the model.
        metrics_device: where scores are sorted.
    """
    model.eval()
    logits, labels = [], []
    started = time.perf_counter()
    for batch in batches:
        with precision.autocast():
            logits.append(model(batch.numerical, batch.ids).to(torch.float32))
        labels.append(batch.label > 0.5)
    synchronize(device)
    elapsed = time.perf_counter() - started
    metrics = click_metrics(
        torch.cat(logits).to(metrics_device), torch.cat(labels).to(metrics_device)
    )
    return SplitScores(metrics, metrics.num_rows / elapsed, elapsed / len(logits))


@dataclasses.dataclass(frozen=True, slots=True)
class InferenceFigures:
    """Latency of one batch size; the batch lies on the device already.

    Attributes:
        batch_size: rows of a batch.
        latency: over the measured steps.
        samples_per_s: batch size over the mean latency.
    """

    batch_size: int
    latency: LatencySummary
    samples_per_s: float


@torch.inference_mode()
def measure_inference(
    model: Dlrm,
    batches: Iterable[Batch],
    precision: Precision,
    device: torch.device,
    num_steps: int,
) -> InferenceFigures:
    """Measures the latency of the forward pass, up to the probabilities.

    Args:
        model: put into evaluation mode here.
        batches: of one size, on `device`; a few dozen different ones are taken in turn.
        precision: of the forward pass.
        device: of the model; each step waits for it, since latency is what is asked for.
        num_steps: measured steps, after ten that are not.
    """
    model.eval()
    kept = list(itertools.islice(batches, _DISTINCT_BATCHES))
    durations = []
    for step, batch in zip(
        range(-_BENCHMARK_WARMUP_STEPS, num_steps), itertools.cycle(kept), strict=False
    ):
        synchronize(device)
        started = time.perf_counter()
        with precision.autocast():
            torch.sigmoid(model(batch.numerical, batch.ids))
        synchronize(device)
        if step >= 0:
            durations.append(time.perf_counter() - started)
    latency = LatencySummary.of(durations)
    return InferenceFigures(len(kept[0]), latency, len(kept[0]) / latency.mean_s)
