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


_HEADLINES = (
    *("auc", "best_auc", "log_loss", "test_full_ndcg@10", "test_full_hr@10", "best_metric"),
    *("average_train_throughput", "average_test_throughput"),
)
"""Figures that open the page, of those that a run has."""
_VERDICTS = ("verdict", "test_verdict")
"""Sentences on the model beside its baselines, the first that a run has."""
_DATASETS = ("dataset", "dataset_path", "dataset_type", "dataset_name")
"""Settings that name the dataset, the first that is set."""


def run_page(
    entries: Iterable[Mapping[str, Any]],
    title: str,
    links: Sequence[tuple[str, str]] = (),
    command: str = "",
) -> str:
    """Returns the page of a run: figures, curves, final metrics and settings.

    Args:
        entries: of its log.
        title: heading.
        links: (text, address) of files beside it, such as a profile.
        command: command that started it.
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
    last = {name: points[-1][1] for name, points in evaluated.items()}
    figures = {name: (last | final).get(name) for name in _HEADLINES}
    dataset = next((str(settings[name]) for name in _DATASETS if settings.get(name)), "")
    sections = [
        Section("Training", (), _step_charts(steps), links=links),
        Section(
            "Evaluation",
            (),
            [*_evaluation_charts(evaluated), *_calibration(calibration)],
            [("last evaluation", "value"), *_rows(last)],
        ),
        _importance(importance),
        Section("Final metrics", (), (), [("metric", "value"), *_rows(final)]),
        Section("Settings", (), (), [("setting", "value"), *_rows(settings)]),
    ]
    verdict = next((str(final[name]) for name in _VERDICTS if name in final), "")
    opening = [
        ", ".join(f"{name} {value}" for name, value in _rows(figures) if value != "None"),
        verdict and f"Verdict: {verdict}",
        dataset and f"Dataset: {dataset}",
        command and f"Command: {command}",
    ]
    shown = [section for section in sections if section.charts or len(section.table) > 1]
    return render_page(title, [line for line in opening if line], shown)


def _step_charts(steps: Series) -> list[str]:
    return [
        line_chart(text, Axis("step"), Axis(name, from_zero=name != "loss"), {name: steps[name]})
        for name, text in _STEP_CHARTS.items()
        if len(steps.get(name, ())) > 1
    ]


def _evaluation_charts(evaluated: Series) -> list[str]:
    """Draws each metric that changed; a chart has a line per ranking."""
    charts: dict[str, Series] = {}
    for name, points in evaluated.items():
        if len({value for _, value in points}) == 1:
            continue  # of one evaluation, or such as the number of rows
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
