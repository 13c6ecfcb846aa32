# SPDX-License-Identifier: Apache-2.0
"""Calibration curve of the predictions and importance of the features."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from dlrm.data.batch import Batch
from dlrm.model.network import Dlrm
from recsys.data.feature_spec import FeatureSpec
from recsys.train.optimizers.precision import Precision

MAX_ROWS = 65_536
"""Rows of the split that are looked at: the first ones."""

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
    """Returns lines of text with the calibration and the importance of `explain`."""
    if not explanation:
        return []
    curve = explanation["calibration_curve"]
    rises = list(explanation["feature_importance"].items())[:_MOST_FEATURES]
    return [
        "Calibration by tenths of the rows: mean prediction, share of clicks",
        *(f"  {predicted:.4f}  {clicked:.4f}" for predicted, clicked in curve),
        f"Rise of the log loss when a feature is shuffled, the {len(rises)} largest: mean (least "
        f"and most of {_SHUFFLES} shuffles)",
        *(
            f"  {name:8} {mean:.5f} (least {low:.5f}, most {high:.5f})"
            for name, (mean, low, high) in rises
        ),
    ]


@torch.no_grad()
def explain(
    model: Dlrm, batches: Iterable[Batch[Tensor]], spec: FeatureSpec, precision: Precision
) -> Mapping[str, Any]:
    """Computes the calibration curve and the permutation importance of every feature.

    The importance of a feature is the rise of the log loss when its values are shuffled over the
    rows, three times. Source: Breiman 2001 (Random Forests); Fisher et al. 2019 (arXiv:1801.01489).

    Args:
        model: the network, put into evaluation mode here.
        batches: batches of a split, of which the first `MAX_ROWS` rows count.
        spec: names of the features.
        precision: autocast of the forward pass.

    Returns:
        `calibration_curve` and `feature_importance`, a name -> (mean, least, most) in nats, the
        largest first.
    """
    model.eval()
    taken: list[Batch[Tensor]] = []
    rows = 0
    for batch in batches:
        taken.append(batch)
        rows += len(batch)
        if rows >= MAX_ROWS:
            break
    numerical, ids, label = (
        torch.cat([getattr(batch, name) for batch in taken])[:MAX_ROWS]
        for name in ("numerical", "ids", "label")
    )
    size = len(taken[0])
    label = label.to(torch.float32)

    def logits(numerical: Tensor, ids: Tensor) -> Tensor:
        with precision.autocast():
            pairs = zip(torch.split(numerical, size), torch.split(ids, size), strict=True)
            return torch.cat([model(*pair).to(torch.float32) for pair in pairs])

    def log_loss(predicted: Tensor) -> float:
        return float(F.binary_cross_entropy_with_logits(predicted.double(), label.double()))

    unchanged = logits(numerical, ids)
    base = log_loss(unchanged)
    generator = torch.Generator().manual_seed(0)
    rises: dict[str, Sequence[float]] = {}
    names_of_ids = [feature.name for feature in spec.categorical]
    for values, names in ((numerical, spec.numerical), (ids, names_of_ids)):
        for column, name in enumerate(names):
            of_feature = []
            for _ in range(_SHUFFLES):
                order = torch.randperm(len(values), generator=generator).to(values.device)
                shuffled = values.clone()
                shuffled[:, column] = values[order, column]
                changed = (shuffled, ids) if values is numerical else (numerical, shuffled)
                of_feature.append(log_loss(logits(*changed)) - base)
            rises[name] = (sum(of_feature) / _SHUFFLES, min(of_feature), max(of_feature))
    ordered = sorted(rises.items(), key=lambda rise: -rise[1][0])
    return {
        "calibration_curve": calibration_curve(unchanged, label),
        "feature_importance": dict(ordered),
    }
