# SPDX-License-Identifier: Apache-2.0
"""Evaluates a deployed click model on a split and compares it with its checkpoint."""

import dataclasses
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dlrm.config import DataConfig
from dlrm.data.batch import Batch
from dlrm.data.loader import BatchLoader
from dlrm.data.opened import OpenedDataset, list_lengths
from dlrm.model.clicks import ClickModel, StoredClicks
from dlrm.train.metrics import ClickMetrics, click_metrics
from recsys.serve.client.requests import Arrays
from recsys.serve.signature import CATEGORICAL, FACTORS, NUMERICAL, Signature

Answer = Callable[[Iterable[Arrays]], Iterable[Arrays]]
"""Sends requests to the model and returns its replies in the same order."""


@dataclasses.dataclass(frozen=True, slots=True)
class ServedSplit:
    """Metrics of a deployed model and of its checkpoint on a split.

    Attributes:
        served: metrics of the deployed model.
        offline: metrics of the checkpoint; None without a checkpoint.
        largest_difference: largest difference of their logits, relative if the logit is above 1;
            None without a checkpoint.
        rows_per_s: samples per second, including the checkpoint's forward passes.
    """

    served: ClickMetrics
    offline: ClickMetrics | None
    largest_difference: float | None
    rows_per_s: float


def check_dataset_of(stored: StoredClicks, data: DataConfig, *, ignore_fingerprint: bool) -> None:
    """Refuses a dataset other than that of a checkpoint's training.

    With `ignore_fingerprint`, ids only need to be inside their tables.

    Raises:
        CheckpointError: the datasets differ.
        DatasetError: the dataset is missing or damaged.
    """
    dataset = OpenedDataset.open(data, stored.num_numerical)
    sizes, here = stored.table_sizes, dataset.spec.table_sizes
    now = dataset.origin(sizes if len(sizes) == len(here) else here)
    stored.check_dataset(now, str(data.dataset), ignore_fingerprint=ignore_fingerprint)


def has_rows(data: DataConfig) -> bool:
    """Returns False if the manifest says that `eval_split` is empty, as on most days."""
    manifest = OpenedDataset.open(data, 0).manifest
    return manifest is None or manifest.rows.get(data.eval_split) != 0


def read_requests(
    data: DataConfig, signature: Signature, batch_size: int, *, check_ids: bool = True
) -> Iterator[tuple[Batch[Any], Arrays]]:
    """Yields each batch of the evaluation split with its request.

    Set `check_ids` to refuse ids outside their tables, unless the model hashes ids.

    Raises:
        DatasetError: the dataset is missing or damaged.
    """
    inputs = {tensor.name: tensor for tensor in signature.network.inputs}
    numbers = [tensor for name, tensor in inputs.items() if name == NUMERICAL]
    dataset = OpenedDataset.open(data, numbers[0].shape[0] if numbers else 0)
    lengths = list_lengths(dataset.manifest.semantics) if dataset.manifest else ()
    widths = (*[1] * len(dataset.spec.categorical), *lengths)
    source = dataset.rows(data.eval_split, check_ids=check_ids)
    loader = BatchLoader(
        source=source, batch_size=batch_size, device=torch.device("cpu"), drop_last=False
    )
    for batch in loader.batches():
        request = {tensor.name: batch.numerical.to(torch.float32).numpy() for tensor in numbers}
        if FACTORS in inputs:
            ids, scale = batch.ids.to_slots(widths, sum(lengths))
            yield batch, request | {CATEGORICAL: ids.numpy(), FACTORS: scale.contiguous().numpy()}
        else:
            if CATEGORICAL in inputs:
                request[CATEGORICAL] = batch.ids.to(torch.int64).contiguous().numpy()
            yield batch, request


@torch.inference_mode()
def score_served_split(
    data: DataConfig,
    signature: Signature,
    answer: Answer,
    batch_size: int,
    model: ClickModel[Any] | None,
    *,
    check_ids: bool = True,
) -> ServedSplit:
    """Evaluates a deployed model and, if given, its checkpoint's model on the evaluation split.

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
    replies = [torch.from_numpy(np.array(reply[logit][:, 0])) for reply in answer(requests())]
    elapsed = time.perf_counter() - started
    served, all_labels = torch.cat(replies), torch.cat(labels)
    metrics = click_metrics(served, all_labels)
    rows_per_s = len(all_labels) / elapsed
    if model is None:
        return ServedSplit(metrics, None, None, rows_per_s)
    true = torch.cat(offline)
    largest = float(((served - true).abs() / true.abs().clamp(min=1)).max())
    return ServedSplit(metrics, click_metrics(true, all_labels), largest, rows_per_s)
