# SPDX-License-Identifier: Apache-2.0
"""Pages are one file each with nothing to load; charts show each value where it belongs."""

import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from recsys.pages.charts import WIDTH, Axis, in_short, line_chart, range_chart, ticks
from recsys.pages.page import Section, render_page, write_page
from recsys.pages.run_page import run_page


class Reader(HTMLParser):
    """Counts tags, checks that they are closed, and keeps the text."""

    def __init__(self, page):
        super().__init__()
        self.open, self.tags, self.texts, self.links = [], [], [], []
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.links += [value for name, value in attributes if name in ("href", "src")]
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data.strip())


def test_a_page_escapes_lists_its_sections_and_loads_nothing():
    sections = [
        Section("First <one>", ["a & b"], ["<svg></svg>"], links=[("a profile", "p/x y.txt")]),
        Section("Second", table=[("name", "value"), ("<b>", "1")]),
    ]
    page = render_page("Title & more", ["below"], sections)
    read = Reader(page)
    assert {"Title & more", "First <one>", "a & b", "Second", "<b>", "below"} <= set(read.texts)
    assert read.links == ["#first--one-", "#second", "p/x y.txt"]
    assert "script" not in read.tags
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", page)


def test_a_page_is_whole_or_as_before(tmp_path):
    path = tmp_path / "new" / "page.html"
    write_page(path, "first")
    (tmp_path / "new" / "page.html.tmp").mkdir()
    with pytest.raises(OSError, match="directory"):
        write_page(path, "second")
    assert path.read_text() == "first"


def test_the_page_of_an_empty_log_says_so_little():
    assert Reader(run_page([], "run")).texts.count("run") == 2


SVG = "{http://www.w3.org/2000/svg}"


def parsed(chart):
    root = ElementTree.fromstring(chart)
    height = float(root.get("viewBox").split()[3])
    circles = [(float(c.get("cx")), float(c.get("cy"))) for c in root.iter(f"{SVG}circle")]
    assert all(0 < x < WIDTH and 0 < y < height for x, y in circles)
    texts = [text.text for text in root.iter(f"{SVG}text")]
    for text in root.iter(f"{SVG}text"):
        assert 0 <= float(text.get("x")) <= WIDTH
        assert 0 <= float(text.get("y")) <= height
    return root, circles, texts


def test_points_are_where_their_values_say():
    series = {"a": [(1e6, 5.0), (2e6, 10.0), (3e6, 20.0)], "b & c": [(1e6, 0.0)]}
    x, y = Axis("size"), Axis("unit", from_zero=True)
    _, circles, texts = parsed(line_chart("title <1>", x, y, series))
    xs, ys = zip(*circles, strict=True)
    assert xs[1] - xs[0] == pytest.approx(xs[2] - xs[1], abs=0.2)
    assert xs[3] == xs[0]
    zero = ys[3]
    assert (zero - ys[1]) / (zero - ys[0]) == pytest.approx(2, abs=0.02)
    assert (zero - ys[2]) / (zero - ys[0]) == pytest.approx(4, abs=0.02)
    assert {"title <1>", "size", "unit", "a", "b & c", "1M", "2M", "3M", "20"} <= set(texts)


def test_a_linear_axis_need_not_begin_at_zero():
    points = [(step, 0.79 + step / 1e5) for step in range(100, 600, 100)]
    _, circles, texts = parsed(line_chart("auc", Axis("step"), Axis("auc"), {"auc": points}))
    ys = [y for _, y in circles]
    assert max(ys) - min(ys) > 150  # they fill the chart
    assert {"0.792", "0.794", "200", "400"} <= set(texts)
    assert "0" not in texts


def test_many_points_are_a_line_without_circles():
    points = [(step, step % 7) for step in range(200)]
    root, circles, _ = parsed(line_chart("t", Axis("x"), Axis("y"), {"a": points}))
    assert not circles
    (line,) = root.iter(f"{SVG}polyline")
    assert len(line.get("points").split()) == 200


@pytest.mark.parametrize("value", [0.0, 3.0, -2.0, 1e-9, 1e12])
def test_a_single_point_and_equal_values_are_drawn(value):
    _, circles, _ = parsed(line_chart("t", Axis("x"), Axis("y"), {"a": [(value, value)]}))
    assert len(circles) == 1
    parsed(line_chart("t", Axis("x"), Axis("y"), {"a": [(0, value), (1, value)]}))


def test_bars_begin_at_zero_and_ranges_end_at_their_percentiles():
    rows = {"ours": (100.0, 90.0, 120.0), "theirs <1>": (50.0, 50.0, 50.0)}
    root, _, texts = parsed(range_chart("speed", "rows/s", rows))
    widths = [float(bar.get("width")) for bar in list(root.iter(f"{SVG}rect"))[1:]]
    assert widths[0] == pytest.approx(2 * widths[1], abs=0.2)
    assert {"speed", "rows/s", "ours", "theirs <1>", "100", "50", "0"} <= set(texts)


def test_numbers_are_short():
    numbers = (0, 0.1234, 12.34, 1234, 85_319_168, 4.3e9)
    assert [in_short(n) for n in numbers] == ["0", "0.123", "12.3", "1.23K", "85.3M", "4.3G"]


def test_ticks_are_round():
    assert ticks((0.0, 97.0)) == [0, 20, 40, 60, 80]
