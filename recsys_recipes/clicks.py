# SPDX-License-Identifier: Apache-2.0
"""Own click logs from Python: from a table to predictions.

    schema = clicks.infer(frame, "schema.yaml")     # read each line of it
    dataset = clicks.prepare(frame, "data/clicks", schema=schema)
    run = clicks.train(dataset, "data/run", preset="criteo_sample")
    probabilities = clicks.predict(new, dataset, run)["probability"]

Each function is a command of `recsys-recipes`, and its further settings are those of that command
(docs/flags.md). A log is a path, or a table with `__arrow_c_stream__`: of pandas from 2.2, polars
or pyarrow.
"""

import dataclasses
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from dlrm.scripts import flags as dlrm_flags
from dlrm.scripts import main as dlrm_main
from preproc.clicks import __main__ as clicks_program
from preproc.clicks import pipeline
from preproc.clicks.schema.draft.infer import infer_schema
from recsys.files.durable import write_whole_file
from recsys.program import new_flags
from recsys_recipes.from_python import file_of, parsed_flags

__all__ = ["infer", "predict", "prepare", "train"]


def infer(log: Any, schema: str | Path) -> Path:
    """Drafts a schema from a sample of a log.

    Args:
        log: a path or a table.
        schema: the YAML file to write; one that is there is replaced.

    Returns:
        `schema`. Its label may be left open, and each line is to be read.

    Raises:
        UserError: the log cannot be read.
    """
    with file_of(log) as path:
        write_whole_file(Path(schema), infer_schema(path))
    return Path(schema)


def prepare(log: Any, output: str | Path, **settings: Any) -> Path:
    """Makes a dataset from a log; returns its folder.

    Args:
        log: a path or a table.
        output: the folder to make.
        **settings: of `recsys-recipes prepare clicks`, such as `schema`, or `dictionaries` of a
            dataset by whose ids new rows are read.

    Raises:
        UserError: a setting or the log is refused; names the file, line and column.
    """
    source = log if isinstance(log, (str, Path)) else "-"
    values = parsed_flags(clicks_program.define_flags(), input=source, output=output, **settings)
    job = clicks_program.job_from_flags(values)
    with file_of(log, job.named_files) as path:
        return pipeline.prepare(dataclasses.replace(job, input=path))


def train(dataset: str | Path, run: str | Path, **settings: Any) -> Path:
    """Trains a DLRM; returns the folder of its checkpoints.

    Args:
        dataset: a dataset that `prepare` made.
        run: folder of the checkpoints.
        **settings: of `recsys-recipes train dlrm`, such as `preset` or `max_steps`.

    Raises:
        UserError: a setting or the dataset is refused.
    """
    folder = {"dataset": dataset, "save_checkpoint_path": run}
    _run_dlrm(**{"mode": "train", "log_path": Path(run) / "log.json", **folder, **settings})
    return Path(run)


def predict(log: Any, dataset: str | Path, run: str | Path, **settings: Any) -> pa.Table:
    """Returns the click probabilities of new rows, whose label is not read.

    Args:
        log: a path or a table.
        dataset: the dataset of the training, whose rules and ids the rows are read by.
        run: folder of the checkpoints.
        **settings: of `recsys-recipes predict`.

    Returns:
        A row for each row of the log that is not refused, in its order, with `probability` and
        `logit`, and `line`: 2 is the first of a table.

    Raises:
        UserError: a setting or the log is refused.
    """
    with tempfile.TemporaryDirectory() as folder:
        rows, predictions = Path(folder) / "rows", Path(folder) / "predictions.parquet"
        prepare(log, rows, dictionaries=dataset, unlabelled=True)
        files = {"dataset": rows, "load_checkpoint_path": run, "predictions": predictions}
        _run_dlrm(**{"mode": "predict", "log_path": Path(folder) / "log", **files, **settings})
        return parquet.read_table(predictions)


def _run_dlrm(**settings: Any) -> None:
    values = new_flags()
    dlrm_flags.define_flags(values)
    dlrm_main.run(parsed_flags(values, **settings))
