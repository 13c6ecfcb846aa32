# SPDX-License-Identifier: Apache-2.0
"""Writes a model's predictions for every row of a split."""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from pyarrow import csv, parquet

from dlrm.data.batch import SplitBatches
from dlrm.data.opened import OpenedDataset
from dlrm.data.raw_lines import RawLines, raw_lines
from dlrm.model.clicks import ClickModel
from dlrm.nn.embedding import LookupsT
from recsys.data.arrow_columns import column_of, texts_of
from recsys.errors import DivergenceError, UserError
from recsys.files.durable import whole_file
from recsys.train.divergence import ADVICE, find_nonfinite
from recsys.train.measure.timing import rate_in_words
from recsys.train.optimizers.precision import Precision
from recsys.train.recipe import PrintLine
from recsys.train.run_log import progress_bar

SCHEMA = pa.schema(
    [
        ("row", pa.int64()),
        ("label", pa.uint8()),
        ("probability", pa.float32()),
        ("logit", pa.float32()),
        ("file", pa.string()),
        ("line", pa.int64()),
    ]
)
"""Columns of the file: number of the row in its split, from 0; click; prediction; raw line.

Lines are numbered from 1 in their file. Join predictions with a log by file and line, not by row:
rejected lines have a line number but no row. The label is null if the rows are not labelled; file
and line are null if the dataset does not record them.
"""

_WRITERS: dict[str, Callable[..., Any]] = {
    ".parquet": parquet.ParquetWriter,
    ".csv": csv.CSVWriter,
}


def check_predictions_path(path: Path) -> None:
    """Refuses a path that cannot be written.

    Raises:
        UserError: its suffix is not that of a format, or its folder is missing.
    """
    if path.suffix not in _WRITERS:
        raise UserError(
            f"`predictions`: {path} must end in {' or '.join(_WRITERS)}; this selects the format",
            setting="predictions",
        )
    if not path.parent.is_dir():
        raise UserError(
            f"`predictions`: the folder {path.parent} does not exist", setting="predictions"
        )


def predict_split(
    path: Path,
    model: ClickModel[LookupsT],
    source: SplitBatches[LookupsT],
    dataset: OpenedDataset,
    precision: Precision,
    print_line: PrintLine,
) -> Mapping[str, float]:
    """Writes the predictions for `eval_split`; see `write_predictions`.

    Returns:
        Number of predictions and their rate, to log.
    """
    lines = raw_lines(dataset)
    started = time.perf_counter()
    with progress_bar(source.num_batches, 0, is_first=True) as bar:
        num_rows = write_predictions(
            path,
            model,
            source,
            precision,
            bar.update,
            has_labels=dataset.has_labels,
            raw_lines=lines,
        )
    rate = num_rows / (time.perf_counter() - started)
    print_line(
        f"Wrote {num_rows:,} predictions for the {dataset.config.eval_split} split to {path}, "
        f"{rate_in_words(rate, 'rows')}"
    )
    if lines is None:
        print_line("file and line are empty: the dataset does not record the raw line of each row")
    elif lines.num_rejected:
        print_line(
            f"Rejected lines of the log without a prediction: {lines.num_rejected:,}; to find the "
            "raw line of a prediction, use file and line, not row"
        )
    return {"predicted_rows": num_rows, "predicted_rows_per_s": rate}


@torch.no_grad()
def write_predictions(
    path: Path,
    model: ClickModel[LookupsT],
    source: SplitBatches[LookupsT],
    precision: Precision,
    on_batch: Callable[[], object],
    *,
    has_labels: bool = True,
    raw_lines: RawLines | None = None,
) -> int:
    """Writes predictions for all rows, in order, batch by batch.

    The file appears under its name when it is complete.

    Args:
        path: file ending in .csv or .parquet; its columns are those of `SCHEMA`.
        model: switched to evaluation mode.
        source: batches of the split, in order.
        precision: autocast of the forward pass.
        on_batch: called after each batch.
        has_labels: False writes null labels.
        raw_lines: file and line of each row; None writes nulls.

    Returns:
        Number of rows.

    Raises:
        DivergenceError: a prediction is NaN or infinite.
    """
    model.eval()
    first = 0
    with whole_file(path) as file, _WRITERS[path.suffix](file, SCHEMA) as writer:
        for batch in source.batches():
            with precision.autocast():
                logits = model(batch.numerical, batch.ids).to(torch.float32).cpu()
            if find_nonfinite({"logits": logits}) is not None:
                raise DivergenceError(
                    f"a prediction for rows {first} to {first + len(logits) - 1} is NaN or "
                    f"infinite: the parameters have diverged, or the rows contain such numbers. "
                    f"{ADVICE}; check the data with recsys-recipes verify"
                )
            clicks = (batch.label > 0.5).to(torch.uint8).cpu().numpy()
            arrays = [
                column_of(np.arange(first, first + len(logits))),
                column_of(clicks) if has_labels else pa.nulls(len(logits), pa.uint8()),
                column_of(torch.sigmoid(logits).numpy()),
                column_of(logits.numpy()),
                *_lines(raw_lines, first, len(logits)),
            ]
            writer.write_batch(pa.record_batch(arrays, schema=SCHEMA))
            first += len(logits)
            on_batch()
        model.raise_bad_ids()
    return first


def _lines(raw_lines: RawLines | None, first: int, rows: int) -> Sequence[pa.Array]:
    """Returns file and line of each row, [rows] each; nulls if `raw_lines` is None."""
    if raw_lines is None:
        return [pa.nulls(rows, SCHEMA.field(name).type) for name in ("file", "line")]
    files, lines = raw_lines.locate(first, first + rows)
    names = texts_of(
        [os.fsencode(name).decode(errors="replace").encode() for name in raw_lines.files]
    )
    return [names.take(column_of(files)), column_of(lines)]
