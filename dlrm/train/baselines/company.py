# SPDX-License-Identifier: Apache-2.0
"""Compares a tested model with simpler models fitted to the same training rows."""

import dataclasses
import math
import types
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from dlrm.data.opened import list_lengths
from dlrm.train.baselines.fit_rows import HELD_OUT, FitRows, chosen_by
from dlrm.train.baselines.paired import AUC, LOG_LOSS, leads_over
from dlrm.train.baselines.trees import NoLightGbmError, Trees
from dlrm.train.metrics import ClickMetrics, click_metrics
from recsys.data.click_columns import ClickColumns
from recsys.data.errors import DatasetError
from recsys.models.logistic.regression import Floats, LogisticRegression
from recsys.models.logistic.rows import SplitRows, spread
from recsys.train.measure.verdict import VERDICT, Lead, verdict
from recsys.train.recipe import PrintLine

CONSTANT, LOGISTIC, LIGHTGBM = "constant", "logistic_regression", "lightgbm"

_MOST_ROWS = {LOGISTIC: 500_000, LIGHTGBM: 200_000}
_MOST_VALUES = {LOGISTIC: 8_000_000, LIGHTGBM: 4_000_000}
"""Most rows, and most values of their features, to fit a baseline to: this takes seconds."""
_MOST_TESTED = 1 << 20


class _Baseline(Protocol):
    def logits(self, block: ClickColumns) -> Floats: ...


@dataclasses.dataclass(frozen=True, slots=True)
class _Constant:
    """The click rate of the training rows, for every row."""

    rate: float

    def logits(self, block: ClickColumns) -> Floats:
        return np.full(len(block), math.log(self.rate) - math.log1p(-self.rate))


@dataclasses.dataclass(frozen=True, slots=True)
class Company:
    """The baselines of a run, fitted to its training rows.

    Attributes:
        rows: rows of its dataset.
        wanted: names of baselines in addition to the click rate.
    """

    rows: FitRows
    wanted: Collection[str]
    print_line: PrintLine

    def beside(
        self,
        logits: Floats,
        labels: npt.NDArray[np.bool_],
        parts: Mapping[str, Floats] = types.MappingProxyType({}),
    ) -> Mapping[str, Any]:
        """Compares a model with the baselines; prints a table and a verdict.

        Args:
            logits: [rows] float64 of the model, for each row of `eval_split` in order.
            labels: [rows] bool.
            parts: if the model combines several models, the name of each -> its [rows] logits.

        Returns:
            Metrics and differences to log; empty if nothing could be compared.
        """
        if labels.all() or not labels.any():
            return {}
        split = self.rows.data.eval_split
        baselines, told = dict[str, _Baseline](), list[str]()
        try:
            baselines, told = self._fit()
        except DatasetError as error:  # a test needs no training rows
            self.print_line(f"The model is not compared with baselines: {error}")
        if not baselines and not parts:
            return {}
        reader = self.rows.reader(split)
        ranges = spread(0, len(labels), _MOST_TESTED)
        tested = np.concatenate([np.arange(rows.start, rows.stop) for rows in ranges])
        logits, labels = logits[tested], labels[tested]
        of_blocks: dict[str, list[Floats]] = {name: [] for name in baselines}
        for rows in ranges:
            block = reader.read(rows.start, rows.stop)
            for name, baseline in baselines.items():
                of_blocks[name].append(baseline.logits(block))
        found = {name: each[tested] for name, each in parts.items()}
        found |= {name: np.concatenate(blocks) for name, blocks in of_blocks.items()}
        leads = {name: leads_over(name, each, logits, labels) for name, each in found.items()}
        metrics = {
            name: click_metrics(torch.from_numpy(each), torch.from_numpy(labels))
            for name, each in ({"model": logits} | found).items()
        }
        of_rows = f"{len(labels):,} rows of the {split} split"
        for line in _table(metrics, leads, of_rows):
            self.print_line(line)
        for line in told:
            self.print_line(line)
        sentence = verdict([lead for of_one in leads.values() for lead in of_one])
        self.print_line(f"Verdict: {sentence}")
        del metrics["model"]
        return (
            {
                f"{name}_{metric}": getattr(each, metric)
                for name, each in metrics.items()
                for metric in (AUC, LOG_LOSS, "calibration")
            }
            | {
                f"lead_{name}_{lead.metric}{end}": value
                for name, of_one in leads.items()
                for lead in of_one
                for end, value in (("", lead.value), ("_low", lead.low), ("_high", lead.high))
            }
            | {VERDICT: sentence}
        )

    def _fit(self) -> tuple[dict[str, _Baseline], list[str]]:
        """Fits the baselines; returns them and lines that describe how."""
        dataset = self.rows.dataset
        validation = self.rows.count_validation()
        is_trained_on = validation == 0
        by = chosen_by(validation)
        rows, held_out = self._read(LOGISTIC, validation)
        rate = rows.labels.mean()
        if not 0 < rate < 1 or not len(held_out):
            self.print_line(
                "The model is not compared with baselines: there are too few training rows, or "
                "they are all of one class"
            )
            return {}, []
        fitted: dict[str, _Baseline] = {CONSTANT: _Constant(float(rate))}
        lines = []
        if LOGISTIC in self.wanted:
            sizes = dataset.spec.table_sizes
            model = LogisticRegression.fit(rows, held_out, sizes, refit=is_trained_on)
            fitted[LOGISTIC] = model
            lines.append(
                f"{LOGISTIC}: one-hot ids and binned numbers, {model.one_hot.width:,} columns, L2 "
                f"{model.penalty:g} chosen by {by}"
                f"{self._sampled(rows, held_out, validation)}"
            )
        if LIGHTGBM in self.wanted:
            rows, held_out = self._read(LIGHTGBM, validation)
            try:
                trees = Trees.fit(
                    rows,
                    held_out,
                    torch.get_num_threads(),
                    shares_id_zero=dataset.shares_id_zero,
                    refit=is_trained_on,
                )
                fitted[LIGHTGBM] = trees
                without = ", without the lists" if dataset.spec.lists else ""
                lines.append(
                    f"{LIGHTGBM}: {trees.chosen} chosen by {by}{without}"
                    f"{self._sampled(rows, held_out, validation)}"
                )
            except NoLightGbmError as error:
                lines.append(f"{LIGHTGBM} is left out: {error}")
        return fitted, lines

    def _read(self, baseline: str, validation: int) -> tuple[SplitRows, SplitRows]:
        """Reads training rows and rows that choose settings, at most the limits of a baseline.

        Args:
            baseline: name of the baseline.
            validation: number of validation rows that may choose; 0 uses training rows.
        """
        dataset = self.rows.dataset
        lengths = list_lengths(dataset.manifest.semantics) if dataset.manifest else ()
        values = len(dataset.spec.numerical) + len(dataset.spec.categorical) + sum(lengths)
        most = min(_MOST_ROWS[baseline], _MOST_VALUES[baseline] // max(values, 1))
        few = most // HELD_OUT
        return self.rows.read(validation, most if validation else most - few, few)

    def _sampled(self, rows: SplitRows, held_out: SplitRows, validation: int) -> str:
        """Describes the sample if not all training rows were read; otherwise returns ''."""
        total = self.rows.count()
        read = len(rows) if validation else len(rows) + len(held_out)
        return f"; fitted to {read:,} of {total:,} training rows, evenly spread" * (read < total)


def _table(
    metrics: Mapping[str, ClickMetrics], leads: Mapping[str, list[Lead]], of_rows: str
) -> Iterator[str]:
    """Yields a table: the metrics of each model, and how far the tested model is ahead of it."""
    width = max(map(len, metrics))
    yield (
        f"The model and its baselines on {of_rows}, with the differences (model minus baseline) "
        "and their 95% intervals"
    )
    yield f"{'':{width}}{'auc':>10}{'log loss':>10}{'calibr.':>9}  {'auc difference':<30}" + (
        "log loss difference"
    )
    for name, each in metrics.items():
        differences = "".join(
            f"  {f'{lead.value:+.4f} ({lead.low:+.4f} to {lead.high:+.4f})':<28}"
            for lead in leads.get(name, ())
        )
        numbers = f"{each.auc:10.4f}{each.log_loss:10.4f}{each.calibration:9.3f}"
        yield f"{name:{width}}{numbers}{differences}".rstrip()
