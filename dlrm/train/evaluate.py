# SPDX-License-Identifier: Apache-2.0
"""Scores a split, and measures the latency of inference."""

import dataclasses
import functools
import itertools
import time
from collections.abc import Iterable

import torch

from dlrm.data.batch import Batch
from dlrm.model.network import DlrmNetwork
from dlrm.nn.embedding import LookupsT
from dlrm.train.metrics import ClickMetrics, click_metrics
from recsys.train.latency import DISTINCT_INPUTS, InferenceFigures, measure_latency
from recsys.train.precision import Precision
from recsys.train.processes import ALONE, Processes
from recsys.train.timing import synchronize


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
    model: DlrmNetwork[LookupsT],
    batches: Iterable[Batch[LookupsT]],
    precision: Precision,
    device: torch.device,
    metrics_device: torch.device,
    processes: Processes = ALONE,
) -> SplitScores:
    """Scores every row of a split.

    Args:
        model: put into evaluation mode here.
        batches: of the split, on `device`; each process its part of them.
        precision: of the forward pass.
        device: of the model.
        metrics_device: where scores are sorted.
        processes: that score the split together; all of them get the same figures.
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
    all_logits = processes.gather(torch.cat(logits))
    all_labels = processes.gather(torch.cat(labels).to(torch.uint8)) > 0
    metrics = click_metrics(all_logits.to(metrics_device), all_labels.to(metrics_device))
    return SplitScores(metrics, metrics.num_rows / elapsed, elapsed / len(logits))


def measure_inference(
    model: DlrmNetwork[LookupsT],
    batches: Iterable[Batch[LookupsT]],
    batch_size: int,
    precision: Precision,
    device: torch.device,
    num_steps: int,
) -> InferenceFigures:
    """Measures the latency of the forward pass, up to the probabilities.

    Args:
        model: put into evaluation mode here.
        batches: of one size, on `device`; a few dozen different ones are taken in turn.
        batch_size: samples of each, over all processes.
        precision: of the forward pass.
        device: of the model.
        num_steps: measured steps.
    """
    model.eval()
    kept = list(itertools.islice(batches, DISTINCT_INPUTS))

    def infer(batch: Batch[LookupsT]) -> None:
        with precision.autocast():
            torch.sigmoid(model(batch.numerical, batch.ids))

    calls = [functools.partial(infer, batch) for batch in kept]
    return measure_latency(calls, batch_size, device, num_steps)
