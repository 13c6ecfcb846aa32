# SPDX-License-Identifier: Apache-2.0
"""Row gradients of tables outside autograd, and their optimizer.

No gradient as large as such a table is ever allocated.
"""

import dataclasses
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from cuda_ext import ops, reference
from cuda_ext.ops import RowOptimizer, RowStep
from cuda_ext.row_rules import Allocate


@dataclasses.dataclass(frozen=True, slots=True)
class RowGradients:
    """Gradients of the rows of one stored table that were looked up.

    Attributes:
        table: index of the stored table.
        rows: [L] int32 or int64 row numbers, with repetitions.
        gradients: [L, D] gradient of each lookup.
        sorted_rows: the rows in order, if they were sorted during the forward pass; else None.
        overflow: scalar bool tensor, whether a gradient is infinite or NaN; None if backward did
            not check.
        source: [L] int32 index of each lookup's gradient, if lookups share the gradients [G, D].
        scale: [L] float32 factor of each lookup's gradient; None for 1.
    """

    table: int
    rows: Tensor
    gradients: Tensor
    sorted_rows: "SortedRows | None" = None
    overflow: Tensor | None = None
    source: Tensor | None = None
    scale: Tensor | None = None

    def of_lookups(self) -> Tensor:
        """Returns [L, D], the gradient of each lookup."""
        if self.source is None:
            return self.gradients
        gradients = self.gradients.index_select(0, self.source.to(torch.int64))
        return gradients if self.scale is None else gradients * self.scale.unsqueeze(1)

    def squared_norm(self) -> Tensor:
        """Returns the squared norm, with duplicate rows summed first."""
        assert self.source is None, "no recipe asks for the norm of bags"
        if not self.rows.is_cuda:
            _, summed = reference.sum_duplicate_rows(self.rows, self.gradients.to(torch.float32))
            return summed.square().sum()
        return norm_of_summed_rows(self.rows, self.gradients)


def norm_of_summed_rows(rows: Tensor, gradients: Tensor) -> Tensor:
    """Sums the gradients of duplicate rows; returns the squared norm, without waiting for a GPU.

    The number of distinct rows stays unknown, so the sums take the memory of all lookups.

    Args:
        rows: [L] int32 or int64 row numbers.
        gradients: [L, D] gradient of each lookup.
    """
    ordered, order = rows.sort()
    distinct = torch.zeros_like(ordered)
    distinct[1:] = (ordered[1:] != ordered[:-1]).cumsum(0)
    number = torch.empty_like(distinct).scatter_(0, order, distinct)
    return ops.sum_by_row(number, gradients, len(number)).square().sum()


_sort_streams: dict[torch.device, ops.SideStream] = {}


class SortedRows:
    """Sort of a step's lookups, concurrent with the forward pass.

    Args:
        rows: int32 or int64 row numbers on a GPU.
        num_table_rows: R, the rows of the table.
    """

    def __init__(self, rows: Tensor, num_table_rows: int) -> None:
        if rows.device not in _sort_streams:
            _sort_streams[rows.device] = ops.SideStream(rows.device)
        self._stream = _sort_streams[rows.device]
        with self._stream.after():  # the rows are kept until the update
            self._rows, self._positions = ops.sort_rows(rows, num_table_rows)

    def join(self) -> tuple[Tensor, Tensor]:
        """Makes the current stream wait for the sort; returns the result of `ops.sort_rows`."""
        self._stream.join()
        return self._rows, self._positions


class RowLookups:
    """A step's lookups in one table, until the gradients are taken."""

    def __init__(self) -> None:
        self._pending: list[tuple[Tensor, Tensor, SortedRows | None, Tensor | None]] = []

    def anchor(
        self,
        rows: Tensor,
        dim: int,
        dtype: torch.dtype,
        num_table_rows: int | None = None,
        overflow: Tensor | None = None,
    ) -> Tensor:
        """Records a lookup; see `ops.row_gradient_anchor`.

        Args:
            rows: int32 or int64 row numbers of any shape.
            dim: D, columns of the table.
            dtype: dtype of the looked-up vectors.
            num_table_rows: R, given for a step's only lookup in the table: its rows are then sorted
                on a GPU during the forward pass.
            overflow: scalar bool tensor that backward sets; see `ops.gather_dot_interaction`.

        Returns:
            The `anchor` of the lookup, which receives the gradient.
        """
        anchor = ops.row_gradient_anchor((*rows.shape, dim), dtype, rows.device)
        sorts = num_table_rows is not None and rows.is_cuda and not torch.compiler.is_compiling()
        sorted_rows = SortedRows(rows, num_table_rows or 0) if sorts else None
        self._pending.append((rows, anchor, sorted_rows, overflow))
        return anchor

    def take(self, table: int) -> list[RowGradients]:
        """Returns the joined gradients of the last backward, and clears the lookups.

        Args:
            table: index of the table.

        Returns:
            One entry, or none if no lookup has a gradient.
        """
        pending, self._pending = self._pending, []
        entries = [
            RowGradients(
                *(table, rows.reshape(-1), a.grad.reshape(-1, a.shape[-1]), sorted_rows, overflow)
            )
            for rows, a, sorted_rows, overflow in pending
            if a.grad is not None
        ]
        if len(entries) <= 1:
            return entries
        # All lookups of a step are updated at once, because Adam would count two steps.
        rows = torch.cat([entry.rows for entry in entries])
        return [RowGradients(table, rows, torch.cat([entry.gradients for entry in entries]))]


class RowTables(Protocol):
    """Tables whose rows an optimizer updates."""

    def stored_tables(self) -> list[Tensor]:
        """Returns the stored tables; changing them changes the model."""
        ...

    def take_row_gradients(self) -> list[RowGradients]:
        """Returns the gradients of the last backward, and clears them."""
        ...


class RowwiseOptimizer:
    """Applies row gradients to tables; without `l2`, other rows do not change.

    Args:
        tables: tables to update.
        rule: name of the update rule in `cuda_ext.row_rules`.
        weight_decay: weight decay of the rows that a batch looks up.
        loss_scale: divisor of the gradients.
        l2: factor of an L2 penalty: l2 / 2 times the squared norm of the tables is in the loss, so
            every row has a gradient in every step, and the rule updates all rows.
        allocate: see `RowRule.new_state`.

    Attributes:
        state: named tensors of each stored table.
        steps: scalar float32 tensor, number of applied steps.
    """

    def __init__(
        self,
        tables: RowTables,
        rule: RowOptimizer,
        weight_decay: float,
        loss_scale: float = 1.0,
        *,
        l2: float = 0.0,
        allocate: Allocate | None = None,
    ) -> None:
        self._tables = tables
        self._rule = rule
        values = tables.stored_tables()
        self._weight_decay = weight_decay
        self._l2 = l2
        self._every_row = [_every_row(table) for table in values] if l2 else []
        self.state = [ops.row_optimizer_state(rule, table, allocate) for table in values]
        device = values[0].device if values else torch.device("cpu")
        self.steps = torch.zeros((), device=device)
        self._inverse_scale = (
            None if loss_scale == 1.0 else torch.full((), 1 / loss_scale, device=device)
        )

    @torch.no_grad()
    def reset(self) -> None:
        """Resets the state and the number of steps, in place."""
        for state in self.state:
            for tensor in state.values():
                tensor.zero_()
        self.steps.zero_()

    def gradients(self) -> list[RowGradients]:
        """Returns the gradients of the last backward, and clears them."""
        return self._tables.take_row_gradients()

    @torch.no_grad()
    def step(
        self,
        gradients: Sequence[RowGradients],
        lr: Tensor,
        overflow: Tensor | None = None,
        factor: Tensor | None = None,
    ) -> None:
        """Applies gradients.

        Args:
            gradients: result of `gradients`.
            lr: learning rate, scalar float32 tensor on the device.
            overflow: scalar bool tensor; True skips the step, None never does.
            factor: scalar float32 factor of the gradients; None for 1.
        """
        self.steps += 1 if overflow is None else (~overflow).to(self.steps.dtype)
        tables = self._tables.stored_tables()
        scale = self._inverse_scale
        if factor is not None:
            scale = factor if scale is None else scale * factor
        step = RowStep(lr, self.steps, self._weight_decay, scale, overflow)
        if not self._l2:
            for of_table in gradients:
                number = of_table.table
                _update(self._rule, tables[number], self.state[number], of_table, step)
            return
        # SGD with a rate of -1 adds the gradients of the lookups to the gradient of the penalty.
        adding = step._replace(lr=torch.full_like(lr, -1.0), weight_decay=0.0)
        whole = [table.to(torch.float32) * self._l2 for table in tables]
        for of_table in gradients:
            _update("sgd", whole[of_table.table], {}, of_table, adding)
        step = step._replace(inverse_scale=None)
        for table, state, every_row, gradient in zip(
            tables, self.state, self._every_row, whole, strict=True
        ):
            rows, _ = every_row
            ops.update_rows(self._rule, table, state, rows, gradient, step, sorted_rows=every_row)


def _update(
    rule: RowOptimizer,
    table: Tensor,
    state: dict[str, Tensor],
    gradients: RowGradients,
    step: RowStep,
) -> None:
    """Applies the gradients of a table's lookups to the table."""
    sorted_rows = gradients.sorted_rows
    ops.update_rows(
        *(rule, table, state, gradients.rows, gradients.gradients, step),
        source=gradients.source,
        scale=gradients.scale,
        sorted_rows=None if sorted_rows is None else sorted_rows.join(),
    )


def _every_row(table: Tensor) -> tuple[Tensor, Tensor]:
    """Returns all row numbers of a table, in the form of `ops.sort_rows`."""
    positions = torch.arange(len(table), dtype=torch.int32, device=table.device)
    return positions, positions
