# SPDX-License-Identifier: Apache-2.0
"""Own click logs from Python."""

import gzip
import tempfile

import numpy as np
import pytest
from pyarrow import csv

import recsys_recipes as rr
from recsys.errors import UserError
from recsys_recipes import clicks
from tests import harness
from tests.tools import needs

QUIET = {"progress": "none"}


@pytest.fixture(scope="module")
def log(real_data):
    """Avazu's rows, with the ids that no int64 holds as texts."""
    with gzip.open(real_data / "avazu" / "train_8k.csv.gz") as file:
        return csv.read_csv(file, convert_options=csv.ConvertOptions(column_types={"id": "string"}))


def table_of(log, library):
    if library == "pyarrow":
        return log
    import polars as pl

    return pl.from_arrow(log).with_columns(pl.col("site_id").cast(pl.Categorical))


@pytest.mark.parametrize("library", ["pyarrow", pytest.param("polars", marks=needs("Polars"))])
def test_a_table_is_prepared_and_predicted_as_its_file(log, real_data, library, tmp_path):
    table = table_of(log, library)
    schema = clicks.infer(table, tmp_path / "schema.yaml")
    of_table = clicks.prepare(table, tmp_path / "table", schema=schema, **QUIET)
    file = real_data / "avazu" / "train_8k.csv.gz"
    of_file = clicks.prepare(file, tmp_path / "file", schema=schema, **QUIET)
    for path in sorted(of_file.glob("*/*.bin")):
        assert (of_table / path.relative_to(of_file)).read_bytes() == path.read_bytes()
    settings = {"preset": "criteo_sample", "max_steps": 20, "eval_split": "validation"}
    run = clicks.train(of_table, tmp_path / "run", **settings, base_device="cpu")
    new = table_of(log.drop_columns(["click"]).slice(8000), library)
    answers = clicks.predict(new, of_table, run)
    with_labels = clicks.predict(table_of(log.slice(8000), library), of_table, run)
    assert answers["line"].to_pylist() == list(range(2, 89))
    assert np.all(answers["probability"].to_numpy() == with_labels["probability"].to_numpy())
    assert 0.05 < np.mean(answers["probability"].to_numpy()) < 0.4


def test_what_is_wrong_raises_errors_that_name_it(log, tmp_path):
    with harness.refusal("__arrow_c_stream__", "dict"):
        clicks.infer({"click": [1]}, tmp_path / "schema.yaml")
    with harness.refusal("'presets'"):
        clicks.train(tmp_path, tmp_path / "run", presets="small")
    schema = clicks.infer(log, tmp_path / "schema.yaml")
    with pytest.raises(UserError) as refused:
        clicks.prepare(log.drop_columns(["C1"]), tmp_path / "data", schema=schema)
    harness.assert_tells(str(refused.value), "'C1'")
    assert tempfile.gettempdir() not in str(refused.value)  # where the table was written


SCHEMA = {
    "label": {"column": "bought", "positive": ["1"], "negative": ["0"]},
    "columns": [
        {"name": "ad", "role": "categorical", "type": "string"},
        {"name": "age", "role": "numerical", "type": "int"},
    ],
    "split": {"fractions": [0.6, 0.2, 0.2]},
}


def test_a_frame_gets_predictions_on_its_index_and_a_test_its_metrics(tmp_path, capsys):
    """The schema is a dictionary; a row of the new frame is refused, and its labels repeat."""
    import pandas as pd  # which Gradio brings

    rows = 400
    frame = pd.DataFrame({"ad": [f"a{i % 5}" for i in range(rows)], "age": range(rows)})
    frame["bought"] = [int(i % 5 < 2) for i in range(rows)]
    dataset = rr.clicks.prepare(frame, tmp_path / "data", schema=SCHEMA, **QUIET)
    small = {"embedding_dim": 8, "bottom_mlp_sizes": [8], "top_mlp_sizes": [1], "batch_size": 40}
    run = rr.clicks.train(
        dataset, tmp_path / "run", **small, optimizer="adam", lr=0.03, epochs=20, warmup_steps=0,
        eval_split="validation", best_by="log_loss", base_device="cpu", baselines=[]
    )  # fmt: skip
    metrics = rr.clicks.test(dataset, run, baselines=[])
    assert metrics["auc"] > 0.95
    assert metrics["num_rows"] == rows * 0.2
    new = pd.concat([frame.drop(columns="bought").astype({"age": "str"})] * 30)
    new.iloc[3, 1] = "x"
    capsys.readouterr()
    answers = rr.clicks.predict(new, dataset, run)
    assert capsys.readouterr() == ("", "")  # nothing of files that do not stay
    assert answers.index.equals(new.index)
    assert answers["probability"].isna().to_numpy().nonzero()[0].tolist() == [3]
    likely = answers["probability"].to_numpy() > 0.5
    known = np.arange(len(new)) != 3
    assert (likely == (np.arange(len(new)) % 5 < 2))[known].mean() > 0.95


def test_errors_name_no_temporary_file(tmp_path, monkeypatch):
    """Of a table, a schema that is a dictionary, and rows to predict."""
    import pandas as pd

    hidden = tmp_path / "hidden"
    hidden.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(hidden))
    frame = pd.DataFrame({"ad": ["a", "b"] * 50, "age": range(100), "bought": [0, 0, 1, 1] * 25})
    wrong = [
        {"schema": SCHEMA | {"columns": [{"name": "ad", "role": "categoricl", "type": "string"}]}},
        {"schema": SCHEMA, "frequency_limit": 3},
        {"schema": SCHEMA, "log": frame.assign(age="x")},
        {"schema": SCHEMA, "log": frame[:0]},
    ]
    for settings in wrong:
        with pytest.raises(UserError) as refused:
            rr.clicks.prepare(**{"log": frame, "output": tmp_path / "data"} | settings)
        assert str(hidden) not in f"{refused.value} {refused.value.path}"
    dataset = rr.clicks.prepare(frame, tmp_path / "data", schema=SCHEMA)
    run = rr.clicks.train(dataset, tmp_path / "run", "logistic", baselines="")
    other = SCHEMA | {"columns": SCHEMA["columns"][:1]}
    without_age = rr.clicks.prepare(frame[["ad", "bought"]], tmp_path / "other", schema=other)
    with pytest.raises(UserError) as refused:
        rr.clicks.predict(frame, without_age, run)
    assert str(hidden) not in f"{refused.value} {refused.value.path}"
