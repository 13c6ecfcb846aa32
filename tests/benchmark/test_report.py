# SPDX-License-Identifier: Apache-2.0
"""Tables of results in documents."""

import dataclasses

import pytest

from benchmark import report
from benchmark.record import write_records
from tests.benchmark.conftest import record
from tests.harness import assert_tells

DOCUMENT = "# Title\n<!-- results:speed -->\nold\n<!-- /results:speed -->\nend\n"


def test_a_table_has_a_row_per_candidate_and_a_column_per_metric():
    records = [
        record(1.0, rows=99),  # Other settings than the newest: not shown.
        record(5.0, unit="rows/s"),
        record(1_923_456.7, unit="rows/s"),
        record(1.0, metric="lead", unit="x"),
        record(candidate="theirs", unit="rows/s", failed=1),
    ]
    lines = report.render_table(records).splitlines()
    assert lines[:4] == [
        "| candidate | lead (x) | rows_per_s (rows/s) |",
        "| --- | ---: | ---: |",
        "| ours | 1 | 1,923,457 |",
        "| theirs |  | failed |",
    ]
    assert "rows 10" in lines[5]
    other = dataclasses.replace(records[-1], hardware={**records[-1].hardware, "cpu": "new"})
    assert "ours" not in report.render_table([*records, other])


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (1234.5, "1,234"), (99.94, "99.94"), (0.00001234, "0.000012"), (-2.5, "-2.5")],
)
def test_values_are_short_and_without_exponents(value, text):
    assert report.format_value(value) == text


def test_check_fails_until_the_table_is_written(tmp_path):
    document = tmp_path / "README.md"
    document.write_text(DOCUMENT)
    arguments = [str(document), f"--results={tmp_path}"]
    assert report.main(["", *arguments, "--check"]) == 0, "a table without results stays"
    assert report.main(["", *arguments]) == 0
    assert document.read_text() == DOCUMENT
    write_records(tmp_path / "speed.jsonl", [record(5.0)])
    assert report.main(["", *arguments, "--check"]) == 1
    assert document.read_text() == DOCUMENT
    assert report.main(["", *arguments]) == 0
    assert "| ours | 5 |" in document.read_text()
    assert document.read_text().startswith("# Title\n")
    assert document.read_text().endswith("end\n")
    assert report.main(["", *arguments, "--check"]) == 0
    write_records(tmp_path / "speed.jsonl", [record(6.0)])
    assert report.main(["", *arguments, "--check"]) == 1


def test_a_marker_without_an_end_is_refused(tmp_path, capsys):
    document = tmp_path / "README.md"
    document.write_text("<!-- results:speed -->\n")
    assert report.main(["", str(document)]) == 2
    assert_tells(capsys.readouterr().err, "results:speed")
