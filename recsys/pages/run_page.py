# SPDX-License-Identifier: Apache-2.0
"""The page of a training run, drawn from its log."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from recsys.pages.charts import Axis, line_chart, range_chart
from recsys.pages.page import Section, render_page

_STEP_CHARTS = {
    "loss": "Training loss, mean since the last point",
    "lr": "Learning rate",
    "step_time": "Seconds per step",
    "data_wait": "Seconds per step that wait for a batch",
}
_RANKING_CUT = "@10"
_CALIBRATION, _IMPORTANCE = "calibration_curve", "feature_importance"
_MOST_FEATURES = 20

Series = dict[str, list[tuple[float, float]]]


def run_page(
    entries: Iterable[Mapping[str, Any]], title: str, links: Sequence[tuple[str, str]] = ()
) -> str:
    """Returns the page of a run: curves, final metrics and settings.

    Links are (text, address) of files beside it, such as a profile.
    """
    steps: Series = {}
    evaluated: Series = {}
    final: dict[str, Any] = {}
    settings: dict[str, Any] = {}
    for entry in entries:
        step, data = entry["step"], entry["data"]
        if step == "PARAMETER":
            settings |= data
        elif not step:
            final |= data
        else:
            curves = steps if "loss" in data else evaluated
            for name, value in data.items():
                if isinstance(value, int | float):
                    curves.setdefault(name, []).append((float(step[1]), float(value)))
    calibration, importance = final.pop(_CALIBRATION, []), final.pop(_IMPORTANCE, {})
    sections = [
        Section("Training", _text_of(final), _step_charts(steps), links=links),
        Section("Evaluation", (), [*_evaluation_charts(evaluated), *_calibration(calibration)]),
        _importance(importance),
        Section("Final metrics", (), (), [("metric", "value"), *_rows(final)]),
        Section("Settings", (), (), [("setting", "value"), *_rows(settings)]),
    ]
    return render_page(title, [], [s for s in sections if s.charts or len(s.table) > 1])


def _text_of(final: Mapping[str, Any]) -> list[str]:
    rate = final.get("average_train_throughput")
    return [] if rate is None else [f"{rate:,.1f} samples per second."]


def _step_charts(steps: Series) -> list[str]:
    return [
        line_chart(text, Axis("step"), Axis(name, from_zero=name != "loss"), {name: steps[name]})
        for name, text in _STEP_CHARTS.items()
        if name in steps
    ]


def _evaluation_charts(evaluated: Series) -> list[str]:
    """Draws each metric; a chart has a line per ranking."""
    charts: dict[str, Series] = {}
    for name, points in evaluated.items():
        if len(points) > 1 and len({value for _, value in points}) == 1:
            continue  # such as the number of rows
        ranking, _, metric = name.rpartition("_")
        if metric.endswith(_RANKING_CUT) or metric == "mrr":
            charts.setdefault(metric, {})[ranking] = points
        elif "@" not in name:
            charts.setdefault(name, {})[name] = points
    return [line_chart(name, Axis("step"), Axis(""), series) for name, series in charts.items()]


def _calibration(curve: Sequence[tuple[float, float]]) -> list[str]:
    if not curve:
        return []
    ends = [min(map(min, curve)), max(map(max, curve))]
    series = {"tenths of the rows": curve, "calibrated": [(end, end) for end in ends]}
    return [line_chart("Calibration", Axis("mean prediction"), Axis("share of clicks"), series)]


def _importance(rises: Mapping[str, tuple[float, float, float]]) -> Section:
    most = dict(list(rises.items())[:_MOST_FEATURES])
    return Section(
        "Features",
        [
            "The rise of the log loss, in nats, when the values of a feature are shuffled: the "
            "mean over a few shuffles, with the least and the most of them, which is no interval "
            "of confidence."
        ],
        [range_chart("Importance", "rise of the log loss", most)] if most else (),
        [
            ("feature", "rise", "least", "most"),
            *((n, *(f"{v:.5f}" for v in r)) for n, r in rises.items()),
        ],
    )


def _rows(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [
        (name, f"{value:.6g}" if isinstance(value, float) else str(value))
        for name, value in values.items()
    ]
