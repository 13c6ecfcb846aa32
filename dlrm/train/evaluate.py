# SPDX-License-Identifier: Apache-2.0
"""Evaluates a DLRM on a split."""

import dataclasses
import logging
import math
import time
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from dlrm.data.batch import Batch
from dlrm.model.network import DlrmNetwork
from dlrm.nn.embedding import LookupsT
from dlrm.train.metrics import ClickMetrics, GroupAuc, click_metrics, group_auc
from recsys.errors import DivergenceError
from recsys.train.divergence import ADVICE, find_nonfinite
from recsys.train.measure.timing import synchronize
from recsys.train.optimizers.precision import Precision
from recsys.train.processes import ALONE, Processes

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True)
class SplitScores:
    """Metrics and speed of an evaluation.

    Attributes:
        metrics: quality of the predictions on all samples.
        samples_per_s: samples of all ranks per second, reading included.
        mean_latency_s: mean seconds per batch, reading included.
        logits: [rows] float32 of all ranks, one after the other; on one, in the order of the split.
        labels: [rows] bool.
        within_groups: AUC within the groups that were asked for.
    """

    metrics: ClickMetrics
    samples_per_s: float
    mean_latency_s: float
    logits: Tensor
    labels: Tensor
    within_groups: GroupAuc | None = None


@torch.no_grad()
def score_split(
    model: DlrmNetwork[LookupsT],
    batches: Iterable[Batch[LookupsT]],
    precision: Precision,
    device: torch.device,
    processes: Processes = ALONE,
    groups_of: Callable[[Batch[LookupsT]], Tensor] | None = None,
) -> SplitScores:
    """Predicts every sample of a split and computes the metrics.

    Args:
        model: the network, put into evaluation mode here.
        batches: this rank's batches of the split, on `device`.
        precision: autocast of the forward pass.
        device: device of the model.
        processes: ranks that evaluate together; all get the same metrics.
        groups_of: returns [B] integers, the group of each row, for the AUC within groups; negative
            ones for rows that belong to no group.

    Raises:
        DivergenceError: a prediction is NaN or infinite.
    """
    model.eval()
    logits, labels, groups = [], [], []
    started = time.perf_counter()
    for batch in batches:
        with precision.autocast():
            logits.append(model(batch.numerical, batch.ids).to(torch.float32))
        labels.append(batch.label > 0.5)
        if groups_of is not None:
            groups.append(groups_of(batch))
    synchronize(device)
    elapsed = time.perf_counter() - started
    all_logits = processes.gather(torch.cat(logits))
    if find_nonfinite({"logits": all_logits}) is not None:
        raise DivergenceError(
            "a prediction is NaN or infinite: the parameters have diverged, or the split holds "
            f"such numbers. {ADVICE}; check the data with recsys-recipes verify"
        )
    all_labels = processes.gather(torch.cat(labels).to(torch.uint8)) > 0
    metrics = click_metrics(all_logits.to(device), all_labels.to(device))
    within_groups = None
    if groups:
        of_rows = processes.gather(torch.cat(groups))
        columns = (all_logits, all_labels, of_rows)
        within_groups = group_auc(*(column.to(device) for column in columns))
    return SplitScores(
        metrics=metrics,
        samples_per_s=metrics.num_rows / elapsed,
        mean_latency_s=elapsed / len(logits),
        logits=all_logits,
        labels=all_labels,
        within_groups=within_groups,
    )


def check_auc(metrics: ClickMetrics) -> None:
    """Refuses an AUC of a random model after an epoch of training.

    A split too small to tell gets a warning.

    Raises:
        DivergenceError: |auc - 0.5| is below 0.01, and the split is large enough to tell.
    """
    auc, positives = metrics.auc, round(metrics.base_rate * metrics.num_rows)
    negatives = metrics.num_rows - positives
    if min(positives, negatives) == 0:
        return
    # Standard error of the AUC of a random score. Source: Hanley and McNeil 1982.
    error = math.sqrt((positives + negatives + 1) / (12 * positives * negatives))
    if error >= 0.003 and abs(auc - 0.5) < 2 * error:
        logger.warning(
            "AUC %.3f on %d rows is no better than chance (0.5 +- %.3f): train longer, or with "
            "settings for data of this size (docs/dlrm.md, Training)",
            auc,
            metrics.num_rows,
            2 * error,
        )
    if math.isnan(auc) or (error < 0.003 and abs(auc - 0.5) < 0.01):
        raise DivergenceError(
            f"AUC {auc:.4f} after an epoch of training: the model is guessing. Labels and features "
            f"may be misaligned (files of different runs mixed), or the model diverged. {ADVICE}; "
            "check the data with recsys-recipes verify"
        )


def groups_in_order(groups: Tensor) -> Callable[[Batch[Any]], Tensor]:
    """Returns `groups_of` for batches in the order of the rows.

    Args:
        groups: [rows] integers, of all rows of the split.
    """
    rest = groups

    def groups_of(batch: Batch[Any]) -> Tensor:
        nonlocal rest
        of_batch, rest = rest[: len(batch)], rest[len(batch) :]
        return of_batch

    return groups_of
