# SPDX-License-Identifier: Apache-2.0
"""What the progress reporter writes in each mode."""

import io
import json

import pytest

from preproc.files import progress
from preproc.files.progress import ProgressReporter
from tests.harness import assert_tells, wait_for


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def short_periods(monkeypatch):
    for name in ("_BAR_PERIOD_S", "_JSON_PERIOD_S", "_LINE_PERIOD_S"):
        monkeypatch.setattr(progress, name, 0.02)


def report(mode: str, stream: io.StringIO) -> str:
    """Reports a stage whose counts grow with each look at them, up to its end."""
    looks = []

    def counters() -> tuple[int, int]:
        looks.append(None)
        step = min(len(looks) - 1, 5)
        return 200 * step, 10 * step

    with ProgressReporter(mode, stream).stage("scan", 1000, counters):
        wait_for(lambda: len(looks) > 6, "all counts to be seen")
    return stream.getvalue()


def test_json_lines():
    lines = [json.loads(line) for line in report("json", io.StringIO()).splitlines()]
    assert len(lines) >= 2
    assert lines[-1].pop("rows_per_s") > 0
    figures = {"bytes_done": 1000, "bytes_total": 1000, "rows": 50, "eta_s": 0}
    assert lines[-1] == {"stage": "scan"} | figures
    assert [line["bytes_done"] for line in lines] == sorted(line["bytes_done"] for line in lines)


def test_lines_where_there_is_no_terminal():
    assert_tells(report("auto", io.StringIO()).splitlines()[-1], "scan", "100 %", 50)


def test_bar_on_a_terminal():
    text = report("auto", Terminal())
    assert "100%" in text
    assert "rows/s" in text


def test_notes_and_silence():
    stream = io.StringIO()
    with ProgressReporter("none", stream).stage("scan", 1000, lambda: (0, 0)):
        ProgressReporter("none", stream).note("hello")
    assert stream.getvalue() == ""
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
