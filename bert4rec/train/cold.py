# SPDX-License-Identifier: Apache-2.0
"""Counts users and items without a past; judges the targets among them."""

from collections.abc import Iterator, Mapping

import numpy as np

from bert4rec.data.split import true_items
from bert4rec.train.evaluate import Ranks
from bert4rec.train.metrics import flat_metrics, ranking_metrics
from recsys.data.sequences import Sequences, TemporalSplit

_KS = (10,)
_KINDS = ("warm", "cold")


def cold_values(sequences: Sequences, temporal: TemporalSplit, ranks: Ranks) -> dict[str, float]:
    """Counts cold users and items, and judges their targets by themselves.

    Args:
        sequences: histories of all users.
        temporal: their split.
        ranks: [T] ranks of the test targets among all items.

    Returns:
        The values to log; metrics of `warm` and `cold` targets where there are some.
    """
    is_cold = temporal.is_cold[true_items(sequences, "test") - 1]
    values: dict[str, float] = {
        "users_with_targets": len(np.unique(temporal.test.users)),
        "cold_users": int((temporal.before == 0).sum()),
        "ended_users": int((temporal.before == sequences.lengths).sum()),
        "cold_items": int(temporal.is_cold.sum()),
        "cold_targets": int(is_cold.sum()),
    }
    for name, chosen in zip(_KINDS, (~is_cold, is_cold), strict=True):
        if chosen.any():
            values |= flat_metrics({name: ranking_metrics(ranks[chosen], _KS)})
    return values


def cold_lines(sequences: Sequences, values: Mapping[str, float]) -> Iterator[str]:
    """Yields the lines on cold users and items, from `cold_values`."""
    yield (
        f"Of {sequences.num_users} users {values['users_with_targets']} have targets; "
        f"{values['cold_users']} have nothing before the cut (cold, not tested), "
        f"{values['ended_users']} nothing after"
    )
    yield (
        f"Of {sequences.num_items} items {values['cold_items']} are cold, met by nobody before the "
        f"cut; {values['cold_targets']} targets are such, and count"
    )
    for name in _KINDS:
        if f"{name}_mrr" in values:
            shown = [f"{m} {values[f'{name}_{m}']:.4f}" for m in ("hr@10", "ndcg@10")]
            yield f"On {name} targets alone, among all items: {', '.join(shown)}"
