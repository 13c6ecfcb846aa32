# SPDX-License-Identifier: Apache-2.0
"""Edges of bins that hold about equally many of a number's values."""

import numpy as np
import numpy.typing as npt

MOST_BINS = 255


def quantile_edges(
    values: npt.NDArray[np.float64], counts: npt.NDArray[np.int64], bins: int
) -> tuple[float, ...]:
    """Returns the edges of bins that hold about equally many rows.

    Up to `bins` distinct values get a bin each. With more, a value is heavy if it has at least an
    equal share of the rows and bins that heavier ones leave. Equal values cannot be divided, and
    quantiles would spend several edges on a heavy one. So a heavy value begins a bin and ends it.
    The other values fill bins in order. A bin ends once it has its share of the rows and bins that
    are left, or before a heavy value if it has half of that share. Values with less than half join
    the heavy value; if no bin is left for them, they join the bin before.

    Shares are compared as integers, so that no rounding decides. LightGBM's `GreedyFindBin` weighs
    values in the same way.

    Args:
        values: [n] distinct values, ascending.
        counts: [n] rows of each value, at least 1.
        bins: largest number of bins, at least 2.

    Returns:
        Some of `values`, ascending: the least value of each bin except the first.
    """
    if len(values) <= bins:
        return tuple(values[1:].tolist())
    is_light = np.ones(len(values), np.bool_)
    rows_left, bins_left = int(counts.sum()), bins
    while (heavier := is_light & (counts * bins_left >= rows_left)).any():
        is_light &= ~heavier
        rows_left -= int(counts[heavier].sum())
        bins_left -= int(np.count_nonzero(heavier))
    heavy = np.append(np.flatnonzero(~is_light), len(values))
    light_rows = np.concatenate([[0], np.cumsum(np.where(is_light, counts, 0))])  # before each
    edges: list[float] = []
    begin = 0
    while len(edges) < bins - 1:
        next_heavy = int(heavy[np.searchsorted(heavy, begin)])
        before, rows_left = int(light_rows[begin]), int(light_rows[-1] - light_rows[begin])
        end = next_heavy + 1  # the heavy value takes the light values before it
        if next_heavy > begin and bins_left:
            share = -(-rows_left // bins_left)
            full = int(np.searchsorted(light_rows, before + share))
            is_half_full = 2 * (int(light_rows[next_heavy]) - before) * bins_left >= rows_left
            if full <= next_heavy or is_half_full:
                end = min(full, next_heavy)
                bins_left -= 1
        if end >= len(values):
            break
        edges.append(float(values[end]))
        begin = end
    return tuple(edges)


def count_bins(
    values: npt.NDArray[np.float64], counts: npt.NDArray[np.int64], edges: tuple[float, ...]
) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint64]]:
    """Returns the bins that have rows, ascending, and their numbers of rows.

    Args:
        values: [n] distinct values, ascending.
        counts: [n] rows of each value, at least 1.
        edges: edges of the bins, ascending.
    """
    bins, first = np.unique(np.searchsorted(edges, values, side="right"), return_index=True)
    if not len(bins):
        return bins.astype(np.uint32), counts.astype(np.uint64)
    return bins.astype(np.uint32), np.add.reduceat(counts, first).astype(np.uint64)
