# SPDX-License-Identifier: Apache-2.0
"""The report of a demo: one page of a training's log and a test's, opened in a browser."""

from tests import harness
from tests.dlrm.conftest import dataset, make_program  # noqa: F401  (a fixture)


def test_the_report_has_curves_and_test_metrics_and_is_opened(
    dataset, tmp_path, monkeypatch, capsys  # noqa: F811
):  # fmt: skip
    script, opened = tmp_path / "browser.sh", tmp_path / "opened"
    script.write_text(f'#!/bin/sh\necho "$1" > {opened}\n')
    script.chmod(0o755)
    program = make_program(tmp_path)
    given = (f"--dataset={dataset}", f"--save_checkpoint_path={tmp_path / 'run'}")
    program(*given, "--print_freq=5")
    program.log_path.rename(tmp_path / "train_log.json")
    test = ("--mode=test", f"--dataset={dataset}", f"--load_checkpoint_path={tmp_path / 'run'}")
    program(*test, f"--report={tmp_path / 'report.html'}")
    program.log_path.rename(tmp_path / "test_log.json")
    capsys.readouterr()
    code = (
        "import pathlib, sys; from benchmark.demo import show_report; "
        "show_report(pathlib.Path(sys.argv[1]), 'Demo & more')"
    )
    done = harness.python("-c", code, tmp_path, BROWSER=f"{script} %s")
    page = tmp_path / "report.html"
    assert done.stdout == f"Report: {page}\n"
    assert opened.read_text() == f"{page.as_uri()}\n"
    text = page.read_text()
    assert "<h1>Demo &amp; more</h1>" in text
    assert "Training loss" in text
    assert "Importance" in text
    log = harness.read_log(tmp_path / "test_log.json")
    assert f"{log[-1]['data']['log_loss']:.6g}" in text


def test_the_report_is_not_opened_where_there_is_no_browser(tmp_path):
    code = "from recsys.pages.browser import open_in_browser; print(open_in_browser('file:///a'))"
    nothing = {"BROWSER": None, "DISPLAY": None, "WAYLAND_DISPLAY": None}
    assert harness.python("-c", code, **nothing).stdout == "False\n"
