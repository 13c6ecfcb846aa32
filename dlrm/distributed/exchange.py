# SPDX-License-Identifier: Apache-2.0
"""Plans each rank's lookups for all ranks and exchanges the vectors.

Every rank reads the ids of its shards for the whole batch, so ids are never sent. One all-to-all
sends the looked-up vectors, another sends their gradients back.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch import Tensor

from dlrm.distributed.placement import Placement
from dlrm.nn.bags import Bags
from dlrm.nn.shards import batch_bounds
from recsys.data.list_columns import ListColumn

IntArray = npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True, slots=True)
class ExchangedLookups:
    """A rank's lookups of a step, and the order of received vectors.

    With lists, a vector is the sum of a bag of rows. For a row-wise table, a vector then arrives in
    parts, one from each rank that has rows of the list.

    Attributes:
        rows: [L] int32 (int64 in a table of 2^31 rows) rows to look up in this rank's joint table,
            sorted by receiving rank; with lists, `Bags` of rows.
        send_counts: [W] number of vectors for each rank.
        output_rows: [sum of receive_counts] int64, sample x F + feature of each received vector.
        receive_counts: [W] number of vectors from each rank.
        replicated: [b, replicated tables] int64 ids; with lists, `Bags`.
        batch_size: b, samples of the local batch.
        num_rows: B, samples of the batch over all ranks.
        in_flight: receiving buffer and exchange; None before the exchange has started.
    """

    rows: "Tensor | Bags"
    send_counts: tuple[int, ...]
    output_rows: Tensor
    receive_counts: tuple[int, ...]
    replicated: "Tensor | Bags"
    batch_size: int
    num_rows: int
    in_flight: "tuple[Tensor, VectorExchange] | None" = None

    def map(self, change: Callable[[Tensor], Tensor]) -> "ExchangedLookups":
        """Applies a function to the tensors; not for lookups in flight."""

        def changed(ids: "Tensor | Bags") -> "Tensor | Bags":
            return ids.map(change) if isinstance(ids, Bags) else change(ids)

        return dataclasses.replace(
            self,
            rows=changed(self.rows),
            output_rows=change(self.output_rows),
            replicated=changed(self.replicated),
        )


def rank_bounds(num_rows: int, world_size: int) -> IntArray:
    """Returns [W + 1] bounds of the ranks' samples in a batch."""
    return np.array(batch_bounds(num_rows, world_size), np.int64)


def plan_lookups(
    placement: Placement,
    rank: int,
    batch_ids: Mapping[int, IntArray],
    replicated: IntArray,
    num_rows: int,
) -> ExchangedLookups:
    """Plans, on the host, a rank's lookups and the vectors that it receives.

    Args:
        placement: placement of the tables.
        rank: number of this rank.
        batch_ids: feature -> [B] ids inside their table, for each feature `sharded_on` the rank.
        replicated: [b, replicated tables] ids.
        num_rows: B.
    """
    world = placement.world_size
    bounds = rank_bounds(num_rows, world)
    local_batch = slice(bounds[rank], bounds[rank + 1])
    batch_size, num_tables = int(bounds[rank + 1] - bounds[rank]), len(placement.tables)
    rank_of_sample = np.repeat(np.arange(world, dtype=np.uint16), np.diff(bounds))
    samples = np.arange(batch_size) * num_tables
    offsets = local_offsets(placement, rank)
    rows, receivers, output_rows, senders = [], [], [], []
    for table in placement.of_kind("whole"):
        owner = placement.tables[table].rank
        assert owner is not None
        output_rows.append(samples + table)
        senders.append(np.full(batch_size, owner, np.uint16))
        if owner == rank:
            rows.append(batch_ids[table] + offsets[table])
            receivers.append(rank_of_sample)
    for table in placement.of_kind("rows"):
        ids = batch_ids[table]
        owners = placement.owner(table, ids).astype(np.uint16)
        local = np.flatnonzero(owners == rank)
        rows.append(ids[local] // world + offsets[table])
        receivers.append(rank_of_sample[local])
        output_rows.append(samples + table)
        senders.append(owners[local_batch])
    sorted_rows, send_counts = _sort_by_rank(rows, receivers, world)
    sorted_rows = sorted_rows.astype(_row_dtype(placement, rank), copy=False)
    sorted_output_rows, receive_counts = _sort_by_rank(output_rows, senders, world)
    return ExchangedLookups(
        torch.from_numpy(sorted_rows),
        send_counts,
        torch.from_numpy(sorted_output_rows),
        receive_counts,
        torch.from_numpy(np.ascontiguousarray(replicated, np.int64)),
        batch_size,
        num_rows,
    )


def plan_bags(
    placement: Placement,
    rank: int,
    columns: Mapping[int, ListColumn],
    replicated: Bags,
    num_rows: int,
) -> ExchangedLookups:
    """Plans a rank's lookups if features are lists; see `plan_lookups`.

    Args:
        placement: placement of the tables.
        rank: number of this rank.
        columns: feature -> lists of the B samples, for each feature `sharded_on` the rank.
        replicated: ids of the local batch in the replicated tables.
        num_rows: B.
    """
    world, num_tables = placement.world_size, len(placement.tables)
    bounds = rank_bounds(num_rows, world)
    begin, end = int(bounds[rank]), int(bounds[rank + 1])
    rank_of_sample = np.repeat(np.arange(world, dtype=np.uint16), np.diff(bounds))
    samples = np.arange(end - begin)
    offsets = local_offsets(placement, rank)
    rows, scale, lengths, receivers, output_rows, senders = [], [], [], [], [], []
    for table in placement.of_kind("whole"):
        owner = placement.tables[table].rank
        assert owner is not None
        output_rows.append(samples * num_tables + table)
        senders.append(np.full(len(samples), owner, np.uint16))
        if owner == rank:
            rows.append(columns[table].ids.astype(np.int64) + offsets[table])
            scale.append(columns[table].factors())
            lengths.append(np.diff(columns[table].offsets))
            receivers.append(rank_of_sample)
    for table in placement.of_kind("rows"):
        column, ids = columns[table], columns[table].ids.astype(np.int64)
        owners = placement.owner(table, ids).astype(np.uint16)
        sample = np.repeat(np.arange(num_rows), np.diff(column.offsets))
        own, is_local = owners == rank, (sample >= begin) & (sample < end)
        rows.append(ids[own] // world + offsets[table])
        scale.append(column.factors()[own])
        sent, counts = np.unique(sample[own], return_counts=True)
        lengths.append(counts)
        receivers.append(rank_of_sample[sent])
        pairs = np.unique(owners[is_local] * np.int64(len(samples)) + sample[is_local] - begin)
        senders.append((pairs // max(len(samples), 1)).astype(np.uint16))
        output_rows.append(pairs % max(len(samples), 1) * num_tables + table)
    starts = np.concatenate([[0], *lengths]).cumsum()
    bags, send_counts = _sort_by_rank(
        [np.arange(len(starts) - 1)], [np.concatenate([*receivers, np.zeros(0, np.uint16)])], world
    )
    sorted_lengths = np.diff(starts)[bags]
    ends = sorted_lengths.cumsum()
    at = np.repeat(starts[bags] - ends + sorted_lengths, sorted_lengths) + np.arange(starts[-1])
    sorted_output_rows, receive_counts = _sort_by_rank(output_rows, senders, world)
    dtype = _row_dtype(placement, rank)
    return ExchangedLookups(
        Bags(
            1,
            torch.from_numpy(np.concatenate([np.zeros(0, np.int64), *rows])[at].astype(dtype)),
            torch.from_numpy(np.concatenate([[0], ends])),
            torch.from_numpy(np.concatenate([np.zeros(0, np.float32), *scale])[at]),
        ),
        send_counts,
        torch.from_numpy(sorted_output_rows),
        receive_counts,
        replicated,
        end - begin,
        num_rows,
    )


def _row_dtype(placement: Placement, rank: int) -> npt.DTypeLike:
    """Returns the dtype of row numbers: int32 if they fit, otherwise int64."""
    num_rows = sum(placement.local_rows(t, rank) for t in placement.sharded_on(rank))
    return np.int32 if num_rows <= np.iinfo(np.int32).max else np.int64


def local_offsets(placement: Placement, rank: int) -> dict[int, int]:
    """Returns {table: number of its first row in a rank's joint table}."""
    offsets, start = {}, 0
    for table in placement.sharded_on(rank):
        offsets[table] = start
        start += placement.local_rows(table, rank)
    return offsets


def _sort_by_rank(
    values: Sequence[IntArray], ranks: Sequence[npt.NDArray[np.uint16]], world_size: int
) -> tuple[IntArray, tuple[int, ...]]:
    """Sorts values stably by rank; returns them and the count for each rank."""
    if not values:
        return np.zeros(0, np.int64), (0,) * world_size
    joined = np.concatenate(ranks)
    order = np.argsort(joined, kind="stable")
    counts = np.bincount(joined, minlength=world_size)
    return np.concatenate(values)[order], tuple(counts.tolist())


class VectorExchange:
    """An asynchronous all-to-all of vectors, and of their gradients in backward.

    Computation between the calls of `start` and `finish` overlaps with the exchange. The backward
    pass of this computation overlaps with the exchange of the gradients.

    Args:
        send_counts: [W] number of vectors for each rank.
        receive_counts: [W] number of vectors from each rank.
        after_send_back: called once the exchange of gradients has started.
    """

    def __init__(
        self,
        send_counts: Sequence[int],
        receive_counts: Sequence[int],
        after_send_back: Callable[[], None] = lambda: None,
    ) -> None:
        self._sends = list(send_counts)
        self._receives = list(receive_counts)
        self._after_send_back = after_send_back
        self._work: dist.Work | None = None
        self._gradient: Tensor | None = None

    def start(self, vectors: Tensor) -> Tensor:
        """Starts sending vectors; differentiable.

        Args:
            vectors: [L, D], sorted by receiving rank.

        Returns:
            The receiving buffer for `finish`; its values are not valid until then.
        """
        arriving: Tensor = _Start.apply(vectors, self)  # type: ignore[no-untyped-call]
        return arriving

    def finish(self, arriving: Tensor) -> Tensor:
        """Waits for the received vectors, [sum of receive_counts, D], sorted by sending rank."""
        vectors: Tensor = _Finish.apply(arriving, self)  # type: ignore[no-untyped-call]
        return vectors

    def send(self, vectors: Tensor) -> Tensor:
        """Starts the all-to-all of vectors; returns the receiving buffer."""
        arriving = vectors.new_empty(sum(self._receives), vectors.shape[1])
        self._work = dist.all_to_all_single(
            arriving, vectors.contiguous(), self._receives, self._sends, async_op=True
        )
        return arriving

    def send_back(self, gradients: Tensor) -> None:
        """Starts the all-to-all of gradients, in the other direction."""
        self._gradient = gradients.new_empty(sum(self._sends), gradients.shape[1])
        self._work = dist.all_to_all_single(
            self._gradient, gradients.contiguous(), self._sends, self._receives, async_op=True
        )
        self._after_send_back()

    def wait(self) -> None:
        """Waits for the all-to-all in flight."""
        assert self._work is not None
        self._work.wait()
        self._work = None

    def take_gradient(self) -> Tensor:
        """Waits for the received gradients and returns them, [L, D]."""
        self.wait()
        gradient, self._gradient = self._gradient, None
        assert gradient is not None
        return gradient


class _Start(torch.autograd.Function):
    """Starts the exchange of vectors; backward finishes that of the gradients."""

    @staticmethod
    def forward(
        ctx: torch.autograd.function.FunctionCtx, vectors: Tensor, exchange: VectorExchange
    ) -> Tensor:
        ctx.exchange = exchange  # type: ignore[attr-defined]
        return exchange.send(vectors)

    @staticmethod
    def backward(
        ctx: torch.autograd.function.FunctionCtx,
        _gradient: Tensor,  # a placeholder: the real one is in flight
    ) -> tuple[Tensor, None]:
        return ctx.exchange.take_gradient(), None  # type: ignore[attr-defined]


class _Finish(torch.autograd.Function):
    """Finishes the exchange of vectors; backward starts that of the gradients."""

    @staticmethod
    def forward(
        ctx: torch.autograd.function.FunctionCtx, arriving: Tensor, exchange: VectorExchange
    ) -> Tensor:
        ctx.exchange = exchange  # type: ignore[attr-defined]
        exchange.wait()
        return arriving.view_as(arriving)

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, gradient: Tensor) -> tuple[Tensor, None]:
        ctx.exchange.send_back(gradient)  # type: ignore[attr-defined]
        return gradient, None
