# SPDX-License-Identifier: Apache-2.0
"""The parts of the demos that run without a training, and the report of one."""

import numpy as np
import pyarrow as pa
import pytest

from benchmark import demo, demo_bert4rec
from recsys.data.sequences.files import write_sequences
from recsys.data.sequences.histories import RawIds, Sequences
from tests import harness
from tests.dlrm.conftest import dataset, make_program  # noqa: F401  (a fixture)
from tests.recsys.train.shown import Page
from tests.recsys.train.tiny import TINY_DLRM


def test_histories_are_written_in_raw_ids(tmp_path):
    sequences = Sequences(np.array([1, 2, 3, 3, 1, 2, 2], np.int32), np.array([0, 3, 7]), 3)
    items = RawIds(pa.array(["x", "y9", "z"]), np.array([2, 3, 2]))
    write_sequences(tmp_path, sequences, RawIds(pa.array(["u", "v"]), np.array([3, 4])), items)
    demo_bert4rec.write_histories(tmp_path, tmp_path / "histories.txt", 2)
    assert (tmp_path / "histories.txt").read_text() == "x y9 z\nz x y9 y9\n"


def test_the_report_puts_the_model_beside_popularity():
    figures = {
        f"test_{name}_{metric}": value
        for name, value in (("full", 0.5), ("popularity", 0.25))
        for metric in ("hr@1", "hr@10", "ndcg@10")
    }
    head, model, popularity = demo_bert4rec.report(figures).splitlines()
    assert head.split()[-3:] == ["HR@1", "HR@10", "NDCG@10"]
    assert model.split() == ["BERT4Rec", "0.5000", "0.5000", "0.5000"]
    assert popularity.split() == ["popularity", "0.2500", "0.2500", "0.2500"]


def test_a_missed_goal_fails_unless_there_were_fewer_rows(capsys):
    assert demo.missed_goal("the gap", 100, 100, "rows") == 1
    printed = capsys.readouterr()
    assert ("the gap" in printed.err, printed.out) == (True, "")
    assert demo.missed_goal("the gap", 99, 100, "rows") == 0
    printed = capsys.readouterr()
    harness.assert_tells(printed.out, "the gap", "99 rows", 100)
    assert printed.err == ""


def test_a_step_that_fails_ends_the_demo(capfd):
    steps = (("Check {what}", "verify", "--quick {what} {nothing}"),)
    command = "recsys-recipes verify --quick 'not there'"
    with harness.refusal(command, 2, kind=SystemExit):
        demo.run_steps(steps, what="not there", nothing="")
    assert f"Check not there\n$ {command}\n" in capfd.readouterr().out


@pytest.mark.multiprocess
def test_a_killed_demo_ends_its_training(tmp_path):
    code = "import sys; from benchmark.demo import run_step; run_step('Train', *sys.argv[1:])"
    run = (f"--output={tmp_path / 'run'}", f"--log_path={tmp_path / 'log'}")
    endless = (*TINY_DLRM, *run, "--epochs=1000000", "--test_after=2000000", "--save_freq=1")
    with harness.started("-c", code, "train", "dlrm", *endless) as running:
        pointer = tmp_path / "run" / "latest.json"
        harness.wait_for(pointer.exists, "a checkpoint", process=running)
        running.kill()
        assert "SIGTERM" in running.stdout.read()  # up to the end of the training


def test_the_report_has_curves_and_test_metrics_and_is_opened(
    dataset, tmp_path  # noqa: F811
):  # fmt: skip
    script, opened = tmp_path / "browser.sh", tmp_path / "opened"
    script.write_text(f'#!/bin/sh\necho "$1" > {opened}\n')
    script.chmod(0o755)
    program = make_program(tmp_path)
    of_run = (f"--dataset={dataset}", "--print_freq=5")
    program(*of_run, f"--save_checkpoint_path={tmp_path / 'run'}")
    program.log_path.rename(tmp_path / "train_log.json")
    test = ("--mode=test", f"--load_checkpoint_path={tmp_path / 'run'}")
    program(*of_run, *test, f"--report={tmp_path / 'report.html'}")
    program.log_path.rename(tmp_path / "test_log.json")
    code = (
        "import pathlib, sys; from benchmark.demo import show_report; "
        "show_report(pathlib.Path(sys.argv[1]), 'Demo & more')"
    )
    done = harness.python("-c", code, tmp_path, BROWSER=f"{script} %s")
    page = tmp_path / "report.html"
    assert done.stdout == f"Report: {page}\n"
    assert opened.read_text() == f"{page.as_uri()}\n"
    shown, log = Page(page), harness.read_log(tmp_path / "test_log.json")
    assert "Demo & more" in shown.texts
    assert {"train/loss", "test/feature importance"} <= shown.pictures.keys()
    tested = shown.grid("test")["log_loss", "model", "all rows"]
    assert tested == [pytest.approx(log[-1]["data"]["log_loss"], abs=5.1e-5)]


def test_the_report_is_not_opened_where_there_is_no_browser(tmp_path):
    code = "from recsys.program import open_in_browser; print(open_in_browser('file:///a'))"
    nothing = {"BROWSER": None, "DISPLAY": None, "WAYLAND_DISPLAY": None}
    assert harness.python("-c", code, **nothing).stdout == "False\n"
