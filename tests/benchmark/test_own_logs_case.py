# SPDX-License-Identifier: Apache-2.0
"""The case own_logs on a small generated log that stands in for a public one."""

import dataclasses
import hashlib
import json

import numpy as np
import pytest

from benchmark import report, run
from benchmark.cases.own_logs import OwnLogs
from benchmark.own_logs.catalogue import LOGS
from benchmark.own_logs.table import own_logs_table
from benchmark.record import read_records, write_records
from tests.benchmark.conftest import record
from tests.tools import is_here, needs

ROWS = 1000
FLAGS = (
    "--embedding_dim=4 --bottom_mlp_sizes=8,4 --top_mlp_sizes=8,1 --batch_size=64 --lr=0.3 "
    "--optimizer=rowwise_adagrad --warmup_steps=0 --decay_steps=0 --epochs=2 --base_device=cpu"
)


def make_log(folder, name="phoneme"):
    """Writes a log with the columns of Phoneme; returns what the catalogue would say of it."""
    generator = np.random.default_rng(0)
    numbers = generator.normal(size=(ROWS, 5)).round(3)
    clicked = numbers[:, 0] + generator.normal(size=ROWS) > 0.5
    lines = ["V1,V2,V3,V4,V5,Class"]
    for row, click in zip(numbers, clicked, strict=True):
        lines.append(",".join([*map(str, row), "2" if click else "1"]))
    text = "\n".join([*lines, ""]).encode()
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.csv").write_bytes(text)
    digest = hashlib.sha256(text).hexdigest()
    return dataclasses.replace(LOGS[name], rows=ROWS, sha256=digest)


@pytest.fixture
def logs(tmp_path, monkeypatch):
    """A folder with one log."""
    monkeypatch.setitem(LOGS, "phoneme", make_log(tmp_path / "logs"))
    return tmp_path / "logs"


@pytest.fixture
def measured(tmp_path, logs):
    """Runs the case; returns its status and metric -> value of the log."""

    def measure(*flags):
        path = tmp_path / "records.jsonl"
        path.unlink(missing_ok=True)
        given = (f"--logs={logs}", f"--output={tmp_path / 'runs'}", f"--records={path}")
        recipe = ("--preset=", f"--program_flags={FLAGS}")
        status = run.main(["benchmark.run", "own_logs", *given, *recipe, *flags])
        records = read_records(path) if path.is_file() else []
        assert {each.candidate for each in records} <= {"phoneme"}
        return status, {each.metric: each for each in records}

    return measure


def values(records):
    return {metric: each.value for metric, each in records.items()}


@needs("compiled Criteo kernel")
def test_a_log_is_measured_beside_the_others_and_only_once(measured, tmp_path, capsys):
    status, records = measured()
    assert status in (0, 1)  # 1: clearly behind another model
    found = values(records)
    printed, errors = capsys.readouterr()
    assert not records["auc"].failed, errors
    assert "bank" in printed  # left out: not in the folder
    assert ("catboost_auc" in found) == is_here("CatBoost") == ("make catboost" not in printed)
    assert found["training rows"] == ROWS * 8 // 10
    tested = {}
    run_folder = tmp_path / "runs" / "phoneme" / "seed_1"
    for line in (run_folder / "test.json").read_text().splitlines():
        entry = json.loads(line.removeprefix("DLLL "))
        tested |= entry["data"] if entry["step"] != "PARAMETER" else {}
    for metric in (
        "auc",
        "log_loss",
        "logistic_regression_auc",
        "lead_logistic_regression_log_loss_high",
    ):
        assert found[metric] == tested[metric]
    lead = found["lead_logistic_regression_auc"]
    assert lead == pytest.approx(found["auc"] - found["logistic_regression_auc"], abs=1e-6)
    assert (
        records["log_loss"].direction == records["lead_logistic_regression_log_loss_low"].direction
    )
    assert [records[m].direction for m in ("auc", "log_loss", "training")] == [
        "higher",
        "lower",
        "lower",
    ]
    assert records["auc"].seeds == [1]

    checkpoint = run_folder / "checkpoint"
    trained = {path: path.stat().st_mtime_ns for path in checkpoint.rglob("*")}
    assert trained
    assert values(measured()[1]) == found
    assert {path: path.stat().st_mtime_ns for path in checkpoint.rglob("*")} == trained

    other = values(measured("--program_flags=" + FLAGS.replace("--lr=0.3", "--lr=0.01"))[1])
    assert other["auc"] != found["auc"]
    assert {path: path.stat().st_mtime_ns for path in checkpoint.rglob("*")} != trained
    assert other["logistic_regression_auc"] == found["logistic_regression_auc"]


@needs("compiled Criteo kernel")
def test_a_log_whose_training_fails_has_failed(measured):
    status, records = measured("--program_flags=--batch_size=0")
    assert status == 1
    assert records["auc"].failed == records["auc"].repeats == 1


def test_what_is_not_there_is_refused(measured, logs, capsys, tmp_path):
    with (logs / "phoneme.csv").open("a") as file:
        file.write("0,0,0,0,0,1\n")
    assert measured()[0] == 2
    assert "phoneme.csv" in capsys.readouterr().err
    assert measured("--only=bank")[0] == 2
    assert str(logs) in capsys.readouterr().err
    assert measured("--only=lastfm")[0] == 2
    assert "`only`" not in capsys.readouterr().err  # settings are spelled as flags


@needs("CatBoost", "compiled Criteo kernel")
def test_catboost_is_fitted_to_the_same_rows(measured):
    found = values(measured()[1])
    assert 0.5 < found["catboost_auc"] < 1
    for metric in ("auc", "log_loss"):
        lead = found[f"lead_catboost_{metric}"]
        assert lead == pytest.approx(found[metric] - found[f"catboost_{metric}"], abs=1e-6)
        assert found[f"lead_catboost_{metric}_low"] < lead < found[f"lead_catboost_{metric}_high"]


def made(log, auc, loss, **others):
    """Returns records of a log: other model -> its AUC, log loss and the half of the interval."""
    figures = {"training rows": 800, "auc": auc, "log_loss": loss, "training": 60.4}
    for name, (other_auc, other_loss, half) in others.items():
        for metric, ours, other in (("auc", auc, other_auc), ("log_loss", loss, other_loss)):
            figures[f"{name}_{metric}"] = other
            lead = f"lead_{name}_{metric}"
            figures |= {lead: ours - other, f"{lead}_low": ours - other - half}
            figures[f"{lead}_high"] = ours - other + half
    return [
        dataclasses.replace(record(value, candidate=log, metric=metric), benchmark="own_logs")
        for metric, value in figures.items()
    ]


def test_the_table_names_the_best_of_the_others_and_where_ours_stands(tmp_path):
    records = [
        *made(
            "bank",
            0.93,
            0.21,
            logistic_regression=(0.90, 0.24, 0.004),
            lightgbm=(0.929, 0.20, 0.004),
            catboost=(0.925, 0.205, 0.004),
        ),
        *made("avazu", 0.70, 0.40, logistic_regression=(0.71, 0.41, 0.02)),
    ]
    lines = own_logs_table(records)
    assert lines[2:] == [
        "| avazu | ids | 800 | 0.7000 | 0.7100 logistic_regression | -0.0100 (-0.0300 to +0.0100) "
        "| 0.4000 | 0.4100 logistic_regression | -0.0100 (-0.0300 to +0.0100) | level | 60 |",
        "| bank | mixed | 800 | 0.9300 | 0.9290 lightgbm | +0.0010 (-0.0030 to +0.0050) "
        "| 0.2100 | 0.2000 lightgbm | +0.0100 (+0.0060 to +0.0140) "
        "| behind in log loss, level in AUC | 60 |",
        "| mean |  |  | 0.8150 | 0.8195 | -0.0045 | 0.3050 | 0.3050 | +0.0000 "
        "| AUC: 2 level; log loss: 1 level, 1 behind |  |",
    ]
    columns = {line.count(" |") for line in lines}
    assert len(columns) == 1
    document = "<!-- results:own_logs -->\n<!-- /results:own_logs -->\n"
    write_records(tmp_path / "own_logs.jsonl", records)
    assert lines[3] in report.render_document(document, tmp_path)


def test_a_clear_lead_of_another_model_is_a_fault():
    case = OwnLogs()
    far, near, unclear = (
        made("bank", 0.93, 0.2, catboost=(0.93 + by, 0.2, half))
        for by, half in ((0.01, 0.005), (0.001, 0.0005), (0.01, 0.02))
    )
    assert "bank" in case.fault(far)
    assert not case.fault(near)
    assert not case.fault(unclear)
