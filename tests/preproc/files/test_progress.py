# SPDX-License-Identifier: Apache-2.0
"""What the progress reporter writes in each mode."""

import io
import json
import time

import pytest

from preproc.files import progress
from preproc.files.progress import ProgressReporter


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def short_periods(monkeypatch):
    for name in ("_BAR_PERIOD_S", "_JSON_PERIOD_S", "_LINE_PERIOD_S"):
        monkeypatch.setattr(progress, name, 0.02)


def report(mode: str, stream: io.StringIO) -> str:
    done = [0, 0]
    with ProgressReporter(mode, stream).stage("scan", 1000, lambda: (done[0], done[1])):
        for _ in range(5):
            done[0] += 200
            done[1] += 10
            time.sleep(0.03)
        deadline = time.monotonic() + 60  # the reporter's thread may wait for a core
        while mode != "none" and not stream.getvalue() and time.monotonic() < deadline:
            time.sleep(0.01)
    return stream.getvalue()


def test_json_lines():
    lines = [json.loads(line) for line in report("json", io.StringIO()).splitlines()]
    assert len(lines) >= 2
    assert lines[-1]["stage"] == "scan"
    assert (lines[-1]["bytes_done"], lines[-1]["bytes_total"]) == (1000, 1000)
    assert lines[-1]["rows"] == 50
    assert lines[-1]["eta_s"] == 0
    assert all(set(line) == set(lines[0]) for line in lines)
    assert [line["bytes_done"] for line in lines] == sorted(line["bytes_done"] for line in lines)


def test_lines_where_there_is_no_terminal():
    text = report("auto", io.StringIO())
    assert text.splitlines()[-1].startswith("scan: 100 % of 0 MB, 50 rows, ")
    assert "s left" in text


def test_bar_on_a_terminal():
    text = report("auto", Terminal())
    assert "100%" in text
    assert "rows/s" in text


def test_none_is_silent():
    assert report("none", Terminal()) == ""
    stream = io.StringIO()
    ProgressReporter("none", stream).note("hello")
    assert stream.getvalue() == ""


def test_notes():
    stream = io.StringIO()
    ProgressReporter("auto", stream).note("hello")
    ProgressReporter("json", stream).note("hello")
    assert stream.getvalue() == 'hello\n{"message": "hello"}\n'


def test_the_last_report_comes_even_after_an_error():
    stream = io.StringIO()
    with (
        pytest.raises(RuntimeError),
        ProgressReporter("json", stream).stage("scan", 10, lambda: (5, 1)),
    ):
        raise RuntimeError
    assert json.loads(stream.getvalue().splitlines()[-1])["bytes_done"] == 5
