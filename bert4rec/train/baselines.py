# SPDX-License-Identifier: Apache-2.0
"""Recommendations, and vectors of items, from counts alone.

Popularity is the same for all users. Each other baseline is a matrix from item to item, and the
score of an item is the sum of its entries over a history: over its last items, where an item counts
`_DECAY` times as much as the one after it, or for EASE, as published, over all its items alike.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy import sparse

from recsys.data.sequences.histories import Sequences, numbered
from recsys.errors import UserError
from recsys.ratings.data.interactions import Matrix, met_items
from recsys.ratings.data.negatives import training_counts
from recsys.ratings.data.split import Split, is_trained_on, positions_of, targets_of, true_items
from recsys.ratings.ranking.evaluate import LEFT_OUT, Ranks, seen_pairs
from recsys.ratings.ranking.metrics import ranking_metrics
from recsys.resources import memory_limits
from recsys.sizes import format_bytes

# Chosen by the validation targets of MovieLens-1M, Amazon Beauty and the Electronics sample; of
# `_RIDGES` each dataset's own targets choose one.
_DECAY = 0.7
_LAST_ITEMS = 20
_WINDOW = 10
_FIRST_POWER, _NEXT_POWER = 0.25, 0.1
_NEIGHBOURS = 100
_SHRINKAGE = 10
_RIDGE = 500
_RIDGES = (50, 250, 1000)
_SMOOTHING, _OVERSAMPLING = 0.75, 16

_BATCH_SIZE = 256
_BLOCK = 1 << 22
"""Entries of a matrix from item to item that are computed at once."""

Negatives = Mapping[str, npt.NDArray[np.int32]]
"""Name of a ranking -> [U, S] items."""


def fit_markov(sequences: Sequences) -> Matrix:
    """Weighs the items that follow each item.

    The weight is the square root of their count over powers of the totals of both items. Divided
    by the whole total of the first, without the root, it would be a transition probability: a sum
    of those over a history follows its most certain item, one of roots what many items agree on.
    On MovieLens-1M its NDCG@10 is .02 higher.
    """
    counts = _followers(sequences)
    first, following = (np.maximum(counts.sum(axis), 1e-12) for axis in (1, 0))
    scaled = sparse.diags_array(first**-_FIRST_POWER) @ counts.sqrt()
    return (scaled @ sparse.diags_array(following**-_NEXT_POWER)).tocsr()


def _followers(sequences: Sequences) -> Matrix:
    """Counts which items follow each item, near ones more."""
    positions, is_trained = positions_of(sequences), is_trained_on(sequences)
    items, size = sequences.items - 1, sequences.num_items
    counts = sparse.csr_array((size, size))
    for distance in range(1, _WINDOW + 1):
        later = np.flatnonzero((positions >= distance) & is_trained)
        pairs = items[later - distance], items[later]
        values = np.full(len(later), 1 / distance)
        counts += sparse.csr_array((values, pairs), shape=(size, size))
    return counts


def neighbour_vectors(sequences: Sequences, dim: int) -> torch.Tensor:
    """Finds vectors whose products tell which items stand near each other.

    They are a truncated SVD of the positive pointwise mutual information of items in a window.
    Sources: Levy and Goldberg, "Neural word embedding as implicit matrix factorization", 2014; the
    exponents are those of Levy et al. 2015.

    Args:
        sequences: histories of all users.
        dim: D.

    Returns:
        [I, D] float32, of length 1; of length 0 for an item that stands near no other one.
    """
    counts = _followers(sequences)
    pairs = (counts + counts.T).tocoo()
    size, off_diagonal = sequences.num_items, pairs.row != pairs.col
    row, column, times = (values[off_diagonal] for values in (pairs.row, pairs.col, pairs.data))
    of_row = np.bincount(row, times, size)
    of_column = np.maximum(of_row, 1e-12) ** _SMOOTHING
    information = np.log(times * of_column.sum() / (of_row[row] * of_column[column]))
    positive = sparse.coo_array((information.clip(0), (row, column)), shape=(size, size))
    matrix = ((positive + positive.T) / 2).tocoo()
    index = torch.from_numpy(np.stack([matrix.row, matrix.col]).astype(np.int64))
    values = torch.from_numpy(matrix.data.astype(np.float32))
    columns = min(dim + _OVERSAMPLING, size)
    sparse_matrix = torch.sparse_coo_tensor(index, values, (size, size), check_invariants=False)
    left, strength, _ = torch.svd_lowrank(sparse_matrix.coalesce(), columns, niter=4)
    vectors = torch.zeros(size, dim)
    vectors[:, : min(columns, dim)] = (left * strength.sqrt())[:, :dim]
    near_any = torch.from_numpy(np.bincount(matrix.row, matrix.data, size) > 0)
    return torch.nn.functional.normalize(vectors) * near_any[:, None]


def fit_item_knn(sequences: Sequences) -> Matrix:
    """Computes shrunk cosines of each item's nearest neighbours, by their users.

    Source: Sarwar et al., "Item-based collaborative filtering", 2001; the shrinkage is Bell and
    Koren's, 2007.
    """
    met, blocks = met_items(sequences), []
    by_item, users = met.T.tocsr(), met.sum(0)
    size = max(_BLOCK // sequences.num_items, 1)
    for begin in range(0, sequences.num_items, size):
        cosines = by_item[begin : begin + size] @ met  # users who met both, yet
        cosines.sort_indices()  # of equals at the end of the neighbours the first stay
        row, column = _rows(cosines) + begin, cosines.indices
        cosines.data /= np.sqrt(users[row] * users[column]) + _SHRINKAGE
        cosines.data[row == column] = 0
        for start, end in itertools.pairwise(cosines.indptr):
            if end - start > _NEIGHBOURS:
                of_item = cosines.data[start:end]
                of_item[np.argpartition(of_item, -_NEIGHBOURS)[:-_NEIGHBOURS]] = 0
        cosines.eliminate_zeros()
        blocks.append(cosines)
    return sparse.vstack(blocks).T.tocsr()


def fit_ease(sequences: Sequences, ridges: tuple[int, ...]) -> tuple[Matrix, int]:
    """Solves for the linear autoencoder without a diagonal, in float64.

    Source: Steck, "Embarrassingly shallow autoencoders for sparse data", 2019.

    Args:
        sequences: histories of all users.
        ridges: values of lambda; the one with the best NDCG@10 of the validation targets is taken.

    Returns:
        (the matrix, its lambda).

    Raises:
        UserError: its dense matrices do not fit the free memory.
    """
    needed = 4 * 8 * sequences.num_items**2
    limit = memory_limits()[0]
    if needed > limit.available:
        raise UserError(
            f"its matrices of {sequences.num_items} items need {format_bytes(needed)} of memory; "
            f"{format_bytes(max(limit.available, 0))} are {limit.name}"
        )
    met = met_items(sequences)
    gram = torch.from_numpy((met.T @ met).toarray())
    best = ridges[0]
    if len(ridges) > 1:
        best = max(ridges, key=lambda ridge: _validated(_ease_weights(gram, ridge), sequences))
    return _ease_weights(gram, best), best


def _ease_weights(gram: torch.Tensor, ridge: int) -> Matrix:
    diagonal = torch.arange(len(gram))
    regularised = gram.clone()
    regularised[diagonal, diagonal] += ridge
    # Positive definite; half the time of a general inverse.
    weights = torch.cholesky_inverse(torch.linalg.cholesky(regularised))
    weights /= -weights.diagonal().clone()
    weights[diagonal, diagonal] = 0
    found: Matrix = weights.numpy()
    return found


def _validated(weights: Matrix, sequences: Sequences) -> float:
    ranks = item_to_item_ranks(
        *(weights, _all_items(sequences, "validation"), sequences, "validation", {})
    )
    return ranking_metrics(ranks["full"], (10,))["ndcg@10"]


@dataclasses.dataclass(frozen=True, slots=True)
class Baseline:
    """A baseline from item to item.

    Attributes:
        fit: computes the [I, I] matrix from the items to train on, and tells its settings.
        histories: returns the [T, I] weights of the items before each target.
        reads: the items that have weights, in words.
    """

    fit: Callable[[Sequences], tuple[Matrix, str]]
    histories: Callable[[Sequences, Split], Matrix]
    reads: str


def item_to_item_ranks(
    matrix: Matrix, histories: Matrix, sequences: Sequences, split: Split, negatives: Negatives
) -> dict[str, Ranks]:
    """Ranks each target by an [I, I] matrix and the [T, I] weights of histories.

    Entries of a sparse one are at least 0.

    The other arguments and the result are those of `popularity_ranks`.
    """
    truth, blocks = true_items(sequences, split), []
    for begin in range(0, len(truth), _BATCH_SIZE):
        rows = np.arange(begin, min(begin + _BATCH_SIZE, len(truth)))
        scores = histories[rows] @ matrix
        of_truth = scores[np.arange(len(rows)), truth[rows] - 1]
        with_seen = _count_at_least(scores, of_truth) - 1
        score = functools.partial(_entries, scores)
        blocks.append(_ranks(sequences, split, negatives, rows, score, of_truth, with_seen))
    return {name: np.concatenate([block[name] for block in blocks]) for name in blocks[0]}


def popularity_ranks(
    sequences: Sequences,
    split: Split,
    negatives: Negatives,
    counts: npt.NDArray[np.int64] | None = None,
) -> dict[str, Ranks]:
    """Ranks each target by popularity, the same for every user.

    Args:
        sequences: histories of all users.
        split: `validation` or `test`.
        negatives: name of a ranking -> [U, S] items.
        counts: [I] popularity of each item; by default its occurrences in the training split.

    Returns:
        The ranks that `rank_split` returns for a model: [T] int64 from 0 by kind of ranking; ties
        count against the true item.
    """
    popularity = training_counts(sequences) if counts is None else counts
    of_truth = popularity[true_items(sequences, split) - 1]
    with_seen = sequences.num_items - np.searchsorted(np.sort(popularity), of_truth) - 1
    rows = np.arange(len(of_truth))
    score = lambda _, item: popularity[item - 1]  # noqa: E731
    return _ranks(sequences, split, negatives, rows, score, of_truth, with_seen)


def _ranks(
    sequences: Sequences,
    split: Split,
    negatives: Negatives,
    rows: npt.NDArray[np.int64],
    score: Callable[[Any, Any], Any],
    of_truth: npt.NDArray[Any],
    with_seen: Ranks,
) -> dict[str, Ranks]:
    """Ranks some targets.

    Args:
        sequences: histories of all users.
        split: `validation` or `test`.
        negatives: name of a ranking -> [U, S] items.
        rows: [B] numbers of the targets.
        score: maps P indices into `rows` and P items to [P] scores.
        of_truth: [B] scores of the true items.
        with_seen: [B] ranks among all items.
    """
    row, seen = (index.numpy().copy() for index in seen_pairs(sequences, split, rows, _CPU))
    seen_ahead = row[score(row, seen) >= of_truth[row]]
    ranks = {
        "full": with_seen - np.bincount(seen_ahead, minlength=len(rows)),
        "full_with_seen": with_seen,
    }
    users = targets_of(sequences, split).users[rows]
    for name, items in negatives.items():
        drawn = items[users]
        row = np.repeat(np.arange(len(rows)), drawn.shape[1])
        among = score(row, drawn.ravel().clip(1)).reshape(drawn.shape)
        ahead = (among >= of_truth[:, None]).sum(1)
        ranks[name] = np.where(drawn[:, 0] > 0, ahead, LEFT_OUT)
    return ranks


def _entries(scores: Matrix, row: npt.NDArray[np.int64], item: npt.NDArray[np.int64]) -> Any:
    return scores[row, item - 1]


_CPU = torch.device("cpu")


def _count_at_least(scores: Matrix, least: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """Counts the scores of each row that are not below a value."""
    counts: npt.NDArray[np.int64]
    if isinstance(scores, np.ndarray):
        counts = (scores >= least[:, None]).sum(1)
        return counts
    row = _rows(scores)
    counts = np.bincount(row[scores.data >= least[row]], minlength=len(least))
    return np.where(least > 0, counts, scores.shape[1])


def _rows(matrix: Matrix) -> npt.NDArray[np.int64]:
    """Returns the row of each entry of a sparse matrix."""
    return np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))


def _last_items(sequences: Sequences, split: Split) -> Matrix:
    """Returns [T, I] weights of the last items before each target."""
    targets = targets_of(sequences, split)
    rows, items, weights = [], [], []
    for age in range(_LAST_ITEMS):
        row = np.flatnonzero(targets.known > age)
        rows.append(row)
        last = sequences.offsets[targets.users[row]] + targets.known[row] - 1
        items.append(sequences.items[last - age])
        weights.append(np.full(len(row), _DECAY**age))
    row, item = np.concatenate(rows), np.concatenate(items) - 1
    shape = (len(targets), sequences.num_items)
    return sparse.csr_array((np.concatenate(weights), (row, item)), shape=shape)


def _all_items(sequences: Sequences, split: Split) -> Matrix:
    """Returns [T, I], 1 for each item before a target."""
    targets = targets_of(sequences, split)
    row = np.repeat(np.arange(len(targets)), targets.known)
    index = np.repeat(sequences.offsets[targets.users], targets.known) + numbered(targets.known)
    shape = (len(targets), sequences.num_items)
    ones = np.ones(len(row))
    histories = sparse.csr_array((ones, (row, sequences.items[index] - 1)), shape=shape)
    histories.data[:] = 1
    return histories


def _markov(sequences: Sequences) -> tuple[Matrix, str]:
    settings = f"window {_WINDOW}, root of counts, powers {_FIRST_POWER} and {_NEXT_POWER}"
    return fit_markov(sequences), settings


def _item_knn(sequences: Sequences) -> tuple[Matrix, str]:
    return fit_item_knn(sequences), f"k {_NEIGHBOURS}, shrinkage {_SHRINKAGE}"


def _ease(ridges: tuple[int, ...], sequences: Sequences) -> tuple[Matrix, str]:
    matrix, ridge = fit_ease(sequences, ridges)
    return matrix, f"lambda {ridge}"


_RECENT = f"last {_LAST_ITEMS} items, decay {_DECAY}"
BASELINES: Mapping[str, Baseline] = {
    "markov": Baseline(_markov, _last_items, _RECENT),
    "item_knn": Baseline(_item_knn, _last_items, _RECENT),
    "ease": Baseline(functools.partial(_ease, _RIDGES), _all_items, "all items alike"),
    "ease_recent": Baseline(functools.partial(_ease, (_RIDGE,)), _last_items, _RECENT),
}
"""Baselines by name. `ease` is as published, with all items of a history alike."""
