# SPDX-License-Identifier: Apache-2.0
"""Whether a model is ahead of the best baselines, by paired intervals."""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from bert4rec.train.evaluate import Ranks
from bert4rec.train.metrics import paired_difference, ranking_metrics

_JUDGED = ("hr@10", "ndcg@10")


@dataclasses.dataclass(frozen=True, slots=True)
class Lead:
    """By how much a model is ahead of the best baseline in a metric.

    Attributes:
        metric: name of the metric.
        baseline: the best baseline by this metric.
        value: the model's metric less the baseline's.
        low: low end of the 95% interval of that, paired by user.
        high: high end.
    """

    metric: str
    baseline: str
    value: float
    low: float
    high: float

    def __str__(self) -> str:
        """Returns it in words."""
        interval = f"95%: {self.low:+.4f} to {self.high:+.4f}"
        return f"Model less {self.baseline}, {self.metric}: {self.value:+.4f} ({interval})"


def leads_over(
    baselines: Mapping[str, Ranks], model: Ranks, users: npt.NDArray[np.int64]
) -> list[Lead]:
    """Compares a model with the best baseline by each metric of the verdict.

    Args:
        baselines: name -> [T] rank of each target, from 0.
        model: the same of the model.
        users: [T] user of each target, ascending.
    """
    leads = []
    for metric in _JUDGED:
        k = int(metric.partition("@")[2])
        best = max(baselines, key=lambda name: ranking_metrics(baselines[name], (k,))[metric])
        lead = paired_difference(model, baselines[best], metric, users)
        leads.append(Lead(metric, best, lead.value, lead.low, lead.high))
    return leads


def verdict(leads: Sequence[Lead]) -> str:
    """Tells in words where a model stands.

    It is behind if it is clearly so in one metric, ahead if it is clearly so in one and behind in
    none: an interval with zero in it tells neither.
    """
    behind = [lead for lead in leads if lead.high < 0]
    ahead = [lead for lead in leads if lead.low > 0]
    level = [lead for lead in leads if lead not in behind and lead not in ahead]
    if behind:
        so_far = f", though ahead of {_named(ahead)}" if ahead else ""
        return f"behind {_named(behind)}{so_far}; train on, or take the baseline"
    if ahead:
        return f"ahead of {_named(ahead)}" + (f"; level with {_named(level)}" if level else "")
    return f"no clear lead, level with {_named(level)}"


def _named(leads: Sequence[Lead]) -> str:
    """Names baselines, each with its metrics."""
    metrics: dict[str, list[str]] = {}
    for lead in leads:
        metrics.setdefault(lead.baseline, []).append(lead.metric)
    return " and ".join(f"{name} in {' and '.join(of_it)}" for name, of_it in metrics.items())
