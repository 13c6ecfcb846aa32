# SPDX-License-Identifier: Apache-2.0
"""Computes the calibration curve of predictions and the importance of features."""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from dlrm.data.batch import Batch
from dlrm.model.network import Dlrm
from dlrm.nn.bags import Bags
from recsys.data.feature_spec import FeatureSpec
from recsys.train.optimizers.precision import Precision

MAX_ROWS = 65_536
"""Most rows used: the first of the split."""

_GROUPS = 10
_SHUFFLES = 3
_MOST_FEATURES = 10


def calibration_curve(logits: Tensor, labels: Tensor) -> list[tuple[float, float]]:
    """Compares predicted with observed click rates, in ten groups of equal size.

    Args:
        logits: [B].
        labels: [B], 1 for a click.

    Returns:
        (mean prediction, share of clicks) of each group, by rising prediction.
    """
    order = logits.argsort()
    groups = zip(
        logits[order].double().sigmoid().tensor_split(_GROUPS),
        labels[order].double().tensor_split(_GROUPS),
        strict=True,
    )
    return [(float(p.mean()), float(clicks.mean())) for p, clicks in groups if len(p)]


def explanation_lines(explanation: Mapping[str, Any]) -> list[str]:
    """Returns the result of `explain` as lines of text."""
    if not explanation:
        return []
    curve = explanation["calibration_curve"]
    rises = list(explanation["feature_importance"].items())[:_MOST_FEATURES]
    return [
        "Calibration in ten groups of equal size: mean prediction, share of clicks",
        *(f"  {predicted:.4f}  {clicked:.4f}" for predicted, clicked in curve),
        f"Increase of the log loss when a feature is shuffled, the {len(rises)} largest: mean "
        f"(least and most of {_SHUFFLES} shuffles)",
        *(
            f"  {name:8} {mean:.5f} (least {low:.5f}, most {high:.5f})"
            for name, (mean, low, high) in rises
        ),
    ]


@torch.no_grad()
def explain(
    model: Dlrm, batches: Iterable[Batch[Any]], spec: FeatureSpec, precision: Precision
) -> Mapping[str, Any]:
    """Computes the calibration curve and the permutation importance of every feature.

    The importance of a feature is the increase of the log loss when its values are shuffled among
    the rows of each batch; three shuffles are measured. Source: Breiman 2001 (Random Forests);
    Fisher et al. 2019 (arXiv:1801.01489).

    Args:
        model: switched to evaluation mode.
        batches: batches of a split; reading ends after about `MAX_ROWS` rows.
        spec: names of the features.
        precision: autocast of the forward pass.

    Returns:
        `calibration_curve`, see the function of that name; and `feature_importance`, feature ->
        (mean, least, most) increase in nats, the largest first.
    """
    model.eval()
    taken: list[Batch[Any]] = []
    rows = 0
    for batch in batches:
        taken.append(batch)
        rows += len(batch)
        if rows >= MAX_ROWS:
            break
    label = torch.cat([batch.label for batch in taken]).to(torch.float32)
    generator = torch.Generator().manual_seed(0)

    def logits(change: Callable[[Batch[Any]], Batch[Any]] = lambda batch: batch) -> Tensor:
        with precision.autocast():
            changed = map(change, taken)
            return torch.cat([model(b.numerical, b.ids).to(torch.float32) for b in changed])

    def log_loss(predicted: Tensor) -> float:
        return float(F.binary_cross_entropy_with_logits(predicted.double(), label.double()))

    unchanged = logits()
    base = log_loss(unchanged)
    rises: dict[str, Sequence[float]] = {}
    for side, names in (("numerical", spec.numerical), ("ids", spec.table_names)):
        for column, name in enumerate(names):
            shuffle = functools.partial(_shuffled, side=side, column=column, generator=generator)
            of_feature = [log_loss(logits(shuffle)) - base for _ in range(_SHUFFLES)]
            rises[name] = (sum(of_feature) / _SHUFFLES, min(of_feature), max(of_feature))
    ordered = sorted(rises.items(), key=lambda rise: -rise[1][0])
    return {
        "calibration_curve": calibration_curve(unchanged, label),
        "feature_importance": dict(ordered),
    }


def _shuffled(batch: Batch[Any], side: str, column: int, generator: torch.Generator) -> Batch[Any]:
    """Returns the batch with the values of one feature in a random order."""
    values = getattr(batch, side)
    order = torch.randperm(len(batch), generator=generator).to(batch.label.device)
    if isinstance(values, Bags):
        return dataclasses.replace(batch, ids=values.reordered(column, order))
    shuffled = values.clone()
    shuffled[:, column] = values[order, column]
    return dataclasses.replace(batch, **{side: shuffled})
