# SPDX-License-Identifier: Apache-2.0
"""Writes a model's predictions for every row of a split."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from pyarrow import csv, parquet
from torch import Tensor

from dlrm.data.batch import Batch, BatchSource
from dlrm.model.network import DlrmNetwork
from dlrm.nn.embedding import LookupsT
from recsys.data.whole_file import whole_file
from recsys.errors import DivergenceError, UserError
from recsys.train.divergence import ADVICE, find_nonfinite
from recsys.train.optimizers.precision import Precision

SCHEMA = pa.schema(
    [
        ("row", pa.int64()),
        ("label", pa.uint8()),
        ("probability", pa.float32()),
        ("logit", pa.float32()),
    ]
)
"""Columns of the file: number of the row in its split from 0 on, click, prediction.

The label is null where the rows have none.
"""

_WRITERS: dict[str, Callable[..., Any]] = {
    ".parquet": parquet.ParquetWriter,
    ".csv": csv.CSVWriter,
}


def check_predictions_path(path: Path) -> None:
    """Refuses a file that cannot be written.

    Raises:
        UserError: its suffix names no format, or its folder is missing.
    """
    if path.suffix not in _WRITERS:
        raise UserError(
            f"`predictions`: {path} must end in {' or '.join(_WRITERS)}, which names the format"
        )
    if not path.parent.is_dir():
        raise UserError(f"`predictions`: there is no folder {path.parent}")


@torch.no_grad()
def write_predictions(
    path: Path,
    models: Sequence[DlrmNetwork[LookupsT]],
    source: BatchSource[LookupsT],
    precision: Precision,
    on_batch: Callable[[], object],
    *,
    has_labels: bool = True,
) -> int:
    """Predicts all rows in their order, a batch at a time.

    The file appears under its name when it is complete.

    Args:
        path: ending in .csv or .parquet, see `SCHEMA`.
        models: of several, the mean of the probabilities is written.
        source: batches of the split, in order.
        precision: autocast of the forward pass.
        on_batch: called after each batch.
        has_labels: False writes nulls.

    Returns:
        How many rows there are.

    Raises:
        DivergenceError: a prediction is NaN or infinite.
    """
    for model in models:
        model.eval()
    first = 0
    with whole_file(path) as file, _WRITERS[path.suffix](file, SCHEMA) as writer:
        for batch in source.batches():
            logits = _mean_logits(models, batch, precision).cpu()
            if find_nonfinite({"logits": logits}) is not None:
                raise DivergenceError(
                    f"a prediction for rows {first} to {first + len(logits) - 1} is NaN or "
                    f"infinite: the parameters have diverged, or the rows hold such numbers. "
                    f"{ADVICE}; check the data with python -m dataspec.verify"
                )
            clicks = (batch.label > 0.5).to(torch.uint8).cpu().numpy()
            arrays = [
                pa.array(np.arange(first, first + len(logits))),
                pa.array(clicks) if has_labels else pa.nulls(len(logits), pa.uint8()),
                pa.array(torch.sigmoid(logits).numpy()),
                pa.array(logits.numpy()),
            ]
            writer.write_batch(pa.record_batch(arrays, schema=SCHEMA))
            first += len(logits)
            on_batch()
        for model in models:
            model.embeddings.raise_bad_ids()
    return first


def _mean_logits(
    models: Sequence[DlrmNetwork[LookupsT]], batch: Batch[LookupsT], precision: Precision
) -> Tensor:
    """Returns [B] float32 logits; of several models, those of the mean probability."""
    with precision.autocast():
        logits: list[Tensor] = [
            model(batch.numerical, batch.ids).to(torch.float32) for model in models
        ]
    if len(logits) == 1:
        return logits[0]
    stacked = torch.stack(logits).to(torch.float64)
    # log(mean p) - log(mean (1 - p)), where neither probability underflows.
    clicked, other = (
        torch.logsumexp(torch.nn.functional.logsigmoid(sign * stacked), dim=0) for sign in (1, -1)
    )
    mean: Tensor = clicked - other
    return mean.to(torch.float32)
