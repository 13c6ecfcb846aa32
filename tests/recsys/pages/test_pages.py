# SPDX-License-Identifier: Apache-2.0
"""Pages are one file each, with every section, and nothing to load."""

import re
from html.parser import HTMLParser

import pytest

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
