# SPDX-License-Identifier: Apache-2.0
"""The page of a run, drawn from its log by matplotlib: one self-contained HTML file."""

import base64
import importlib.util
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recsys.errors import UserError
from recsys.files.durable import whole_file
from recsys.installation import command_for
from recsys.train.measure.scalars import Scalars, Score, score_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_STEPS = {
    "train/loss": "mean since the last point",
    "train/lr": "learning rate",
    "train/step_time": "seconds per step",
    "train/data_wait": "seconds per step",
}
"""Curve of the steps -> its unit."""
_HEADLINES = ("auc", "log_loss", "full_ndcg@10", "full_hr@10", "average_train_throughput")
"""Figures at the top of the page, if a run has them."""
_DATASETS = ("dataset", "dataset_path", "dataset_type", "dataset_name")
"""Settings that may name the dataset; the first that is set counts."""
_VERDICTS = ("test_verdict", "verdict")
_TESTED = ("compared_step", "tested_step")
"""Names under which a training logs the step of the model that it tested."""
_NO_SPLITS = ("train", "run", "benchmark", "profile")
"""Groups of tags that are not evaluations."""
_MOST_FEATURES = 20
_WIDTH, _HEIGHT = 5.0, 3.2
"""Size of a chart, in inches."""
_FEW_POINTS = 40
_FEW_ROWS = 60
"""Largest number of rows of a table that is not folded."""
_STYLE = """
:root { color-scheme: light dark; }
body { margin: 0 auto; max-width: 1200px; padding: 12px; font: 15px/1.45 system-ui, sans-serif; }
h1 { font-size: 1.5rem; }
.charts { display: grid; gap: 16px;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 360px), 1fr)); }
img { width: 100%; max-width: 560px; }
@media (prefers-color-scheme: dark) { img { filter: invert(.9) hue-rotate(180deg); } }
details { margin: 1.5rem 0; overflow-x: auto; } summary { font-size: 1.2rem; cursor: pointer; }
table { border-collapse: collapse; font-size: .9rem; }
td, th { padding: 3px 10px; border-bottom: 1px solid #8886; text-align: left;
  white-space: nowrap; font-variant-numeric: tabular-nums; }
"""

Points = Sequence[tuple[float, float]]


def require_matplotlib() -> None:
    """Refuses to draw if matplotlib is missing.

    Raises:
        UserError: matplotlib is not installed.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise UserError(
            f"`report` needs matplotlib, which is not installed: {command_for('report')}"
        )


def write_page(path: Path, page: str) -> None:
    """Writes a page; after an error the earlier page is unchanged."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as file:
        file.write(page.encode(errors="backslashreplace"))  # a file name may not be UTF-8


def run_page(
    entries: Iterable[Mapping[str, Any]],
    title: str,
    links: Sequence[tuple[str, str]] = (),
    command: str = "",
) -> str:
    """Returns the page of a run: its figures in a grid, curves and settings.

    Args:
        entries: entries of the run's log, or of several logs one after the other.
        title: heading of the page.
        links: (text, address) of files next to the page, such as a profile.
        command: command that started the run.
    """
    curves: dict[str, list[tuple[float, float]]] = {}
    settings: dict[str, Any] = {}
    final: dict[str, Any] = {}
    explained: dict[str, Mapping[str, Any]] = {}
    scalars = Scalars()
    for entry in entries:
        step, data = entry["step"], entry["data"]
        for tag, at, value in scalars.of(step, data):
            curves.setdefault(tag, []).append((at, value))
        if step == "PARAMETER":
            # A test after a training adds settings.
            settings = {**data, **settings} if data.get("mode") == "test" else settings | data
        elif not step:
            final |= data
        if "calibration_curve" in data:
            explained[scalars.split] = data
    steps = [final[name] for name in _TESTED if name in final]
    figures = {tag: _at(points, steps) for tag, points in curves.items()}
    grids, others = _grids(figures)
    dataset = [f"Dataset: {settings[name]}" for name in _DATASETS if settings.get(name)]
    opening = [
        ", ".join(f"{tag} {v:.6g}" for tag, v in figures.items() if _opens(tag)),
        *[f"Verdict: {final[name]}" for name in _VERDICTS if name in final][:1],
        *dataset[:1],
        command and f"Command: {command}",
    ]
    return "\n".join([
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>",
        f"<h1>{escape(title)}</h1>",
        *(f"<p>{escape(line)}</p>" for line in opening if line),
        *(f'<p><a href="{escape(to)}">{escape(text)}</a></p>' for text, to in links),
        *grids,
        '<div class="charts">', *_explanations(explained), *_curves(curves), "</div>",
        *(_importance_table(split, data) for split, data in explained.items()),
        _table("Other figures", [("name", "value"), *((t, f"{v:.6g}") for t, v in others.items())]),
        _table("Settings", [("name", "value"), *((n, str(v)) for n, v in settings.items())]),
        "</body></html>\n",
    ])  # fmt: skip


def _at(points: Points, steps: Sequence[int]) -> float:
    """Returns the value at the first of some steps that has one, or else the last value."""
    of_step = dict(points)
    return next((of_step[step] for step in steps if step in of_step), points[-1][1])


def _opens(tag: str) -> bool:
    return tag.partition("/")[2] in _HEADLINES


def _grids(figures: Mapping[str, float]) -> tuple[list[str], dict[str, float]]:
    """Returns a table of each split's metrics, and the figures that are not metrics.

    A table has a column for each protocol, and a row for each metric and model, baseline or lead.
    Metrics that baselines have come first.
    """
    grids: dict[str, dict[Score, float]] = {}
    others = {}
    for tag, value in figures.items():
        split, _, name = tag.partition("/")
        if (score := score_of(name)) is not None:
            grids.setdefault(split, {})[score] = value
        elif split != "train":
            others[tag] = value
    tables = []
    for split, grid in reversed(grids.items()):
        protocols = list(dict.fromkeys(score.protocol for score in grid))
        owners: dict[str, dict[str, None]] = {}
        for score in grid:
            owners.setdefault(score.metric, {})[score.who] = None
        rows = [
            (metric, who, *(_cell(grid, Score(metric, who, protocol)) for protocol in protocols))
            for metric in sorted(owners, key=lambda metric: -len(owners[metric]))
            for who in owners[metric]
        ]
        head = ("metric", "of", *protocols)
        tables.append(_table(f"{split}: metrics, with 95% intervals", [head, *rows]))
    return tables, others


def _cell(grid: Mapping[Score, float], score: Score) -> str:
    """Returns a value with its interval, if there is one; a lead with its sign."""
    ends = (grid.get(score._replace(end=end)) for end in ("", "low", "high"))
    sign = "+" if score.who.startswith("lead") else ""
    value, low, high = ("" if end is None else f"{end:{sign}.4f}" for end in ends)
    return f"{value} ({low} to {high})" if low else value


def _curves(curves: Mapping[str, Points]) -> Iterator[str]:
    """Draws the model's metrics that changed (of lists, those of ten items), then the steps."""
    for tag, points in curves.items():
        group, _, name = tag.partition("/")
        if group in _NO_SPLITS or len({value for _, value in points}) == 1:
            continue
        score = score_of(name) or Score(name)
        if score.is_of_model and score.metric.partition("@")[2] in ("", "10"):
            yield _image(_curve(tag, points, ""))
    for tag, unit in _STEPS.items():
        if len(points := curves.get(tag, ())) > 1:
            axes = _curve(tag, points, unit)
            if tag != "train/loss":
                axes.set_ylim(0, 1.1 * max(value for _, value in points) or 1)
            yield _image(axes)


def _curve(tag: str, points: Points, unit: str) -> "Axes":
    axes = _axes(tag)
    axes.plot(*zip(*points, strict=True), marker="o" if len(points) <= _FEW_POINTS else "", gid=tag)
    axes.set(xlabel="step", ylabel=unit)
    axes.locator_params(axis="x", nbins=6, integer=True)
    return axes


def _explanations(explained: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    for split, data in explained.items():
        curve = data["calibration_curve"]
        ends = min(map(min, curve)), max(map(max, curve))
        axes = _axes(f"{split}/calibration curve")
        axes.plot(*zip(*curve, strict=True), marker="o", gid="curve", label="tenths of the rows")
        axes.plot(ends, ends, "--", label="calibrated")
        axes.set(xlabel="mean prediction", ylabel="share of clicks")
        axes.legend()
        yield _image(axes)
        names, rises = zip(*list(data["feature_importance"].items())[:_MOST_FEATURES], strict=True)
        rows, (values, lows, highs) = range(len(names)), zip(*rises, strict=True)
        axes = _axes(f"{split}/feature importance", max(1.2 + 0.2 * len(names), _HEIGHT))
        axes.barh(rows, values)
        axes.hlines(rows, lows, highs, color="black")
        axes.set_yticks(rows, names, parse_math=False)
        axes.invert_yaxis()
        axes.set_xlabel("rise of the log loss when shuffled: mean, least, most")
        yield _image(axes)


def _axes(title: str, height: float = _HEIGHT) -> "Axes":
    from matplotlib.figure import Figure

    axes = Figure(figsize=(_WIDTH, height), layout="constrained").add_subplot(title=title)
    axes.ticklabel_format(useOffset=False)  # an offset would hide how large the numbers are
    axes.grid(alpha=0.3)
    return axes


def _image(axes: "Axes") -> str:
    """Returns axes as an image element whose ids cannot clash with those of other images."""
    figure, file = axes.get_figure(root=True), io.BytesIO()
    assert figure is not None
    figure.savefig(file, format="svg")
    encoded = base64.b64encode(file.getvalue()).decode()
    title = escape(axes.get_title())
    return f'<img alt="{title}" src="data:image/svg+xml;base64,{encoded}">'


def _importance_table(split: str, explained: Mapping[str, Any]) -> str:
    rises = explained["feature_importance"].items()
    rows = [(name, *(f"{value:.5f}" for value in of_name)) for name, of_name in rises]
    head = ("feature", "rise of the log loss, mean of the shuffles", "least", "most")
    return _table(f"{split}: importance of features", [head, *rows])


def _table(title: str, rows: Sequence[Sequence[str]]) -> str:
    """Returns a table that can be folded, with a head row; empty if it has no other rows."""
    head, *body = rows
    if not body:
        return ""
    lines = [
        f"<details{' open' * (len(body) <= _FEW_ROWS)}><summary>{escape(title)}</summary><table>"
    ]
    for tag, cells in (("th", head), *(("td", row) for row in body)):
        lines.append(f"<tr>{''.join(f'<{tag}>{escape(cell)}</{tag}>' for cell in cells)}</tr>")
    return "\n".join([*lines, "</table></details>"])
