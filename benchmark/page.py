# SPDX-License-Identifier: Apache-2.0
"""The page of all results: charts of values, curves and histories."""

import statistics
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from benchmark.record import Record, latest, read_records
from recsys.pages.charts import Axis, line_chart, range_chart
from recsys.pages.page import Section, render_page

_LONGEST_NAME = 58
_PERCENTILES = {"p50": 50.0, "p90": 90.0, "p99": 99.0}
_MOST_LINES = 6
_TITLE = "Benchmarks of Recsys Recipes"
_LEGEND = (
    "Medians; the thin line spans the 10th to the 90th percentile of the runs. Only values of "
    "equal hardware and settings are comparable."
)
_ROOFLINE = (
    "The floor of a case is the roofline of the machine: the time to move its bytes at the speed "
    "of a copy or to do its operations at the speed of a matrix product, whichever is longer, "
    "both measured beside it."
)


def results_page(folder: Path) -> str:
    """Returns a page with a section per results file.

    Raises:
        ValueError: there are no results, or a line is no record.
    """
    return render_page(_TITLE, [_LEGEND], _sections(folder))


def results_document(folder: Path) -> str:
    """Returns the same sections as a Markdown document, for a site.

    Raises:
        ValueError: as above.
    """
    lines = [f"# {_TITLE}", _LEGEND]
    for one in _sections(folder):
        charts = "\n".join(['<div class="charts">', *one.charts, "</div>"])
        lines += [f"## {one.title}", *(escape(text, quote=False) for text in one.text), charts]
    return "\n\n".join(lines) + "\n"


def _sections(folder: Path) -> list[Section]:
    files = {path.stem: read_records(path) for path in sorted(folder.glob("*.jsonl"))}
    if not any(files.values()):
        raise ValueError(f"{folder}: no results (*.jsonl)")
    return [section(name.replace("_", " "), records) for name, records in files.items() if records]


def section(title: str, records: Sequence[Record]) -> Section:
    """Makes the section of a results file: the newest settings and machine."""
    newest = records[-1]
    setting = (newest.config_hash, newest.machine)
    shown = [r for r in latest(records) if (r.config_hash, r.machine) == setting]
    shown = [r for r in shown if r.value is not None]
    settings = ", ".join(
        f"{k} {v}" for k, v in newest.config.items() if not isinstance(v, list | dict)
    )
    machine = newest.hardware
    text = [
        settings,
        f"{machine['cpu']} ({newest.cpu_kind}), {machine['cores']} cores, {machine['memory_gib']} "
        f"GiB, {machine['gpu'] or 'no GPU'}; commit {newest.commit}, {newest.time[:10]}.",
    ]
    if any("share of the floor" in record.metric for record in shown):
        text.append(_ROOFLINE)
    drawn_by_percentile, latencies = _latencies(shown)
    budget = _budget(shown)
    others = [r for r in shown if r not in drawn_by_percentile and r not in budget]
    charts = [
        *_learning_curves(records),
        *latencies,
        *_budget_chart(budget),
        *_roofline(shown),
        *(range_chart(_heading(metric), Axis(unit or metric, from_zero=bool(unit)), rows)
          for (metric, unit), rows in _by_metric(others).items()),
        *_histories(records),
    ]  # fmt: skip
    return Section(title, text, charts)


def _latencies(records: Sequence[Record]) -> tuple[list[Record], list[str]]:
    """Draws latency over its percentile, a chart per batch size.

    Returns:
        (the records that are drawn, the charts).
    """
    drawn = [record for record in records if record.metric in _PERCENTILES]
    groups: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for record in sorted(drawn, key=lambda r: _PERCENTILES[r.metric]):
        heading, _, rest = record.candidate.rpartition("batch ")[2].partition(", ")
        before = record.candidate.removesuffix(f"batch {heading}").strip(", ")
        lines = groups.setdefault(f"Latency, batch {heading}", {})
        point = (_PERCENTILES[record.metric], record.value or 0.0)
        lines.setdefault(rest or before or "latency", []).append(point)
    charts = []
    for heading, lines in groups.items():
        names = list(lines)
        for first in range(0, len(names), _MOST_LINES):
            some = {name: lines[name] for name in names[first : first + _MOST_LINES]}
            unit = drawn[0].unit
            charts.append(line_chart(heading, Axis("percentile"), Axis(unit, is_log=True), some))
    return drawn, charts


def _budget(records: Sequence[Record]) -> list[Record]:
    """Returns the seconds of stages that one candidate alone has."""
    candidates: dict[str, set[str]] = {}
    for record in records:
        candidates.setdefault(record.metric, set()).add(record.candidate)
    alone = [r for r in records if r.unit == "s" and len(candidates[r.metric]) == 1]
    return alone if len(alone) > 1 and len({r.candidate for r in alone}) == 1 else []


def _budget_chart(budget: Sequence[Record]) -> list[str]:
    if not budget:
        return []
    rows = {r.metric: (r.value or 0.0, r.p10 or 0.0, r.p90 or 0.0) for r in budget}
    return [range_chart(f"Stages, {budget[0].candidate}", Axis("s", from_zero=True), rows)]


def _roofline(records: Sequence[Record]) -> list[str]:
    """Draws our kernels' rates over operations per byte, with the machine's limits."""
    values: dict[str, dict[str, float]] = {}
    for record in records:
        values.setdefault(record.metric, {})[record.candidate] = record.value or 0.0
    copies, products = values.get("copy", {}), values.get("matrix product", {})
    lines: dict[str, list[tuple[float, float]]] = {}
    for candidate, operations in values.get("operations", {}).items():
        intensity = 1e3 * operations / values["traffic"][candidate]
        rate = 1e3 * operations / values["ours"][candidate]
        lines.setdefault(candidate.partition(",")[0], []).append((intensity, rate))
    if not lines:
        return []
    copy, product = statistics.median(copies.values()), statistics.median(products.values())
    ends = [x for points in lines.values() for x, _ in points]
    turns = sorted({min(ends), product / copy, max(ends)})
    roof = {"limits of the machine": [(x, min(copy * x, product)) for x in turns]}
    ours = {f"ours, {kind}": sorted(points) for kind, points in lines.items()}
    x, y = Axis("FLOP per byte", is_log=True), Axis("GFLOP/s", is_log=True)
    return [line_chart("Roofline", x, y, roof | ours)]


def _by_metric(
    records: Sequence[Record],
) -> Mapping[tuple[str, str], dict[str, tuple[float, float, float]]]:
    by_metric: dict[tuple[str, str], dict[str, tuple[float, float, float]]] = {}
    for record in records:
        row = (record.value or 0.0, record.p10 or 0.0, record.p90 or 0.0)
        rows = by_metric.setdefault((record.metric, record.unit), {})
        rows[_shortened(record.candidate)] = row
    return by_metric


def _learning_curves(records: Sequence[Record]) -> list[str]:
    """Draws the curves that records keep in their settings: columns, then rows."""
    curves: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for record in records:
        if "curve" not in record.config:
            continue
        columns = record.config["columns"]
        name = f"seed {record.config.get('seed', '')}, {record.config.get('preset', '')}"
        for number, column in enumerate(columns[2:], 2):
            points = [(row[1], row[number]) for row in record.config["curve"]]
            curves.setdefault(column, {})[name] = points
    return [
        line_chart(column, Axis("step"), Axis(column), series) for column, series in curves.items()
    ]


def _histories(records: Sequence[Record]) -> list[str]:
    """Draws metrics that were recorded at several commits."""
    series: dict[tuple[str, str], dict[str, list[tuple[float, float]]]] = {}
    by_key: dict[tuple[str, ...], list[Record]] = {}
    for record in records:
        if record.value is not None:
            by_key.setdefault(record.key, []).append(record)
    for of_key in by_key.values():
        if len({record.commit for record in of_key}) > 1:
            first = of_key[0]
            points = [(float(number), r.value or 0.0) for number, r in enumerate(of_key, 1)]
            rows = series.setdefault((first.metric, first.unit), {})
            rows[_shortened(first.candidate)] = points
    return [
        line_chart(
            f"{metric}, record by record", Axis("record"), Axis(unit or metric), of_metric
        )
        for (metric, unit), of_metric in series.items()
    ]  # fmt: skip


def _heading(metric: str) -> str:
    return metric.replace("_", " ")


def _shortened(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else name[: _LONGEST_NAME - 1] + "…"
