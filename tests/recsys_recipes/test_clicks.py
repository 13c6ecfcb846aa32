# SPDX-License-Identifier: Apache-2.0
"""Own click logs from Python, and the notebook of docs/tutorials."""

import gzip
import json
import tempfile

import numpy as np
import pytest
from pyarrow import csv

from recsys.errors import UserError
from recsys_recipes import clicks
from tests import harness
from tests.tools import needs

NOTEBOOK = harness.REPOSITORY / "docs" / "tutorials" / "own_clicks.ipynb"
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


@needs("Polars")
def test_the_notebook_runs(real_data, tmp_path):
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    script = tmp_path / "notebook.py"
    code = ("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    script.write_text("\n".join(code))
    done = harness.forked(script, folder=tmp_path, RECSYS_DATA=str(real_data))
    harness.assert_tells(done.stdout, 5, "predictions")
