# SPDX-License-Identifier: Apache-2.0
"""`--mode predict`: a file with the predictions for every row of a split."""

import resource

import numpy as np
import pytest
import torch
from pyarrow import csv, parquet

from dlrm.train.metrics import roc_auc
from preproc.clicks import __main__ as command
from tests.dlrm.conftest import ROWS, final
from tests.harness import assert_tells
from tests.preproc.clicks.rows import good_text, without_labels

RUN = "--load_checkpoint_path={run}"


def predict(program, dataset, path, checkpoint, *flags, **options):
    """Returns the records of the log."""
    source = ("--mode=predict", f"--dataset={dataset}", f"--load_checkpoint_path={checkpoint}")
    return program(*source, f"--predictions={path}", *flags, **options)


def test_predictions_are_those_that_the_test_scores(program, dataset, trained, tmp_path):
    path = tmp_path / "test.parquet"
    records = predict(program, dataset, path, trained)
    assert final(records)["predicted_rows"] == ROWS["test"]
    assert_tells(program.stdout, f"{ROWS['test']:,}")
    table = parquet.read_table(path)
    assert table.column_names == ["row", "label", "probability", "logit", "file", "line"]
    row, label, probability, logit = (torch.from_numpy(c.to_numpy()) for c in table.columns[:4])
    assert table["line"].null_count == ROWS["test"]  # no log became this dataset
    assert torch.equal(row, torch.arange(ROWS["test"]))
    torch.testing.assert_close(probability, torch.sigmoid(logit))
    assert roc_auc(logit, label > 0) == program.test(dataset, trained)["auc"]


def test_later_rows_without_labels_are_predicted_as_in_the_whole_dataset(program, tmp_path):
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
        assert command.main(["preproc.clicks", *files, *flags]) == 0
    run = tmp_path / "run"
    program.train(whole, run, "--test_after=2")
    tables = []
    for dataset in (whole, later):
        path = tmp_path / f"{dataset.name}.parquet"
        predict(program, dataset, path, run)
        tables.append(parquet.read_table(path))
    for column in ("row", "probability", "logit"):
        assert tables[0][column].equals(tables[1][column])
    assert tables[0]["label"].null_count == 0
    assert tables[1]["label"].null_count == 200
    flags = ("--mode=test", f"--dataset={later}", f"--load_checkpoint_path={run}")
    assert_tells(program.refused(*flags), later, "--mode predict")


def test_rows_name_their_lines_of_a_log_with_rejected_ones(program, tmp_path, caplog):
    """Predictions are joined with the raw log by file and line."""
    days, dataset, run = tmp_path / "days", tmp_path / "dataset", tmp_path / "run"
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
    assert command.main(["preproc.clicks", *files, *splits]) == 0
    program.train(dataset, run, "--max_steps=1")

    def joined(split):
        path = tmp_path / f"{split}.parquet"
        predict(program, dataset, path, run, f"--eval_split={split}")
        columns = parquet.read_table(path, columns=["file", "line", "label"]).columns
        return list(zip(*(column.to_pylist() for column in columns), strict=True))

    assert joined("validation") == log[100:320]
    assert_tells(program.stdout, 7)
    assert joined("test") == log[320:]
    (dataset / "quarantine.csv").unlink()
    assert {row[:2] for row in joined("test")} == {(None, None)}
    assert_tells(caplog.text, "quarantine.csv")


def test_csv_and_another_split(program, dataset, trained, tmp_path):
    files = [tmp_path / "a.csv", tmp_path / "a.parquet"]
    for path in files:
        predict(program, dataset, path, trained, "--eval_split=validation")
    text, binary = csv.read_csv(files[0]), parquet.read_table(files[1])
    assert text.column_names == binary.column_names
    for column in ("row", "label", "probability", "logit"):
        assert np.array_equal(
            text[column].to_numpy().astype(binary[column].to_numpy().dtype),
            binary[column].to_numpy(),
        )
    assert len(binary) == ROWS["validation"]


def test_an_interrupted_file_does_not_appear(program, dataset, trained, tmp_path, monkeypatch):
    from dlrm.train import predict as module

    monkeypatch.setattr(module, "find_nonfinite", lambda _: "logits")
    predict(program, dataset, tmp_path / "a.csv", trained, status=4)
    assert not list(tmp_path.glob("a.csv*"))


@pytest.mark.parametrize("name", ["a.csv", "a.parquet"])
def test_a_full_disk_names_the_file(program, dataset, trained, tmp_path, name):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, limits[1]))
    try:
        predict(program, dataset, tmp_path / name, trained, status=2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert f"File too large: '{tmp_path / name}'" in program.stderr
    assert not list(tmp_path.glob("a.*"))


@pytest.mark.parametrize(
    ("flags", "facts"),
    [
        (("--predictions={folder}/x.csv",), "--mode --load_checkpoint_path"),
        (("--load_checkpoint_path=runs",), "--mode --predictions"),
        (("--predictions={folder}/a.txt", RUN), "--predictions a.txt .parquet .csv"),
        (("--predictions={folder}/none/a.csv", RUN), "--predictions {folder}/none"),
    ],
)
def test_what_cannot_be_written_is_refused(program, dataset, trained, tmp_path, flags, facts):
    words = (flag.format(folder=tmp_path, run=trained) for flag in flags)
    error = program.refused("--mode=predict", f"--dataset={dataset}", *words)
    assert_tells(error, *facts.format(folder=tmp_path).split())
