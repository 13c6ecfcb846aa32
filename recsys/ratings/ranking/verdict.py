# SPDX-License-Identifier: Apache-2.0
"""How far a model is ahead of the best baseline, in each metric of the verdict."""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from recsys.ratings.ranking.evaluate import Ranks
from recsys.ratings.ranking.metrics import paired_difference, ranking_metrics
from recsys.train.measure.verdict import Lead

_JUDGED = ("hr@10", "ndcg@10")


def leads_over(
    baselines: Mapping[str, Ranks], model: Ranks, users: npt.NDArray[np.int64]
) -> list[Lead]:
    """Compares a model with the best baseline by each metric of the verdict.

    Args:
        baselines: name -> [T] rank of each target, from 0.
        model: [T] ranks of the model.
        users: [T] user of each target, ascending.
    """
    leads = []
    for metric in _JUDGED:
        k = int(metric.partition("@")[2])
        best = max(baselines, key=lambda name: ranking_metrics(baselines[name], (k,))[metric])
        lead = paired_difference(model, baselines[best], metric, users)
        leads.append(Lead(metric, best, lead.value, lead.low, lead.high))
    return leads
