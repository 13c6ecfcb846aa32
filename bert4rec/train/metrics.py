# SPDX-License-Identifier: Apache-2.0
"""Figures of rankings. Letters: U users, K length of a list."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt


def ranking_metrics(ranks: npt.NDArray[np.int64], ks: Sequence[int]) -> dict[str, float]:
    """Computes hit rate, NDCG and mean reciprocal rank with one true item per user.

    Args:
        ranks: [U], place of the true item in the user's list, from 0.
        ks: lengths K.

    Returns:
        `hr@K` (share of users whose item is among the first K; recall@K, with one true item),
        `ndcg@K` (1 / log2(rank + 2) for those, 0 for the others) and `mrr`, means over users.
    """
    gain = 1 / np.log2(ranks + 2.0)
    found = {"mrr": float(np.mean(1 / (ranks + 1.0)))}
    for k in ks:
        hit = ranks < k
        found[f"hr@{k}"] = float(hit.mean())
        found[f"ndcg@{k}"] = float(np.where(hit, gain, 0.0).mean())
    return found


def bootstrap_intervals(
    ranks: npt.NDArray[np.int64], ks: Sequence[int], samples: int, seed: int, level: float = 0.95
) -> dict[str, tuple[float, float]]:
    """Computes percentile intervals of `ranking_metrics` by drawing users anew.

    Args:
        ranks: [U].
        ks: lengths K.
        samples: resamplings; 0 gives no interval.
        seed: of the draws.
        level: share of the resampled figures inside.

    Returns:
        (low, high) under the names of the metrics. Source: Efron 1979.
    """
    if not samples:
        return {}
    generator = np.random.default_rng(seed)
    gain = 1 / np.log2(ranks + 2.0)
    columns = {"mrr": 1 / (ranks + 1.0)}
    for k in ks:
        hit = ranks < k
        columns[f"hr@{k}"] = hit.astype(np.float64)
        columns[f"ndcg@{k}"] = np.where(hit, gain, 0.0)
    table = np.stack(list(columns.values()), 1)
    # How often each user is drawn, in place of the draws: one product gives every mean.
    means = np.empty((samples, table.shape[1]))
    for i in range(samples):
        drawn = generator.integers(0, len(ranks), len(ranks))
        means[i] = np.bincount(drawn, minlength=len(ranks)) @ table / len(ranks)
    edges = np.quantile(means, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return {name: (float(edges[0, i]), float(edges[1, i])) for i, name in enumerate(columns)}
