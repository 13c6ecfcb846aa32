# SPDX-License-Identifier: Apache-2.0
"""Line charts as SVG, for the pictures of documents."""

import math
from collections.abc import Mapping, Sequence
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 560, 340
_LEFT, _RIGHT, _TOP, _BOTTOM = 80, 24, 44, 56
_COLOURS = ("#1f5fa8", "#c2571a", "#2f7d4f", "#7a3b8f")
_TICKS = 5

Points = Sequence[tuple[float, float]]
"""(x, y) of each point, in the order of x."""


def line_chart(title: str, x_label: str, y_label: str, series: Mapping[str, Points]) -> str:
    """Draws lines over a logarithmic x and a y from zero.

    Args:
        title: heading.
        x_label: name of x, which must be positive.
        y_label: name and unit of y.
        series: name -> points; at most four lines, the first has its values written beside it.

    Returns:
        The text of an SVG file.
    """
    xs = [x for points in series.values() for x, _ in points]
    top = _rounded_up(max(y for points in series.values() for _, y in points))
    first, last = math.log10(min(xs)), math.log10(max(xs))
    width, height = WIDTH - _LEFT - _RIGHT, HEIGHT - _TOP - _BOTTOM

    def position(x: float, y: float) -> tuple[float, float]:
        along = (math.log10(x) - first) / (last - first) if last > first else 0.5
        return _LEFT + width * (0.05 + 0.9 * along), _TOP + height * (1 - y / top)

    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" '
        f'viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        _text(WIDTH / 2, 24, title, size=15),
        _text(WIDTH / 2, HEIGHT - 10, x_label),
        _text(0, 0, y_label, turned=f"translate(16 {_TOP + height / 2}) rotate(-90)"),
    ]
    for tick in range(_TICKS + 1):
        value = top * tick / _TICKS
        y = position(xs[0], value)[1]
        lines.append(f'<path d="M{_LEFT} {y:.1f}H{WIDTH - _RIGHT}" stroke="#ddd"/>')
        lines.append(_text(_LEFT - 6, y + 4, in_short(value), anchor="end"))
    for x in sorted(set(xs)):
        lines.append(_text(position(x, 0)[0], HEIGHT - _BOTTOM + 18, in_short(x)))
    for number, (name, points) in enumerate(series.items()):
        colour = _COLOURS[number]
        drawn = [position(*point) for point in points]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in drawn)
        lines.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        for (x, y), (_, value) in zip(drawn, points, strict=True):
            lines.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}"/>')
            if number == 0:
                lines.append(_text(x, y - 9, in_short(value)))
        lines.append(_text(_LEFT + 8, _TOP + 14 + 16 * number, name, anchor="start", fill=colour))
    return "\n".join([*lines, "</svg>"]) + "\n"


def in_short(value: float) -> str:
    """Formats a number with three digits and a suffix: 1.3K, 430M."""
    for limit, suffix in ((1e9, "G"), (1e6, "M"), (1e3, "K")):
        if abs(value) >= limit:
            return f"{value / limit:.3g}{suffix}"
    return f"{value:.3g}"


def _rounded_up(value: float) -> float:
    """Returns a number of two digits above, to end an axis."""
    if value <= 0:
        return 1.0
    unit = 10.0 ** (math.floor(math.log10(value)) - 1)
    return math.ceil(value * 1.08 / unit / 5) * 5 * unit


def _text(
    x: float,
    y: float,
    text: str,
    *,
    anchor: str = "middle",
    size: int = 12,
    fill: str = "#333",
    turned: str = "",
) -> str:
    transform = f' transform="{turned}"' if turned else ""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" fill="{fill}"'
        f"{transform}>{escape(text)}</text>"
    )
