# SPDX-License-Identifier: Apache-2.0
"""Plans each rank's lookups for the others, and exchanges their vectors.

Every rank reads the ids of its tables for the batch of all ranks, so no id is ever sent. What it
looks up leaves in one exchange, and the gradients come back in another.
Letters: W ranks, B samples of all ranks, b of this one, F tables, D columns, L vectors that this
rank looks up for all, K vectors that it receives.
"""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch import Tensor

from dlrm.distributed.placement import Placement

IntArray = npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True, slots=True)
class ExchangedLookups:
    """A rank's lookups of a step, and the samples of received vectors.

    Attributes:
        rows: [L] int64 rows of this rank's joint table, by the rank that wants them.
        send_counts: vectors for each rank.
        places: [K] int64 in [0, b x F): sample and table of each vector in the order of arrival.
        receive_counts: vectors from each rank.
        replicated: [b, tables with a copy on every rank] int64 ids.
        batch_size: b.
        num_rows: B.
        under_way: the vectors that arrive and their exchange, once it has begun.
    """

    rows: Tensor
    send_counts: tuple[int, ...]
    places: Tensor
    receive_counts: tuple[int, ...]
    replicated: Tensor
    batch_size: int
    num_rows: int
    under_way: "tuple[Tensor, VectorExchange] | None" = None

    def to(self, device: torch.device) -> "ExchangedLookups":
        """Queues the copy to a device."""
        return dataclasses.replace(
            self,
            rows=self.rows.to(device, non_blocking=True),
            places=self.places.to(device, non_blocking=True),
            replicated=self.replicated.to(device, non_blocking=True),
        )


def rank_bounds(num_rows: int, world_size: int) -> IntArray:
    """Returns each rank's first row, then the total: [W + 1]."""
    counts = num_rows // world_size + (np.arange(world_size) < num_rows % world_size)
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


def wanted_columns(placement: Placement, rank: int) -> list[int]:
    """Returns the tables whose ids a rank needs of all samples."""
    return sorted(placement.whole_on(rank) + placement.of_kind("rows"))


def plan_lookups(
    placement: Placement,
    rank: int,
    columns: Mapping[int, IntArray],
    replicated: IntArray,
    num_rows: int,
) -> ExchangedLookups:
    """Works out, on the host, what a rank looks up and receives.

    Args:
        placement: of the tables.
        rank: this one.
        columns: [B] ids of each of `wanted_columns`, inside their tables.
        replicated: [b, tables with a copy on every rank] ids of this rank's samples.
        num_rows: B.
    """
    world = placement.world_size
    bounds = rank_bounds(num_rows, world)
    mine = slice(bounds[rank], bounds[rank + 1])
    batch_size, num_tables = int(bounds[rank + 1] - bounds[rank]), len(placement.tables)
    rank_of_row = np.repeat(np.arange(world, dtype=np.uint16), np.diff(bounds))
    samples = np.arange(batch_size) * num_tables
    offsets = local_offsets(placement, rank)
    rows, wanted_by, places, sent_by = [], [], [], []
    for table in placement.of_kind("whole"):
        owner = placement.tables[table].rank
        assert owner is not None
        places.append(samples + table)
        sent_by.append(np.full(batch_size, owner, np.uint16))
        if owner == rank:
            rows.append(columns[table] + offsets[table])
            wanted_by.append(rank_of_row)
    for table in placement.of_kind("rows"):
        ids = columns[table]
        owners = placement.owner(table, ids).astype(np.uint16)
        here = np.flatnonzero(owners == rank)
        rows.append(ids[here] // world + offsets[table])
        wanted_by.append(rank_of_row[here])
        places.append(samples + table)
        sent_by.append(owners[mine])
    sorted_rows, send_counts = _grouped(rows, wanted_by, world)
    sorted_places, receive_counts = _grouped(places, sent_by, world)
    return ExchangedLookups(
        torch.from_numpy(sorted_rows),
        send_counts,
        torch.from_numpy(sorted_places),
        receive_counts,
        torch.from_numpy(np.ascontiguousarray(replicated, np.int64)),
        batch_size,
        num_rows,
    )


def local_offsets(placement: Placement, rank: int) -> dict[int, int]:
    """Returns the first row of each table in a rank's joint table."""
    offsets, start = {}, 0
    for table in wanted_columns(placement, rank):
        offsets[table] = start
        start += placement.local_rows(table, rank)
    return offsets


def _grouped(
    values: Sequence[IntArray], ranks: Sequence[npt.NDArray[np.uint16]], world_size: int
) -> tuple[IntArray, tuple[int, ...]]:
    """Sorts values by rank, stably; returns them and their counts."""
    if not values:
        return np.zeros(0, np.int64), (0,) * world_size
    joined = np.concatenate(ranks)
    order = np.argsort(joined, kind="stable")
    counts = np.bincount(joined, minlength=world_size)
    return np.concatenate(values)[order], tuple(counts.tolist())


class VectorExchange:
    """One exchange of vectors between `start` and `finish`, and of their gradients.

    Both directions run while the caller computes something else: forward between the two calls,
    backward between the backward passes of what follows `finish` and of what precedes `start`.

    Args:
        send_counts: vectors for each rank.
        receive_counts: vectors from each rank.
    """

    def __init__(self, send_counts: Sequence[int], receive_counts: Sequence[int]) -> None:
        self._sends = list(send_counts)
        self._receives = list(receive_counts)
        self._work: dist.Work | None = None
        self._gradient: Tensor | None = None

    def start(self, vectors: Tensor) -> Tensor:
        """Sends vectors.

        Args:
            vectors: [L, D], by the rank that wants them.

        Returns:
            What `finish` takes; its values are not there yet.
        """
        arriving: Tensor = _Start.apply(vectors, self)  # type: ignore[no-untyped-call]
        return arriving

    def finish(self, arriving: Tensor) -> Tensor:
        """Waits for the vectors; returns [K, D] by sending rank."""
        vectors: Tensor = _Finish.apply(arriving, self)  # type: ignore[no-untyped-call]
        return vectors

    def send(self, vectors: Tensor) -> Tensor:
        """Starts the exchange and returns where its result will be."""
        arriving = vectors.new_empty(sum(self._receives), vectors.shape[1])
        self._work = dist.all_to_all_single(
            arriving, vectors.contiguous(), self._receives, self._sends, async_op=True
        )
        return arriving

    def send_back(self, gradients: Tensor) -> None:
        """Starts the exchange in the other direction."""
        self._gradient = gradients.new_empty(sum(self._sends), gradients.shape[1])
        self._work = dist.all_to_all_single(
            self._gradient, gradients.contiguous(), self._sends, self._receives, async_op=True
        )

    def wait(self) -> None:
        """Waits for the exchange under way."""
        assert self._work is not None
        self._work.wait()
        self._work = None

    def take_gradient(self) -> Tensor:
        """Waits for the gradients that come back and returns them, [L, D]."""
        self.wait()
        gradient, self._gradient = self._gradient, None
        assert gradient is not None
        return gradient


class _Start(torch.autograd.Function):
    """Begins an exchange; its backward pass ends the one of the gradients."""

    @staticmethod
    def forward(
        ctx: torch.autograd.function.FunctionCtx, vectors: Tensor, exchange: VectorExchange
    ) -> Tensor:
        ctx.exchange = exchange  # type: ignore[attr-defined]
        return exchange.send(vectors)

    @staticmethod
    def backward(
        ctx: torch.autograd.function.FunctionCtx,
        _gradient: Tensor,  # it stands for the one that is under way
    ) -> tuple[Tensor, None]:
        return ctx.exchange.take_gradient(), None  # type: ignore[attr-defined]


class _Finish(torch.autograd.Function):
    """Ends an exchange; its backward pass begins the one of the gradients."""

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
