# SPDX-License-Identifier: Apache-2.0
"""Charts as SVG: lines over a number, and ranges of candidates.

Colours are CSS variables with a fallback, so that a page can turn dark and a file stands alone.
"""

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from xml.sax.saxutils import escape

WIDTH = 440
_PLOT_HEIGHT = 220
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 16, 48, 46
_LEGEND_ROW, _BAR_ROW = 17, 36
_COLOURS = ("#1f6fb2", "#c8541b", "#2e8b57", "#8a4fa3", "#a67c00", "#c0396b")
_DASHES = ("", "6 3", "2 3", "8 3 2 3", "1 4", "10 4")
_INK, _GRID, _PAPER = "var(--ink, #222)", "var(--grid, #ddd)", "var(--paper, #fff)"

Points = Sequence[tuple[float, float]]
"""(x, y) of each point, in the order of x."""


@dataclasses.dataclass(frozen=True, slots=True)
class Axis:
    """An axis of a chart.

    Attributes:
        label: name and unit.
        from_zero: begins at zero.
    """

    label: str
    from_zero: bool = False

    def span(self, values: Sequence[float]) -> tuple[float, float]:
        """Returns both ends."""
        low, high = min(values), max(values)
        if self.from_zero:
            low, high = min(low, 0.0), max(high, 0.0)
        margin = (high - low) * 0.06 or abs(high) * 0.05 or 0.5
        return (low if self.from_zero and low == 0 else low - margin), high + margin


def ticks(span: tuple[float, float]) -> list[float]:
    """Returns the values to mark, round ones."""
    low, high = span
    step = _round_step((high - low) / 5)
    first = math.ceil(low / step)
    return [i * step for i in range(first, math.floor(high / step) + 1)]


def line_chart(title: str, x: Axis, y: Axis, series: Mapping[str, Points]) -> str:
    """Draws lines, of one point or more in all, with a legend.

    Returns:
        An <svg> element.
    """
    points = [point for of_series in series.values() for point in of_series]
    x_span, y_span = x.span([p[0] for p in points]), y.span([p[1] for p in points])
    legend = _LEGEND_ROW * len(series) if len(series) > 1 else 0
    height = _TOP + _PLOT_HEIGHT + _BOTTOM + legend
    right, bottom = WIDTH - _RIGHT, _TOP + _PLOT_HEIGHT

    def position(point: tuple[float, float]) -> tuple[float, float]:
        return (
            _between(point[0], x_span, _LEFT, right),
            _between(point[1], y_span, bottom, _TOP),
        )

    body = [_text(WIDTH / 2, 20, title, weight="bold")]
    for mark in ticks(y_span):
        at = _between(mark, y_span, bottom, _TOP)
        body.append(f'<path d="M{_LEFT} {at:.1f}H{right}" stroke="{_GRID}"/>')
        body.append(_text(_LEFT - 6, at + 4, in_short(mark), anchor="end"))
    for mark in ticks(x_span):
        at = _between(mark, x_span, _LEFT, right)
        body.append(f'<path d="M{at:.1f} {bottom}v4" stroke="{_INK}"/>')
        body.append(_text(at, bottom + 17, in_short(mark)))
    body.append(f'<path d="M{_LEFT} {_TOP}V{bottom}H{right}" fill="none" stroke="{_INK}"/>')
    body.append(_text((_LEFT + right) / 2, bottom + 36, x.label))
    body.append(_text(_LEFT, _TOP - 8, y.label, anchor="start"))
    for number, (name, of_series) in enumerate(series.items()):
        body += _line(number, [position(point) for point in of_series])
        if legend:
            body += _legend(number, name, bottom + _BOTTOM + _LEGEND_ROW * (number + 0.4))
    return _svg(title, height, body)


def range_chart(title: str, label: str, rows: Mapping[str, tuple[float, float, float]]) -> str:
    """Draws a bar to the value and a range for each candidate.

    Args:
        title: heading.
        label: name and unit of the horizontal axis.
        rows: name -> (value, low, high), at least one.

    Returns:
        An <svg> element.
    """
    span = Axis(label, from_zero=True).span([number for row in rows.values() for number in row])
    left, right = 12, WIDTH - _RIGHT - 60
    bottom = _TOP + _BAR_ROW * len(rows)
    zero = _between(0.0, span, left, right)
    body = [_text(WIDTH / 2, 20, title, weight="bold")]
    for mark in ticks(span):
        at = _between(mark, span, left, right)
        body.append(f'<path d="M{at:.1f} {_TOP - 4}V{bottom}" stroke="{_GRID}"/>')
        body.append(_text(at, bottom + 15, in_short(mark)))
    for number, (name, (value, low, high)) in enumerate(rows.items()):
        y = _TOP + _BAR_ROW * number
        ends = [_between(end, span, left, right) for end in (value, low, high)]
        body.append(_text(left, y + 12, name, anchor="start"))
        begin, width = min(zero, ends[0]), max(abs(ends[0] - zero), 0.5)
        body.append(
            f'<rect x="{begin:.1f}" y="{y + 17}" width="{width:.1f}" height="12" '
            f'fill="{_colour(0)}"/>'
        )
        body.append(
            f'<path d="M{ends[1]:.1f} {y + 19}v8m0 -4H{ends[2]:.1f}m0 -4v8" fill="none" '
            f'stroke="{_INK}" stroke-width="1.5"/>'
        )
        body.append(_text(max(*ends, zero) + 7, y + 27, in_short(value, 4), anchor="start"))
    body.append(_text((left + right) / 2, bottom + 34, label))
    return _svg(title, bottom + 42, body)


def in_short(value: float, digits: int = 3) -> str:
    """Formats a number with few digits and a suffix: 1.3K, 430M."""
    for limit, suffix in ((1e9, "G"), (1e6, "M"), (1e3, "K")):
        if abs(value) >= limit:
            return f"{value / limit:.{digits}g}{suffix}"
    return f"{value:.{digits}g}"


def _line(number: int, drawn: Points) -> Iterator[str]:
    colour, dash = _colour(number), _DASHES[number % len(_DASHES)]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in drawn)
    yield (
        f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2" '
        f'stroke-dasharray="{dash}"/>'
    )
    if len(drawn) <= 40:  # more are a line already
        yield from (f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in drawn)


def _legend(number: int, name: str, y: float) -> Iterator[str]:
    yield (
        f'<path d="M{_LEFT} {y - 4:.1f}h26" stroke="{_colour(number)}" stroke-width="2" '
        f'stroke-dasharray="{_DASHES[number % len(_DASHES)]}"/>'
    )
    yield _text(_LEFT + 32, y, name, anchor="start")


def _colour(number: int) -> str:
    index = number % len(_COLOURS)
    return f"var(--series-{index}, {_COLOURS[index]})"


def _between(value: float, span: tuple[float, float], first: float, last: float) -> float:
    return first + (last - first) * (value - span[0]) / (span[1] - span[0])


def _round_step(step: float) -> float:
    """Rounds a step up to 1, 2 or 5 times a power."""
    power = 10.0 ** math.floor(math.log10(step))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= step * 0.999)


def _svg(title: str, height: float, body: Sequence[str]) -> str:
    return "\n".join(
        [
            '<svg xmlns="http://www.w3.org/2000/svg" role="img" '
            f'viewBox="0 0 {WIDTH} {height:.0f}" '
            'font-family="system-ui, sans-serif" font-size="12">',
            f"<title>{escape(title)}</title>",
            f'<rect width="{WIDTH}" height="{height:.0f}" fill="{_PAPER}"/>',
            *body,
            "</svg>",
        ]
    )


def _text(x: float, y: float, text: str, *, anchor: str = "middle", weight: str = "normal") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-weight="{weight}" '
        f'fill="{_INK}">{escape(text)}</text>'
    )
