# SPDX-License-Identifier: Apache-2.0
"""How often the ids of two features occur together, as numbers."""

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from dlrm.config.model import pair_cells

_LEAST_STD = 0.1
"""Smallest deviation to divide by: that of counts which differ by about a tenth."""
_ROWS_AT_A_TIME = 1 << 14
"""Rows that are counted together: with 26 features their cell indices take 43 MB."""


class PairCounts(nn.Module):
    """Maps the ids of a sample to how often each pair of them occurs among the training rows.

    Each number is log(1 + count), standardised by its mean and deviation over the training rows (a
    deviation of at least `_LEAST_STD`). A row in training does not count itself, so that its
    numbers are as those of a row that the model has not seen. CatBoost calls such numbers counters
    (Prokhorenkova et al. 2018, arXiv:1706.09516). They tell a network what it cannot learn from
    vectors: whether two rare ids were ever seen together.

    Args:
        table_sizes: categories of each feature.

    Attributes:
        cells: counters of each pair of features.
        counts: [cells] float32, of all pairs of features one after the other; zero until `count`.
        mean: [P] float32, P pairs of features: (0, 1), (0, 2), ..., (1, 2), ...
        std: [P] float32.
    """

    counts: Tensor
    mean: Tensor
    std: Tensor
    _first: Tensor
    _second: Tensor
    _stride: Tensor
    _cells: Tensor
    _start: Tensor
    _sizes: Tensor

    def __init__(self, table_sizes: Sequence[int]) -> None:
        super().__init__()
        pairs = list(itertools.combinations(range(len(table_sizes)), 2))
        self.cells = pair_cells(table_sizes)
        self.register_buffer("counts", torch.zeros(sum(self.cells)))
        self.register_buffer("mean", torch.zeros(len(pairs)))
        self.register_buffer("std", torch.ones(len(pairs)))
        for name, values in (
            ("_first", [a for a, _ in pairs]),
            ("_second", [b for _, b in pairs]),
            ("_stride", [table_sizes[b] for _, b in pairs]),
            ("_cells", self.cells),
            ("_start", list(itertools.accumulate(self.cells, initial=0))[:-1]),
            ("_sizes", list(table_sizes)),
        ):
            self.register_buffer(name, torch.tensor(values, dtype=torch.int64), persistent=False)

    def forward(self, ids: Tensor) -> Tensor:
        """Maps [B, F] int64 ids, hashed if they lie outside the tables, to [B, P] float32."""
        counts = self.counts[self._find(ids)]
        if self.training:
            counts = (counts - 1).clamp(min=0)
        return (counts.log1p() - self.mean) / self.std

    @torch.no_grad()
    def reset(self) -> None:
        """Forgets all rows."""
        self.counts.zero_()

    @torch.no_grad()
    def count(self, ids: Tensor) -> None:
        """Counts the pairs of [B, F] ids of training rows; `finish` follows the last ones."""
        for rows in torch.split(ids, _ROWS_AT_A_TIME):
            cells = self._find(rows).flatten()
            self.counts.scatter_add_(0, cells, self.counts.new_ones(len(cells)))

    @torch.no_grad()
    def finish(self) -> None:
        """Finds mean and standard deviation over the rows that were counted."""
        for pair, counts in enumerate(torch.split(self.counts.double(), self.cells)):
            values = (counts - 1).clamp(min=0).log1p()
            share = counts / counts.sum().clamp(min=1)
            mean = share @ values
            self.mean[pair] = mean
            self.std[pair] = (share @ (values - mean).square()).sqrt()
        self.std.clamp_(min=_LEAST_STD)  # division would magnify the error of the logarithm

    def _find(self, ids: Tensor) -> Tensor:
        ids = ids.remainder(self._sizes)
        cells = ids[:, self._first] * self._stride + ids[:, self._second]
        return cells.remainder(self._cells) + self._start
