# SPDX-License-Identifier: Apache-2.0
"""Evaluates a click model on a split and reports its quality."""

import contextlib
import dataclasses
import logging
import math
import time
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from dlrm.config import DataConfig
from dlrm.data.batch import Batch
from dlrm.data.check_rows import name_only_class
from dlrm.data.drift import SplitSample
from dlrm.data.opened import OpenedDataset
from dlrm.model.clicks import ClickModel
from dlrm.nn.embedding import LookupsT
from dlrm.train.health import data_lines, metric_lines
from dlrm.train.metrics import ClickMetrics, GroupAuc, click_metrics, group_auc
from recsys.data.errors import DatasetError
from recsys.errors import DivergenceError, UserError
from recsys.train.divergence import ADVICE, find_nonfinite
from recsys.train.measure.timing import synchronize
from recsys.train.optimizers.precision import Precision
from recsys.train.processes import ALONE, Processes
from recsys.train.recipe import PrintLine

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True)
class SplitScores:
    """Metrics and speed of an evaluation.

    Attributes:
        metrics: quality of the predictions on all samples.
        samples_per_s: samples of all ranks per second, including reading.
        mean_latency_s: mean seconds per batch, including reading.
        logits: [rows] float32, rank after rank; on one rank, in the order of the split.
        labels: [rows] bool, in the order of `logits`.
        within_groups: AUC within the requested groups; None if none were requested.
    """

    metrics: ClickMetrics
    samples_per_s: float
    mean_latency_s: float
    logits: Tensor
    labels: Tensor
    within_groups: GroupAuc | None = None


@torch.no_grad()
def score_split(
    model: ClickModel[LookupsT],
    batches: Iterable[Batch[LookupsT]],
    precision: Precision,
    device: torch.device,
    processes: Processes = ALONE,
    groups_of: Callable[[Batch[LookupsT]], Tensor] | None = None,
) -> SplitScores:
    """Predicts every sample of a split and computes the metrics.

    Args:
        model: switched to evaluation mode.
        batches: this rank's batches of the split, on `device`.
        precision: autocast of the forward pass.
        device: device of the model.
        processes: ranks that evaluate together; all get the same metrics.
        groups_of: returns [B] integers, the group of each row, for the AUC within groups; negative
            for rows without a group. None computes no AUC within groups.

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
            "a prediction is NaN or infinite: the parameters have diverged, or the split contains "
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


@dataclasses.dataclass(frozen=True, slots=True)
class SplitTest:
    """Reports the quality of a model on `eval_split`.

    Attributes:
        data: settings of the dataset.
        gauc_by: feature or group column within whose rows to compute the AUC; None computes none.
    """

    data: DataConfig
    dataset: OpenedDataset
    gauc_by: str | None
    print_line: PrintLine

    def groups_of(self) -> Callable[[Batch[Any]], Tensor] | None:
        """Returns a function from a batch to the groups of its rows; None without `gauc_by`.

        The groups are ids of the feature; id 0 becomes -1 if missing, rare and unseen values
        share it.

        Raises:
            UserError: the dataset does not have this feature.
        """
        if (feature := self.gauc_by) is None:
            return None
        names = [categorical.name for categorical in self.dataset.spec.categorical]
        if feature == self.dataset.group_column:
            return groups_in_order(torch.from_numpy(self.dataset.groups(self.data.eval_split)))
        if feature not in names:
            raise UserError(
                f"`gauc_by` {feature} is not a categorical feature of the dataset or its "
                f"group; choose {', '.join([*names, *filter(None, [self.dataset.group_column])])}",
                setting="gauc_by",
            )
        column, shares_id_zero = names.index(feature), self.dataset.shares_id_zero

        def groups_of(batch: Batch[Any]) -> Tensor:
            has_lists = bool(self.dataset.spec.lists)
            ids: Tensor = batch.ids.column(column) if has_lists else batch.ids[:, column]
            return ids.where(ids != 0, -1) if shares_id_zero else ids

        return groups_of

    def report(self, scores: SplitScores, label: str) -> dict[str, Any]:
        """Prints the metrics of an evaluation; returns the values to log."""
        metrics, split = scores.metrics, self.data.eval_split
        self.print_line(
            f"{label} on the {split} split, {metrics.num_rows} "
            f"rows: auc {metrics.auc:.6f}, log loss {metrics.log_loss:.6f}, normalised entropy "
            f"{metrics.normalised_entropy:.4f}, calibration {metrics.calibration:.4f}, "
            f"{scores.samples_per_s:,.0f} samples/s"
        )
        if only_class := name_only_class(metrics.base_rate):
            self.print_line(undefined_auc(split, only_class))
        gauc: dict[str, float] = {}
        if (within := scores.within_groups) is not None:
            by, left_out = self.gauc_by, ""
            if by == self.dataset.group_column or self.dataset.shares_id_zero:
                without = "rows without a group"
                if by != self.dataset.group_column:
                    without = "id 0, the missing, rare and unseen values"
                left_out = (
                    f"; without {without}: {within.num_left_out:,} rows, "
                    f"{within.num_left_out / metrics.num_rows:.1%}"
                )
            self.print_line(
                f"AUC within the rows of each {by}: {within.auc:.6f}, "
                f"the mean over the {within.num_groups:,} with clicked and other rows "
                f"({within.num_rows:,} rows){left_out}"
            )
            gauc = {
                "gauc": within.auc,
                "gauc_groups": within.num_groups,
                "gauc_rows_left_out": within.num_left_out,
            }
        return (
            dataclasses.asdict(metrics)
            | gauc
            | {
                "avg_inference_latency": scores.mean_latency_s,
                "average_test_throughput": scores.samples_per_s,
            }
        )

    def report_health(self, metrics: ClickMetrics | None, training_rows: int | None = None) -> None:
        """Prints problems of the model or its data, after a test.

        Args:
            metrics: metrics of the test; None reports only on the data.
            training_rows: number of rows in a training epoch; None for all rows.
        """
        split, tables = self.data.eval_split, self.dataset.spec.table_names
        lines = [] if metrics is None else metric_lines(metrics, split)
        with contextlib.suppress(DatasetError, OSError):  # a test needs no training rows
            train, evaluated = (
                self.dataset.rows(each, check_ids=False) for each in ("train", split)
            )
            rows = train.num_rows if training_rows is None else min(training_rows, train.num_rows)
            lines += data_lines(
                SplitSample.read(train, rows),
                SplitSample.read(evaluated, evaluated.num_rows),
                split,
                tables if self.dataset.shares_id_zero else (),
            )
        for line in lines:
            self.print_line(line)


def undefined_auc(split: str, only_class: str) -> str:
    """Returns the message for a split of one class, whose AUC is undefined."""
    return f"The {split} split has {only_class}: its AUC is undefined"


def check_auc(metrics: ClickMetrics) -> None:
    """Refuses the AUC of a random model after an epoch of training.

    If the split is too small for certainty, it only warns.

    Raises:
        DivergenceError: |auc - 0.5| is below 0.01, and the split is large enough to be certain.
    """
    auc, positives = metrics.auc, round(metrics.base_rate * metrics.num_rows)
    negatives = metrics.num_rows - positives
    if min(positives, negatives) == 0:
        return
    # Standard error of the AUC of a random score. Source: Hanley and McNeil 1982.
    error = math.sqrt((positives + negatives + 1) / (12 * positives * negatives))
    if error >= 0.003 and abs(auc - 0.5) < 2 * error:
        logger.warning(
            "AUC %.3f on %d rows is not better than chance (0.5 +- %.3f): train longer, or use "
            "settings for data of this size (docs/dlrm.md, Training)",
            auc,
            metrics.num_rows,
            2 * error,
        )
    if math.isnan(auc) or (error < 0.003 and abs(auc - 0.5) < 0.01):
        raise DivergenceError(
            f"AUC {auc:.4f} after an epoch of training: the model is guessing. Labels and features "
            f"may be misaligned (mixed files of several runs), or the model diverged. {ADVICE}; "
            "check the data with recsys-recipes verify"
        )


def groups_in_order(groups: Tensor) -> Callable[[Batch[Any]], Tensor]:
    """Returns `groups_of` for batches in the order of the rows.

    Args:
        groups: [rows] integers, the group of each row of the split.
    """
    rest = groups

    def groups_of(batch: Batch[Any]) -> Tensor:
        nonlocal rest
        of_batch, rest = rest[: len(batch)], rest[len(batch) :]
        return of_batch

    return groups_of
