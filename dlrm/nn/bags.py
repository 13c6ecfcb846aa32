# SPDX-License-Identifier: Apache-2.0
"""Bags of ids, for features that may be lists, and their tables."""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from cuda_ext import ops, reference
from dlrm.config import ModelConfig
from dlrm.nn.embedding import JointEmbeddings
from dlrm.nn.table_files import TableFiles
from recsys.data.click_columns import ClickColumns
from recsys.data.list_columns import ListColumn
from recsys.train.optimizers.rows import RowGradients


@dataclasses.dataclass(frozen=True, slots=True)
class Bags:
    """Ids of samples whose features may have any number of ids.

    Attributes:
        num_features: F.
        ids: [L] int32, sample by sample, and feature by feature in each sample.
        offsets: [B * F + 1] int64, start of each feature's ids in `ids`, then L.
        scale: [L] float32, factor of each id's vector in the sum over its feature.
    """

    num_features: int
    ids: Tensor
    offsets: Tensor
    scale: Tensor

    @classmethod
    def from_columns(cls, columns: ClickColumns) -> "Bags":
        """Builds bags from columns; features with one id per row come before lists."""
        one_each = np.arange(len(columns) + 1)
        singles = (ListColumn(ids, one_each) for ids in columns.categorical)
        return cls.from_lists((*singles, *columns.lists), len(columns))

    @classmethod
    def from_lists(cls, lists: Sequence[ListColumn], num_rows: int) -> "Bags":
        """Builds bags from the lists of several features."""
        one_each = np.arange(num_rows + 1)
        varies = [not np.array_equal(column.offsets, one_each) for column in lists]
        lengths = np.ones((num_rows, len(lists)), np.int64)
        for number in filter(varies.__getitem__, range(len(lists))):
            lengths[:, number] = np.diff(lists[number].offsets)
        offsets = np.concatenate([[0], lengths.cumsum()])
        begin = offsets[:-1].reshape(lengths.shape)
        ids, scale = np.empty(offsets[-1], np.int32), np.ones(offsets[-1], np.float32)
        for number, column in enumerate(lists):
            at = begin[:, number]
            if varies[number]:
                before = np.repeat(at - column.offsets[:-1], lengths[:, number])
                at = before + np.arange(len(column.ids))
            ids[at] = column.ids
            if column.weights is not None or column.is_mean:
                scale[at] = column.factors()
        return cls(len(lists), *map(torch.from_numpy, (ids, offsets, scale)))

    @classmethod
    def from_slots(cls, ids: Tensor, scale: Tensor, widths: Sequence[int]) -> "Bags":
        """Builds bags in which each feature has its greatest number of ids.

        Args:
            ids: [B, S] integers, where S is the sum of the widths; lists come last.
            scale: [B, S - number of features with one id] float32, 0 after the end of a list.
            widths: greatest number of ids of each feature.
        """
        singles = ids.shape[1] - scale.shape[1]
        factors = torch.cat([scale.new_ones(len(ids), singles), scale], 1)
        ends = torch.tensor(widths, device=ids.device).cumsum(0)
        rows = torch.arange(len(ids), device=ids.device).unsqueeze(1) * ids.shape[1]
        offsets = torch.cat([ends.new_zeros(1), (rows + ends).flatten()])
        return cls(len(widths), ids.flatten(), offsets, factors.flatten())

    def to_slots(self, widths: Sequence[int], num_list_slots: int) -> tuple[Tensor, Tensor]:
        """Returns the arguments `ids` (int64) and `scale` of `from_slots`."""
        lengths, num_slots = self.offsets.diff(), sum(widths)
        num_rows = len(lengths) // len(widths)
        ends = torch.tensor(widths).cumsum(0)
        slots = torch.arange(num_rows).unsqueeze(1) * num_slots + ends - torch.tensor(widths)
        before = (slots.flatten() - self.offsets[:-1]).repeat_interleave(lengths)
        at = before + torch.arange(len(self.ids))
        ids = self.ids.new_zeros(num_rows * num_slots, dtype=torch.int64)
        scale = self.scale.new_zeros(len(ids))
        ids[at], scale[at] = self.ids.to(torch.int64), self.scale
        return ids.view(-1, num_slots), scale.view(-1, num_slots)[:, num_slots - num_list_slots :]

    def map(self, change: Callable[[Tensor], Tensor]) -> "Bags":
        """Returns the bags with each tensor changed."""
        return Bags(self.num_features, change(self.ids), change(self.offsets), change(self.scale))

    def reordered(self, feature: int, order: Tensor) -> "Bags":
        """Gives each sample the ids of another sample for one feature.

        Args:
            feature: number of the feature.
            order: [B] int64, the sample from which to take the ids.
        """
        bags = torch.arange(len(self.offsets) - 1, device=order.device)
        bags = bags.view(-1, self.num_features)
        bags[:, feature] = order * self.num_features + feature
        lengths = self.offsets.diff()[bags.flatten()]
        offsets = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
        shift = (self.offsets[bags.flatten()] - offsets[:-1]).repeat_interleave(lengths)
        at = shift + torch.arange(len(shift), device=order.device)
        return Bags(self.num_features, self.ids[at], offsets, self.scale[at])

    def column(self, feature: int) -> Tensor:
        """Returns [B] ids of a feature that has one id per row."""
        return self.ids[self.offsets[feature : -1 : self.num_features]]


class BaggedEmbedding(JointEmbeddings[Bags]):
    """A joint table, updated in place, whose rows are summed over each feature."""

    in_autograd = False
    _pending: tuple[Tensor, Tensor, Bags] | None = None

    @classmethod
    def of(
        cls, config: ModelConfig, table_sizes: Sequence[int], files: TableFiles | None = None
    ) -> "BaggedEmbedding":
        """Builds the tables of a model with random values."""
        dim, sizes = config.row_dim, config.capped(table_sizes)
        tables = cls(sizes, dim, config.hash_indices, config.embedding_storage, files)
        tables.init_std = config.embedding_init
        tables.reset_parameters()
        return tables

    def forward(self, ids: Bags, dtype: torch.dtype) -> Tensor:
        """Sums the scaled rows of each feature.

        Args:
            ids: ids of B samples.
            dtype: dtype of the vectors.

        Returns:
            [B, F, D] vectors; zeros for an empty list.
        """
        rows = self.table_rows(ids.ids, ids.offsets)
        return self.pool(rows, ids, dtype).view(-1, len(self.table_sizes), self.embedding_dim)

    def pool(self, rows: Tensor, bags: Bags, dtype: torch.dtype) -> Tensor:
        """Returns [bags, D] sums of scaled rows of the joint table.

        Args:
            rows: [L] row numbers.
            bags: bounds of the bags, and factors of the rows.
            dtype: dtype of the vectors.
        """
        anchor = None
        if self.trainable and torch.is_grad_enabled():
            shape = (len(bags.offsets) - 1, self.embedding_dim)
            anchor = ops.row_gradient_anchor(shape, dtype, rows.device)
            self._pending = (rows, anchor, bags)
        return ops.embedding_bag(
            self.weight, rows, bags.offsets, dtype, scale=bags.scale, anchor=anchor
        )

    def take_row_gradients(self) -> list[RowGradients]:
        """Returns the row gradients of the last backward pass and clears them."""
        pending, self._pending = self._pending, None
        gradient = None if pending is None else pending[1].grad
        if pending is None or gradient is None:
            return []
        rows, _, bags = pending
        source = reference.bag_of_lookup(bags.offsets, len(rows))
        return [RowGradients(0, rows, gradient, source=source, scale=bags.scale)]

    def _describe_bad_id(self, lookup: int) -> str:  # noqa: ARG002  (its feature is unknown)
        return "a batch contained an id outside the rows of its table"
