# SPDX-License-Identifier: Apache-2.0
"""Ranking metrics and their confidence intervals."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt
from scipy import sparse

from recsys.data.sequences.histories import Sequences as Histories
from recsys.ratings.data.interactions import Matrix, met_items
from recsys.ratings.ranking.evaluate import Lists

KS = (1, 5, 10, 20, 50, 100)
"""Lengths K of the lists that are evaluated."""
GAINS: Mapping[str, Callable[[npt.NDArray[np.int64]], npt.NDArray[np.float64]]] = {
    "hr": lambda ranks: np.ones(ranks.shape),
    "ndcg": lambda ranks: 1 / np.log2(ranks + 2.0),
}
"""Metric of a list -> gains by rank (from 0) of a true item among the first K."""
SEED = 12345
"""Seeds sampled items and intervals, so that trainings with different seeds compare."""
_RESAMPLINGS = 1000
_BLOCK = 1 << 22
"""Upper bound on the entries that the work on lists holds at once."""


def ranking_metrics(ranks: npt.NDArray[np.int64], ks: Sequence[int]) -> dict[str, float]:
    """Computes hit rate, NDCG and mean reciprocal rank.

    Args:
        ranks: [U] int64 rank of each user's true item, from 0; negative ranks are left out.
        ks: lengths K of the lists.

    Returns:
        `hr@K` (fraction of users whose item is among the first K; recall@K with one true item),
        `ndcg@K` (1 / log2(rank + 2) for those users, 0 for the others) and `mrr`, means over users.
    """
    return {name: float(np.mean(gain)) for name, gain in _gains(ranks[ranks >= 0], ks).items()}


def metrics_of(ranks: Mapping[str, npt.NDArray[np.int64]]) -> dict[str, dict[str, float]]:
    """Computes the `ranking_metrics` of every ranking at `KS`."""
    return {name: ranking_metrics(of_ranking, KS) for name, of_ranking in ranks.items()}


def flat_metrics(metrics: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Returns the metrics of every ranking as `{ranking}_{metric}`."""
    return {
        f"{name}_{metric}": value
        for name, of_ranking in metrics.items()
        for metric, value in of_ranking.items()
    }


def bootstrap_intervals(
    ranks: npt.NDArray[np.int64],
    ks: Sequence[int] = KS,
    samples: int = _RESAMPLINGS,
    seed: int = SEED,
    users: npt.NDArray[np.int64] | None = None,
) -> dict[str, tuple[float, float]]:
    """Computes 95% bootstrap confidence intervals of `ranking_metrics`.

    Args:
        ranks: [T] int64 rank of each target, from 0; negative ranks are left out.
        ks: lengths K of the lists.
        samples: number of resamplings of the users.
        seed: seeds the resampling.
        users: [T] user of each target, ascending; None if each user has one target.

    Returns:
        (low, high), each by name of metric. Source: Efron 1979.
    """
    users = np.arange(len(ranks)) if users is None else users
    ranks, users = ranks[ranks >= 0], users[ranks >= 0]
    columns = _gains(ranks, ks)
    edges = _bootstrap(np.stack(list(columns.values()), 1), users, samples, seed)
    return {name: (float(edges[0, i]), float(edges[1, i])) for i, name in enumerate(columns)}


@dataclasses.dataclass(frozen=True, slots=True)
class PairedDifference:
    """Difference in a metric between two rankings of the same targets.

    Attributes:
        first: the metric of the first ranking.
        second: the metric of the second ranking.
        low: lower end of the 95% interval of first minus second.
        high: upper end of that interval.
        of_users: [U] difference of each user, summed over the user's targets.
    """

    first: float
    second: float
    low: float
    high: float
    of_users: npt.NDArray[np.float64]

    @property
    def value(self) -> float:
        """First minus second."""
        return self.first - self.second


def paired_difference(
    ranks: npt.NDArray[np.int64],
    others: npt.NDArray[np.int64],
    metric: str,
    users: npt.NDArray[np.int64],
) -> PairedDifference:
    """Computes the difference in a metric between two rankings, and its interval.

    Args:
        ranks: [T] or [runs, T] int64 rank of each target in the first ranking, from 0; the metric
            of several runs is the mean over runs.
        others: ranks of the same targets in the second ranking.
        metric: a name of `ranking_metrics`, such as ndcg@10.
        users: [T] user of each target, ascending; resampled as in `bootstrap_intervals`.
    """
    ks = [int(metric.partition("@")[2] or 1)]
    first, second = (np.atleast_2d(_gains(each, ks)[metric]).mean(0) for each in (ranks, others))
    difference = first - second
    low, high = _bootstrap(difference[:, None], users, _RESAMPLINGS, SEED)[:, 0]
    of_users = np.add.reduceat(difference, np.flatnonzero(np.diff(users, prepend=-1)))
    means = float(first.mean()), float(second.mean())
    return PairedDifference(*means, float(low), float(high), of_users)


def list_metrics(lists: Lists, sequences: Histories) -> dict[str, float]:
    """Computes coverage, novelty and diversity of lists in bounded additional memory.

    Args:
        lists: lists for the targets of a split.

    Returns:
        `coverage@K`, the fraction of the items that occur in a list; `novelty@K`, the mean of
        -log2(fraction of the users who met the item in training), where an item that nobody met
        counts as met by one user (Zhou et al. 2010; RecTools' MeanInvUserFreq); `diversity@K`,
        1 minus the mean cosine of two items of a list by the users who met them (Ziegler et al.
        2005).
    """
    met = met_items(sequences)
    users = np.maximum(met.sum(0), 1)
    times = np.zeros(sequences.num_items + 1, np.int64)
    for rows in _blocks(lists, lists.shape[1]):
        times += np.bincount(rows.ravel(), minlength=len(times))
    times = times[1:]
    rarity = -np.log2(users / sequences.num_users)
    values = {
        "coverage": np.count_nonzero(times) / sequences.num_items,
        "novelty": times @ rarity / max(times.sum(), 1),
    }
    pairs, cosines = _cosines_in_lists(lists, met, users)
    if pairs:
        values["diversity"] = 1 - cosines / pairs
    return {f"{name}@{lists.shape[1]}": float(value) for name, value in values.items()}


def _cosines_in_lists(
    lists: Lists, met: Matrix, users: npt.NDArray[np.float64]
) -> tuple[int, float]:
    """Sums the cosines of all pairs of items of a list, over all lists.

    The square of the sum of a list's vectors contains each pair's product twice, and each vector's
    product with itself. So no pair has to be computed separately.

    Args:
        lists: [T, K] items, 0 where a list ends.
        met: [U, I] 1 where a user met an item.
        users: [I] users who met each item, at least 1.

    Returns:
        (number of pairs, sum of their cosines).
    """
    vectors = (met @ sparse.diags_array(users**-0.5)).T.tocsr()  # [I, U], of length 1
    is_met = np.diff(vectors.indptr) > 0
    pairs, cosines = 0, 0.0
    most = min(met.shape[0], lists.shape[1] * int(users.max()))  # entries of the sum of a list
    for rows in _blocks(lists, most):
        is_listed, counts = rows > 0, np.count_nonzero(rows, axis=1)
        items, starts = rows[is_listed] - 1, np.append(0, counts.cumsum())
        listed = sparse.csr_array((np.ones(len(items)), items, starts), (len(rows), met.shape[1]))
        sums = (listed @ vectors).data
        cosines += (sums @ sums - np.count_nonzero(is_met[items])) / 2
        pairs += int((counts * (counts - 1) // 2).sum())
    return pairs, cosines


def _blocks(lists: Lists, entries: int) -> Iterator[Lists]:
    """Yields blocks of lists whose entries stay within a bound.

    Args:
        lists: [T, K] items.
        entries: numbers that the work on one list holds at once.
    """
    size = max(_BLOCK // max(entries, 1), 1)
    for begin in range(0, len(lists), size):
        yield lists[begin : begin + size]


def _gains(ranks: npt.NDArray[np.int64], ks: Sequence[int]) -> dict[str, npt.NDArray[np.float64]]:
    """Returns the value of every metric for each target; their mean is the metric."""
    gains = {name: gain(ranks) for name, gain in GAINS.items()}
    columns = {"mrr": 1 / (ranks + 1.0)}
    for k in ks:
        columns |= {f"{name}@{k}": np.where(ranks < k, gain, 0.0) for name, gain in gains.items()}
    return columns


def _bootstrap(
    table: npt.NDArray[np.float64],
    users: npt.NDArray[np.int64],
    samples: int,
    seed: int,
) -> npt.NDArray[np.float64]:
    """Returns [2, M] ends of the 95% intervals of the means of [T, M] values."""
    generator = np.random.default_rng(seed)
    starts = np.flatnonzero(np.diff(users, prepend=-1))
    table = np.add.reduceat(table, starts)  # the targets of a user are drawn together
    counts = np.diff(np.append(starts, len(users)))
    # A product with the number of times that each user is drawn gives all means at once.
    means = np.empty((samples, table.shape[1]))
    for i in range(samples):
        drawn = generator.integers(0, len(counts), len(counts))
        times = np.bincount(drawn, minlength=len(counts))
        means[i] = times @ table / (times @ counts)
    return np.quantile(means, [0.025, 0.975], axis=0)
