# SPDX-License-Identifier: Apache-2.0
"""Numbers that say how often ids and pairs of ids occur in training rows and are clicked."""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from dlrm.config.model import combinations_of

_FOLDS = 4
"""Parts of the training rows: a row's click rates come from the other parts."""
_SMOOTHING = 5.0
"""Number of rows with the average click rate to add to those of each id or pair."""
_LEAST_RATE = 1e-6
"""Least distance of the average click rate from 0 and 1, so that all odds are finite."""
_LEAST_STD = 0.1
"""Smallest deviation to divide by: that of counts that differ by about a tenth."""
_ROWS_AT_A_TIME = 1 << 14
"""Rows to look up together: with 26 features, their slots take 49 MB."""
_EMPTY = -1
_OF_REMAINDER, _OF_QUOTIENT = 40503, 60493
"""Odd factors below 2^16, so that no product overflows."""
_FOLD_MODULUS = (1 << 31) - 1
BYTES_OF_SLOT = 16
"""Bytes of a slot: key, rows and clicks."""
TRAINING_BYTES_OF_SLOT = _FOLDS * 8
"""Additional bytes of a slot in training: rows and clicks of each part."""


class IdStatistics(nn.Module):
    """Maps the ids of a sample to numbers about each id and each pair of ids.

    An id or pair that occurs in n training rows, c of them clicks, has two numbers: log(1 + n), and
    the log odds of its click rate, log((c + s p) / (n - c + s (1 - p))), with the click rate p of
    all rows and s = `_SMOOTHING`. Each number is standardised by its mean and standard deviation
    over the training rows. The deviation is at least `_LEAST_STD`; a number that never varies
    becomes 0.

    In training, n does not count the row itself, and the click rate comes from the other
    `_FOLDS` - 1 parts of the training rows. Rows with the same ids are in the same part, so that no
    number reveals a row's own label. CatBoost calls such numbers counters and target statistics
    (Prokhorenkova et al. 2018, arXiv:1706.09516). They give a network what it cannot learn from
    vectors: whether two rare ids occurred together, and how often that was a click.

    A hash table stores the numbers. Each id or pair may take one of two slots; if both are taken by
    more frequent ones, it is left out, as if it never occurred.

    Args:
        table_sizes: categories of each feature.
        slots: S, slots of the table.

    Attributes:
        keys: [S] int64, the id or pair in each slot, or `_EMPTY`.
        rows: [S] float32, n.
        clicks: [S] float32, c.
        rate: [] float32, p.
        mean: [2 C] float32, means of the C counts and of the C log odds: features 0, 1, ..., then
            pairs (0, 1), (0, 2), ..., (1, 2), ...
        scale: [2 C] float32, reciprocal deviations; 0 for a number that never varies.
        of_others: [S `_FOLDS`, 2] float32, n and c without the rows of each part; None outside
            training.
    """

    keys: Tensor
    rows: Tensor
    clicks: Tensor
    rate: Tensor
    mean: Tensor
    scale: Tensor
    _first: Tensor
    _second: Tensor
    _stride: Tensor
    _start: Tensor
    _sizes: Tensor

    def __init__(self, table_sizes: Sequence[int], slots: int) -> None:
        super().__init__()
        self.slots = slots
        features = range(len(table_sizes))
        pairs = list(itertools.combinations(features, 2))
        combinations = combinations_of(table_sizes)
        self.register_buffer("keys", torch.full((slots,), _EMPTY, dtype=torch.int64))
        self.register_buffer("rows", torch.zeros(slots))
        self.register_buffer("clicks", torch.zeros(slots))
        self.register_buffer("rate", torch.tensor(0.5))
        self.register_buffer("mean", torch.zeros(2 * len(combinations)))
        self.register_buffer("scale", torch.ones(2 * len(combinations)))
        zeros = len(table_sizes)  # index of a column of zeros, the partner of a single feature
        for name, values in (
            ("_first", [*features, *(a for a, _ in pairs)]),
            ("_second", [*(zeros for _ in features), *(b for _, b in pairs)]),
            ("_stride", [*(1 for _ in features), *(table_sizes[b] for _, b in pairs)]),
            ("_start", list(itertools.accumulate(combinations, initial=0))[:-1]),
            ("_sizes", list(table_sizes)),
        ):
            self.register_buffer(name, torch.tensor(values, dtype=torch.int64), persistent=False)
        self.of_others: Tensor | None = None

    @property
    def num_numbers(self) -> int:
        """2 C, how many numbers a sample has."""
        return len(self.mean)

    def forward(self, ids: Tensor) -> Tensor:
        """Maps [B, F] ids to [B, 2 C] float32; ids outside the tables are hashed."""
        return (self._numbers(ids, in_training=self.training) - self.mean) * self.scale

    @torch.no_grad()
    def fit(self, ids: Tensor, label: Tensor) -> None:
        """Computes the statistics of training rows; replaces earlier statistics.

        Args:
            ids: [N, F] integers.
            label: [N], 0 or 1.
        """
        clicks, parts = label.to(torch.float32), torch.split(ids, _ROWS_AT_A_TIME)
        within = torch.cat([self._within(part).to(ids.dtype) for part in parts])
        folds = torch.cat([self._folds(part) for part in torch.split(within, _ROWS_AT_A_TIME)])
        numbers = range(len(self._first))
        found = [_count(self._keys_of(within, number), folds, clicks) for number in numbers]
        keys = torch.cat([each.keys for each in found])
        counts = torch.cat([each.counts for each in found])
        self._place(keys, counts)
        self.rate.copy_(clicks.mean().clamp(_LEAST_RATE, 1 - _LEAST_RATE))
        self._standardise(ids)

    def _within(self, ids: Tensor) -> Tensor:
        """Returns [B, F + 1] int64: ids modulo the sizes of the tables, and a column of zeros."""
        ids = ids.to(torch.int64).remainder(self._sizes)
        return torch.cat([ids, torch.zeros_like(ids[:, :1])], 1)

    def _keys_of(self, within: Tensor, numbers: int | slice = slice(None)) -> Tensor:
        """Returns [B, C] keys for the result of `_within`, or [B] of one feature or pair."""
        first = within[:, self._first[numbers]].to(torch.int64) * self._stride[numbers]
        return first + within[:, self._second[numbers]] + self._start[numbers]

    def _place(self, keys: Tensor, counts: Tensor) -> None:
        """Places keys with [K, folds, 2] counts in the table, the most frequent first."""
        rows, clicks = counts.sum(1).unbind(1)
        self.keys.fill_(_EMPTY)
        left = torch.argsort(rows, descending=True, stable=True)
        for slots in self._two_slots(keys):
            is_free = self.keys[slots[left]] == _EMPTY
            first = is_free & _is_first(slots[left])
            self.keys[slots[left[first]]] = keys[left[first]]
            left = left[~first]
        slot, is_kept = self._find(keys)
        slot, kept = slot[is_kept], is_kept.nonzero().squeeze(1)
        self.rows.zero_()[slot] = rows[kept]
        self.clicks.zero_()[slot] = clicks[kept]
        self.of_others = self.rows.new_zeros(self.slots, _FOLDS, 2)
        self.of_others[slot] = counts[kept].sum(1, keepdim=True) - counts[kept]
        self.of_others = self.of_others.flatten(0, 1)

    def _standardise(self, ids: Tensor) -> None:
        """Computes mean and deviation of the numbers of rows in training."""
        total = torch.zeros(2, self.num_numbers, dtype=torch.float64, device=self.mean.device)
        parts = torch.split(ids, _ROWS_AT_A_TIME)
        least, most = (torch.full_like(self.mean, end) for end in (torch.inf, -torch.inf))
        for part in parts:
            numbers = self._numbers(part, in_training=True)
            total += torch.stack([numbers.double().sum(0), numbers.double().square().sum(0)])
            least, most = least.minimum(numbers.amin(0)), most.maximum(numbers.amax(0))
        mean, square = total / max(len(ids), 1)
        self.mean.copy_(mean)
        std = (square - mean.square()).clamp(min=0).sqrt().to(torch.float32).clamp(min=_LEAST_STD)
        self.scale.copy_(torch.where(least < most, 1 / std, 0))

    def _numbers(self, ids: Tensor, *, in_training: bool) -> Tensor:
        """Returns the [B, 2 C] numbers before they are standardised."""
        within = self._within(ids)
        slot, is_kept = self._find(self._keys_of(within))
        if in_training and self.of_others is not None:
            row = slot * _FOLDS + self._folds(within)[:, None]
            others, clicks = (_take(self.of_others, row) * is_kept[..., None]).unbind(2)
            rows = (_take(self.rows, slot) * is_kept - 1).clamp(min=0)
        else:
            rows, clicks = _take(self.rows, slot) * is_kept, _take(self.clicks, slot) * is_kept
            others = rows
        clicked = clicks + _SMOOTHING * self.rate
        missed = others - clicks + _SMOOTHING * (1 - self.rate)
        return torch.cat([rows.log1p(), (clicked / missed).log()], 1)

    def _find(self, keys: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the slot of each key, and whether the slot contains this key."""
        first, second = self._two_slots(keys)
        in_first = _take(self.keys, first) == keys
        is_kept = in_first | (_take(self.keys, second) == keys)
        return torch.where(in_first, first, second), is_kept

    def _two_slots(self, keys: Tensor) -> tuple[Tensor, Tensor]:
        first = keys.remainder(self.slots)
        quotient = keys.div(self.slots, rounding_mode="floor").remainder(self.slots)
        return first, (first * _OF_REMAINDER + quotient * _OF_QUOTIENT).remainder(self.slots - 1)

    def _folds(self, within: Tensor) -> Tensor:
        """Returns the part of the training rows to which each row belongs, given all its ids."""
        mixed = torch.zeros_like(within[:, 0], dtype=torch.int64)
        for column in within.unbind(1)[:-1]:
            mixed = (mixed * _OF_REMAINDER + column + 1).remainder(_FOLD_MODULUS)
        return mixed.remainder(_FOLDS)


def _take(table: Tensor, index: Tensor) -> Tensor:
    """Returns `table[index]`; twice as fast as an index of several dimensions."""
    return table.index_select(0, index.flatten()).view(*index.shape, *table.shape[1:])


def _is_first(values: Tensor) -> Tensor:
    """Returns [K] bool, True for each value that differs from all earlier ones."""
    ascending, order = torch.sort(values, stable=True)
    is_first = torch.ones_like(ascending, dtype=torch.bool)
    is_first[1:] = ascending[1:] != ascending[:-1]
    return torch.zeros_like(is_first).scatter_(0, order, is_first)


class _Counted(NamedTuple):
    """Distinct keys and their counts.

    Attributes:
        keys: [K] int64.
        counts: [K, folds, 2] float32, rows and clicks of each part.
    """

    keys: Tensor
    counts: Tensor


def _count(keys: Tensor, folds: Tensor, clicks: Tensor) -> _Counted:
    distinct, inverse = torch.unique(keys, return_inverse=True)
    cells = inverse * _FOLDS + folds
    size = len(distinct) * _FOLDS
    rows = torch.bincount(cells, minlength=size)
    clicked = torch.bincount(cells, clicks, size)
    counts = torch.stack([rows.to(torch.float32), clicked.to(torch.float32)], 1)
    return _Counted(distinct, counts.view(len(distinct), _FOLDS, 2))
