# SPDX-License-Identifier: Apache-2.0
"""`--mode predict`: a file with the predictions for every row of a split."""

import numpy as np
import pytest
import torch
from pyarrow import csv, parquet

from dlrm.train.metrics import roc_auc
from preproc.criteo import __main__ as command
from tests.dlrm.conftest import ROWS
from tests.preproc.criteo.rows import good_text, without_labels


@pytest.fixture
def checkpoints(program, dataset, tmp_path, capsys):
    """Two runs of other seeds."""
    folders = [tmp_path / "first", tmp_path / "second"]
    for seed, folder in enumerate(folders):
        program(f"--dataset={dataset}", f"--save_checkpoint_path={folder}", f"--seed={seed}")
        assert program.exit_code == 0, capsys.readouterr().err
    return folders


def predict(program, dataset, path, checkpoint, *flags):
    return program(
        *("--mode=predict", f"--dataset={dataset}", f"--load_checkpoint_path={checkpoint}"),
        *(f"--predictions={path}", *flags),
    )


def test_predictions_are_those_that_the_test_scores(
    program, dataset, tmp_path, capsys, checkpoints
):
    path = tmp_path / "test.parquet"
    records = predict(program, dataset, path, checkpoints[0])
    assert program.exit_code == 0, capsys.readouterr().err
    assert records[-1]["data"]["predicted_rows"] == ROWS["test"]
    assert f"Wrote {ROWS['test']:,} predictions for the test split" in capsys.readouterr().out
    table = parquet.read_table(path)
    assert table.column_names == ["row", "label", "probability", "logit", "file", "line"]
    row, label, probability, logit = (torch.from_numpy(c.to_numpy()) for c in table.columns[:4])
    assert table["line"].null_count == ROWS["test"]  # no log became this dataset
    assert torch.equal(row, torch.arange(ROWS["test"]))
    torch.testing.assert_close(probability, torch.sigmoid(logit))
    tested = program(
        *("--mode=test", f"--dataset={dataset}", f"--load_checkpoint_path={checkpoints[0]}")
    )
    assert roc_auc(logit, label > 0) == tested[-1]["data"]["auc"]


def test_later_rows_without_labels_are_predicted_as_in_the_whole_dataset(program, tmp_path, capsys):
    """By the dictionaries of the training dataset, from raw rows on."""
    text = good_text(700, seed=2, vocabulary=200)
    (tmp_path / "log").write_bytes(text)
    (tmp_path / "later").write_bytes(without_labels(b"\n".join(text.split(b"\n")[500:])))
    whole, later = tmp_path / "whole", tmp_path / "unlabelled"
    splits = ("--preset=kaggle", "--split_rows=400,100,-1", "--bin_numerical")
    for source, dataset, flags in (
        ("log", whole, splits),
        ("later", later, (f"--dictionaries={whole}", "--unlabelled")),
    ):
        files = (f"--input={tmp_path / source}", f"--output={dataset}")
        assert command.main(["preproc.criteo", *files, *flags]) == 0, capsys.readouterr().err
    trained = tmp_path / "trained"
    program(f"--dataset={whole}", f"--save_checkpoint_path={trained}", "--test_after=2")
    assert program.exit_code == 0, capsys.readouterr().err
    tables = []
    for dataset in (whole, later):
        path = tmp_path / f"{dataset.name}.parquet"
        predict(program, dataset, path, trained)
        assert program.exit_code == 0, capsys.readouterr().err
        tables.append(parquet.read_table(path))
    for column in ("row", "probability", "logit"):
        assert tables[0][column].equals(tables[1][column])
    assert tables[0]["label"].null_count == 0
    assert tables[1]["label"].null_count == 200
    program("--mode=test", f"--dataset={later}", f"--load_checkpoint_path={trained}")
    assert "its rows have no labels; use it with --mode predict" in capsys.readouterr().err


def test_rows_name_their_lines_of_a_log_with_rejected_ones(program, tmp_path, capsys, caplog):
    """Predictions are joined with the raw log by file and line."""
    days, dataset, trained = tmp_path / "days", tmp_path / "dataset", tmp_path / "trained"
    days.mkdir()
    log = []  # file, line, label of the valid rows
    for day, wrong in enumerate([{1, 2, 123}, {77}, {60, 61, 120}]):
        lines = good_text(120, seed=day, vocabulary=40).splitlines()
        for number in sorted(wrong):
            lines.insert(number - 1, b"no row" if number % 2 else b"0\tx1" + lines[0][3:])
        (days / f"day_{day}").write_bytes(b"\n".join(lines))
        numbered = enumerate(lines, 1)
        log += [(f"day_{day}", n, int(line[:1])) for n, line in numbered if n not in wrong]
    files = (f"--input={days}", f"--output={dataset}", "--max_bad_fraction=0.1")
    splits = ("--split_rows=100,-1,40", "--shuffle_seed=1")
    assert command.main(["preproc.criteo", *files, *splits]) == 0, capsys.readouterr().err
    program(f"--dataset={dataset}", "--max_steps=1", f"--save_checkpoint_path={trained}")

    def joined(split):
        path = tmp_path / f"{split}.parquet"
        predict(program, dataset, path, trained, f"--eval_split={split}")
        assert program.exit_code == 0, capsys.readouterr().err
        columns = parquet.read_table(path, columns=["file", "line", "label"]).columns
        return list(zip(*(column.to_pylist() for column in columns), strict=True))

    assert joined("validation") == log[100:320]
    assert "which have no prediction: 7; file and line name" in capsys.readouterr().out
    assert joined("test") == log[320:]
    (dataset / "quarantine.csv").unlink()
    assert {row[:2] for row in joined("test")} == {(None, None)}
    assert "file and line are empty" in capsys.readouterr().out
    assert "quarantine.csv: cannot be read" in caplog.text


def test_csv_and_another_split(program, dataset, tmp_path, capsys, checkpoints):
    files = [tmp_path / "a.csv", tmp_path / "a.parquet"]
    for path in files:
        predict(program, dataset, path, checkpoints[0], "--eval_split=validation")
        assert program.exit_code == 0, capsys.readouterr().err
    text, binary = csv.read_csv(files[0]), parquet.read_table(files[1])
    assert text.column_names == binary.column_names
    for column in ("row", "label", "probability", "logit"):
        assert np.array_equal(
            text[column].to_numpy().astype(binary[column].to_numpy().dtype),
            binary[column].to_numpy(),
        )
    assert len(binary) == ROWS["validation"]


def test_an_interrupted_file_does_not_appear(program, dataset, tmp_path, checkpoints, monkeypatch):
    from dlrm.train import predict as module

    monkeypatch.setattr(module, "find_nonfinite", lambda _: "logits")
    predict(program, dataset, tmp_path / "a.csv", checkpoints[0])
    assert program.exit_code != 0
    assert not list(tmp_path.glob("a.csv*"))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--predictions=x.csv",), "--mode predict needs --load_checkpoint_path"),
        (("--load_checkpoint_path=runs",), "--mode predict needs --predictions"),
    ],
)
def test_missing_settings_are_named(program, dataset, capsys, flags, message):
    program("--mode=predict", f"--dataset={dataset}", *flags)
    assert program.exit_code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "message"),
    [("a.txt", "must end in .parquet or .csv"), ("none/a.csv", "there is no folder")],
)
def test_files_that_cannot_be_written(
    program, dataset, tmp_path, capsys, checkpoints, name, message
):
    predict(program, dataset, tmp_path / name, checkpoints[0])
    assert program.exit_code == 2
    assert message in capsys.readouterr().err
