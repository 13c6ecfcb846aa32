# SPDX-License-Identifier: Apache-2.0
"""Tables of results in documents."""

import dataclasses
import datetime
import functools
import os
import subprocess

import pytest

from benchmark import machine, report
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


def committed(folder, text, day):
    """Commits a file of preproc; returns the commit."""
    (folder / "preproc").mkdir(exist_ok=True)
    (folder / "preproc" / "code.py").write_text(text)
    environment = dict.fromkeys(("GIT_AUTHOR_DATE", "GIT_COMMITTER_DATE"), f"{day}T12:00:00Z")
    who = ("-c", "user.name=a", "-c", "user.email=a@b")
    for command in (("init", "-q"), ("add", "-A"), (*who, "commit", "-qm", "change")):
        subprocess.run(["git", "-C", folder, *command], check=True, env=os.environ | environment)
    return machine.git("rev-parse", "HEAD", checkout=folder)


@pytest.mark.parametrize(
    ("name", "changes", "days", "is_stale"),
    [
        ("preprocessing", True, 1, True),
        ("preprocessing", False, 1, False),
        ("preprocessing", False, 61, True),
        ("interaction_kernels", True, 1, False),  # measures another folder
    ],
)
def test_a_table_is_stale_if_its_code_changed_or_it_is_old(
    tmp_path, monkeypatch, capsys, name, changes, days, is_stale
):
    base = committed(tmp_path, "a", "2026-01-01")
    if changes:
        committed(tmp_path, "b", "2026-01-02")
    monkeypatch.setattr(report, "git", functools.partial(machine.git, checkout=tmp_path))
    then = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=days)
    made = dataclasses.replace(record(5.0), commit=base + "+", time=then.isoformat())
    write_records(tmp_path / f"{name}.jsonl", [made])
    document = tmp_path / "README.md"
    document.write_text(DOCUMENT.replace("speed", name))
    assert report.main(["", str(document), f"--results={tmp_path}", "--stale"]) == 0
    assert (name in capsys.readouterr().out) == is_stale
    assert "old" in document.read_text()


def test_a_table_of_an_unknown_commit_is_stale(tmp_path, capsys):
    write_records(tmp_path / "speed.jsonl", [dataclasses.replace(record(5.0), commit="0" * 12)])
    document = tmp_path / "README.md"
    document.write_text(DOCUMENT)
    assert report.main(["", str(document), f"--results={tmp_path}", "--stale"]) == 0
    assert "0" * 12 in capsys.readouterr().out
