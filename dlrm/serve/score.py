# SPDX-License-Identifier: Apache-2.0
"""Scores a split with a deployed DLRM, on a server or not, beside its checkpoint."""

import dataclasses
import time
from collections.abc import Callable, Iterable, Iterator

import numpy as np
import torch
from torch import Tensor

from dlrm.config import DataConfig
from dlrm.data.batch import Batch
from dlrm.data.loader import BatchLoader
from dlrm.data.sources import load_feature_spec, open_rows
from dlrm.model.network import Dlrm
from dlrm.train.metrics import ClickMetrics, click_metrics
from recsys.serve.client.requests import Arrays
from recsys.serve.signature import Signature

Answer = Callable[[Iterable[Arrays]], Iterable[Arrays]]
"""Answers requests in their order."""


@dataclasses.dataclass(frozen=True, slots=True)
class ServedSplit:
    """What the rows of a split got.

    Attributes:
        served: quality of the server's answers.
        offline: of the checkpoint's; None without one.
        largest_difference: of a logit, relative to the checkpoint's where that is above 1.
        rows_per_s: over the whole time, the checkpoint's share included.
    """

    served: ClickMetrics
    offline: ClickMetrics | None
    largest_difference: float | None
    rows_per_s: float


def read_requests(
    data: DataConfig, signature: Signature, batch_size: int, *, check_ids: bool = True
) -> Iterator[tuple[Batch[Tensor], Arrays]]:
    """Yields the batches of --eval_split and the requests that ask for them.

    Args:
        data: says where the dataset is.
        signature: of the served model; its inputs are numerical and categorical features.
        batch_size: rows of a request.
        check_ids: refuse ids outside their tables, as a model that does not hash them must.

    Raises:
        DatasetError: the dataset is missing or damaged.
    """
    numerical, categorical = signature.inputs
    spec = load_feature_spec(data, numerical.shape[0])
    source = open_rows(data, data.eval_split, spec, check_ids=check_ids)
    loader = BatchLoader(
        source=source, batch_size=batch_size, device=torch.device("cpu"), drop_last=False
    )
    for batch in loader.batches():
        yield (
            batch,
            {
                numerical.name: batch.numerical.to(torch.float32).numpy(),
                categorical.name: np.ascontiguousarray(batch.ids.numpy()),
            },
        )


@torch.inference_mode()
def score_served_split(
    data: DataConfig,
    signature: Signature,
    answer: Answer,
    batch_size: int,
    model: Dlrm | None,
    *,
    check_ids: bool = True,
) -> ServedSplit:
    """Scores every row of --eval_split.

    Args:
        data: says where the dataset is.
        signature: of the served model.
        answer: asks the server, or a deployed version.
        batch_size: rows of a request.
        model: of the checkpoint, on the CPU and in evaluation mode; None compares with nothing.
        check_ids: as of `read_requests`.

    Raises:
        DatasetError: the dataset is missing or damaged.
    """
    labels: list[Tensor] = []
    offline: list[Tensor] = []

    def requests() -> Iterator[Arrays]:
        for batch, request in read_requests(data, signature, batch_size, check_ids=check_ids):
            labels.append(batch.label > 0.5)
            if model is not None:
                offline.append(model(batch.numerical, batch.ids).to(torch.float32))
            yield request

    logit = signature.outputs[1].name
    started = time.perf_counter()
    answers = [torch.from_numpy(np.array(found[logit][:, 0])) for found in answer(requests())]
    elapsed = time.perf_counter() - started
    served, clicked = torch.cat(answers), torch.cat(labels)
    metrics = click_metrics(served, clicked)
    rows_per_s = len(clicked) / elapsed
    if model is None:
        return ServedSplit(metrics, None, None, rows_per_s)
    true = torch.cat(offline)
    largest = float(((served - true).abs() / true.abs().clamp(min=1)).max())
    return ServedSplit(metrics, click_metrics(true, clicked), largest, rows_per_s)
