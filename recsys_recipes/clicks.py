# SPDX-License-Identifier: Apache-2.0
"""Click logs from Python: from a table to predictions.

    import recsys_recipes as rr

    schema = rr.clicks.infer(frame, "schema.yaml")     # read each line of it
    dataset = rr.clicks.prepare(frame, "data/clicks", schema=schema)
    run = rr.clicks.train(dataset, "data/run")
    auc = rr.clicks.test(dataset, run)["auc"]
    probabilities = rr.clicks.predict(new, dataset, run)["probability"]

Each function is a command of `recsys-recipes` and takes its settings (docs/flags.md). A log is a
path, or a table with `__arrow_c_stream__`: a frame of pandas 2.2 or later, Polars or pyarrow. The
examples below form one session; what they print on the way is left out.
"""

import contextlib
import dataclasses
import io
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from preproc.clicks import __main__ as clicks_program
from preproc.clicks import pipeline
from preproc.clicks.schema.draft.infer import infer_schema
from recsys.files.durable import write_whole_file
from recsys.train.run_log import read_run_log
from recsys_recipes.from_python import (
    called,
    file_of,
    log_file,
    parsed_flags,
    schema_file,
    train_auto,
)
from recsys_recipes.from_python import run as run_model
from recsys_recipes.models import model_of

__all__ = ["infer", "predict", "prepare", "test", "train"]


def infer(log: Any, schema: str | Path) -> Path:
    """Drafts a schema from a sample of a log; returns its path.

    Read the draft before you use it. If its label could not be determined, it is left open.

    Args:
        log: a path or a table.
        schema: YAML file to write; an existing one is replaced.

    Raises:
        UserError: the log cannot be read.

    Examples:
        A log in which two of five ads are bought:

        >>> import pyarrow as pa
        >>> import recsys_recipes as rr
        >>> rows = [(f"ad{i % 5}", 20 + i % 50, "yes" if i % 5 < 2 else "no") for i in range(1000)]
        >>> ads, ages, outcomes = zip(*rows)
        >>> log = pa.table({"ad": ads, "age": ages, "bought": outcomes})
        >>> schema = rr.clicks.infer(log, "schema.yaml")
        >>> print(schema.read_text().splitlines()[2])
        label: {column: bought, positive: ["yes"], negative: ["no"]}  # 40.0% are yes
    """
    with file_of(log) as path:
        write_whole_file(Path(schema), infer_schema(path))
    return Path(schema)


def prepare(
    log: Any,
    output: str | Path | None = None,
    *,
    schema: str | Path | Mapping[str, Any] | None = None,
    **settings: Any,
) -> Path:
    """Makes a dataset from a log; returns its folder.

    Args:
        log: a path or a table.
        output: folder to create; left out with `extend`, which adds a day to a growing dataset.
        schema: YAML file that describes the columns, or its content; None reads Criteo's form.
        **settings: settings of `recsys-recipes prepare clicks`. `dictionaries` names a dataset
            whose schema and ids new rows get.

    Raises:
        UserError: a setting or the log is refused; the message names the file, line and column.

    Examples:
        >>> dataset = rr.clicks.prepare(log, "clicks", schema=schema)
    """
    source = log if isinstance(log, (str, Path)) else "-"
    with schema_file(schema) as file:
        of_files = {"output": output, "schema": file}
        given = {name: value for name, value in of_files.items() if value is not None} | settings
        values = parsed_flags(clicks_program.define_flags(), input=source, **given)
        job = clicks_program.job_from_flags(values)
        with file_of(log, job.named_files) as path:
            return pipeline.prepare(dataclasses.replace(job, input=path))


def train(dataset: str | Path, run: str | Path, model: str = "dlrm", **settings: Any) -> Path:
    """Trains a model; returns the folder of its checkpoints.

    Args:
        dataset: folder that `prepare` made.
        run: folder of the checkpoints to create.
        model: a model that `recsys-recipes train` offers for clicks, or `auto`, which compares
            several on the validation rows and blends the best.
        **settings: settings of `recsys-recipes train` for the model, such as `preset` or
            `max_steps` of `dlrm`.

    Raises:
        UserError: a setting or the dataset is refused.

    Examples:
        >>> run = rr.clicks.train(dataset, "click-run", "logistic", baselines="")
    """
    if model == "auto":
        return train_auto(dataset, run, **settings)
    files = {"dataset": dataset, "output": run}
    run_model("train", model, "clicks", **{**files, **settings})
    return Path(run)


def test(dataset: str | Path, run: str | Path, **settings: Any) -> dict[str, Any]:
    """Measures a trained model on the test rows.

    Args:
        dataset: a dataset with labels, and with the schema and ids of the training.
        run: folder of the checkpoints of any model of clicks.
        **settings: settings of `recsys-recipes test`, such as `eval_split`.

    Returns:
        Name -> metric of the split, such as `auc` and `log_loss`, and those of the baselines.

    Raises:
        UserError: a setting or the dataset is refused.

    Examples:
        >>> round(rr.clicks.test(dataset, run, baselines="")["auc"], 3)
        1.0
    """
    with log_file(settings) as log:
        files = {"dataset": dataset, "checkpoint": run, "log_path": log}
        run_model("test", model_of(Path(run)).name, "clicks", **{**settings, **files})
        return dict(read_run_log(log)[-1]["data"])


def predict(log: Any, dataset: str | Path, run: str | Path, **settings: Any) -> Any:
    """Returns the click probabilities of new rows, which need no label.

    Args:
        log: a path or a table.
        dataset: the dataset of the training, whose schema and ids the rows get.
        run: folder of the checkpoints of any model of clicks.
        **settings: settings of `recsys-recipes predict`.

    Returns:
        For a pandas frame a frame with the same index and the columns `probability` and `logit`,
        NaN if a row is refused. Otherwise a pyarrow table with the rows that are not refused, in
        the order of the log, and their `line`, which is 2 for the first row of a table.

    Raises:
        UserError: a setting or the log is refused.

    Examples:
        >>> new = pa.table({"ad": ["ad0", "ad4"], "age": [30, 31]})
        >>> [p > 0.5 for p in rr.clicks.predict(new, dataset, run)["probability"].to_pylist()]
        [True, False]
    """
    with tempfile.TemporaryDirectory() as folder:
        rows, predictions = Path(folder) / "rows", Path(folder) / "predictions.parquet"
        prepare(log, rows, dictionaries=dataset, unlabelled=True, progress="none")
        files = {"dataset": rows, "checkpoint": run, "predictions": predictions}
        given = {**files, **settings}
        with (
            called(rows, "the dataset of the new rows"),
            contextlib.redirect_stdout(io.StringIO()),  # it names the temporary file
        ):
            run_model("predict", model_of(Path(run)).name, "clicks", **given)
        table = parquet.read_table(predictions)
    return _of_index(table, log.index) if _is_pandas(log) else table


def _is_pandas(log: Any) -> bool:
    return type(log).__module__.partition(".")[0] == "pandas"


def _of_index(table: pa.Table, index: Any) -> Any:
    """Returns the predictions of the rows of a frame, on its index."""
    import pandas as pd  # installed, since the index is from pandas

    row = table["line"].to_numpy() - 2
    columns = {}
    for name in ("probability", "logit"):
        columns[name] = np.full(len(index), np.nan, np.float32)
        columns[name][row] = table[name].to_numpy()
    return pd.DataFrame(columns, index=index)
