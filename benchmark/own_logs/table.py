# SPDX-License-Identifier: Apache-2.0
"""The table of the case own_logs: a row for each log, with the best of the other models."""

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from benchmark.own_logs.catalogue import LOGS
from benchmark.record import Record
from dlrm.train.baselines.paired import AUC, LOG_LOSS
from recsys.train.measure.verdict import Lead

NAME = "own_logs"
OTHERS = ("logistic_regression", "lightgbm", "catboost")
ROWS, SECONDS = "training rows", "training"

_TITLES = {AUC: "AUC", LOG_LOSS: "log loss"}

Row = Mapping[str, float | None]
"""Values of a log by the names under which a test logs them."""


class Best(NamedTuple):
    """The best of the other models in a metric.

    Attributes:
        value: its value of the metric.
        lead: by how much ours differs.
    """

    value: float
    lead: Lead


def rows_of(records: Sequence[Record]) -> dict[str, Row]:
    """Returns the values of each log, in the order of the catalogue."""
    found: dict[str, dict[str, float | None]] = {}
    for record in records:
        found.setdefault(record.candidate, {})[record.metric] = record.value
    return {name: found[name] for name in LOGS if name in found}


def best_of_others(row: Row, metric: str) -> Best | None:
    """Returns the best of the other models, or None."""
    is_loss = metric == LOG_LOSS
    values = {name: row.get(f"{name}_{metric}") for name in OTHERS}
    known = {name: value for name, value in values.items() if value is not None}
    if not known:
        return None
    name = (min if is_loss else max)(known, key=lambda each: known[each])
    ends = [row[f"lead_{name}_{metric}{end}"] for end in ("", "_low", "_high")]
    value, low, high = (np.nan if end is None else end for end in ends)
    return Best(known[name], Lead(metric, name, value, low, high, less_is_better=is_loss))


def own_logs_table(records: Sequence[Record]) -> list[str]:
    """Formats the lines of the table, and one with the mean over the logs."""
    rows = rows_of(records)
    best = {
        metric: {n: best_of_others(row, metric) for n, row in rows.items()} for metric in _TITLES
    }
    head = ["log", "columns", ROWS]
    for title in _TITLES.values():
        head += [title, "best other", "difference (95%)"]
    lines = [_line([*head, "verdict", f"{SECONDS} (s)"])]
    lines.append("| --- | --- | ---: |" + " ---: | --- | --- |" * len(_TITLES) + " --- | ---: |")
    for name, row in rows.items():
        cells = [name, LOGS[name].kind, _shown(row.get(ROWS), ",.0f")]
        for metric in _TITLES:
            cells += [_shown(row.get(metric), ".4f"), *_compared(best[metric][name])]
        told = _outcomes({_TITLES[m]: each for m in _TITLES if (each := best[m][name]) is not None})
        lines.append(_line([*cells, told, _shown(row.get(SECONDS), ",.0f")]))
    return [*lines, *_mean(rows, best)]


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _shown(value: float | None, form: str) -> str:
    return "failed" if value is None else format(value, form)


def _compared(best: Best | None) -> tuple[str, str]:
    if best is None:
        return "", ""
    lead = best.lead
    return (
        f"{best.value:.4f} {lead.baseline}",
        f"{lead.value:+.4f} ({lead.low:+.4f} to {lead.high:+.4f})",
    )


def _outcomes(best: Mapping[str, Best]) -> str:
    """Returns how ours compares in each metric, metrics with the same verdict together."""
    titles = sorted(best, key=lambda title: best[title].lead.outcome)
    grouped = itertools.groupby(titles, key=lambda title: best[title].lead.outcome)
    told = {outcome: list(of_it) for outcome, of_it in grouped}
    if len(told) == 1:
        return next(iter(told))
    return ", ".join(f"{outcome} in {' and '.join(of_it)}" for outcome, of_it in told.items())


def _mean(rows: Mapping[str, Row], best: Mapping[str, Mapping[str, Best | None]]) -> Iterator[str]:
    """Yields the line of means over the logs that have both ours and another model."""
    if len(rows) < 2:
        return
    cells, told = ["mean", "", ""], []
    for metric, title in _TITLES.items():
        known = {name: each for name, each in best[metric].items() if each is not None}
        if not known:
            return
        ours = np.mean([rows[name][metric] for name in known])
        others = np.mean([each.value for each in known.values()])
        leads = np.mean([each.lead.value for each in known.values()])
        cells += [f"{ours:.4f}", f"{others:.4f}", f"{leads:+.4f}"]
        counts = Counter(each.lead.outcome for each in known.values())
        words = ", ".join(f"{counts[w]} {w}" for w in ("ahead", "level", "behind") if counts[w])
        told.append(f"{title}: {words}")
    yield _line([*cells, "; ".join(told), ""])
