# SPDX-License-Identifier: Apache-2.0
"""What the page of a run shows, and TensorBoard."""

import base64
import html
import re
from html.parser import HTMLParser
from xml.etree import ElementTree

SVG = "{http://www.w3.org/2000/svg}"
PICTURE = "data:image/svg+xml;base64,"


class Page(HTMLParser):
    """A page, whose tags are closed.

    Attributes:
        texts: what stands in it.
        tables: title -> rows of cells, without the head.
        pictures: title -> SVG.
        links: what it names or would load.
    """

    def __init__(self, path):
        super().__init__()
        self.open, self.texts, self.tables, self.pictures, self.links = [], [], {}, {}, []
        self.feed(path.read_text())
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        assert tag != "script"
        if tag == "img":
            assert values["src"].startswith(PICTURE)
            picture = base64.b64decode(values["src"].removeprefix(PICTURE)).decode()
            assert ElementTree.fromstring(picture).tag == f"{SVG}svg"
            self.pictures[values["alt"]] = picture
        elif "href" in values:
            self.links.append(values["href"])
        if tag not in ("meta", "img"):
            self.open.append(tag)
        if tag == "table":
            self.tables[self.texts[-1]] = []
        elif tag == "tr":
            self.rows = self.tables[next(reversed(self.tables))]
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] in ("td", "th"):
            self.rows[-1][-1] += data
        if data.strip() and "style" not in self.open:
            self.texts.append(data.strip())

    def grid(self, split):
        """Returns (metric, who, protocol) -> [value, or value, low and high] of a split."""
        (rows,) = (rows for title, rows in self.tables.items() if title.startswith(f"{split}: m"))
        (_, _, *protocols), *body = rows
        return {
            (metric, who, protocol): [float(number) for number in re.findall(r"[-+.\d]+", cell)]
            for metric, who, *cells in body
            for protocol, cell in zip(protocols, cells, strict=True)
            if cell
        }

    def curve(self, tag):
        """Returns the (x, y) of the points of a curve, in the picture's own measures."""
        root = ElementTree.fromstring(self.pictures[tag])
        (drawn,) = (group for group in root.iter(f"{SVG}g") if group.get("id") == tag)
        path = drawn.find(f"{SVG}path").get("d")
        return [tuple(map(float, point)) for point in re.findall(r"[ML] (\S+) (\S+)", path)]

    def ticks(self, title, axis):
        """Returns the labels of the marks of an axis, x or y."""
        mark = rf'<g id="{axis}tick_\d+">.*?<!-- (.*?) -->'
        return [html.unescape(m) for m in re.findall(mark, self.pictures[title], re.DOTALL)]


def scalars(folder):
    """Returns tag -> (step, value) of its points, as TensorBoard's own reader has them."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    return {
        tag: [(point.step, point.value) for point in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
    }
