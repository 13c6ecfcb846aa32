# SPDX-License-Identifier: Apache-2.0
"""BERT4Rec with item tables sharded by rows and updated after backward.

Replaces `bert4rec.model.torchrec` in steps that FBGEMM cannot do, since it updates rows during
backward. The gradient norm is known only after backward, accumulated batches need a single update,
and the full softmax of a tied head needs whole tables, while an EmbeddingCollection returns only
the rows that are looked up.
"""

import dataclasses
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

from bert4rec.model.loss import LossNetwork
from bert4rec.nn.items import lookup_before_head
from bert4rec.nn.parallel_softmax import ItemRange, parallel_cross_entropy
from bert4rec.nn.targets import LabelledBatch
from cuda_ext import ops
from recsys.train.optimizers.rows import RowGradients, RowLookups
from recsys.train.processes import Processes

_EMBEDDING, _HEAD, _BIAS = "embedding", "head", "bias"


@dataclasses.dataclass(frozen=True, slots=True)
class _Request:
    """The lookups of a process, sent to the processes that hold the rows.

    Attributes:
        rows: [n] int64 rows of this process's shard that all processes together ask for.
        order: [L] int64 order in which this process's lookups were sent.
        sent: number of lookups sent to each process.
        received: number of lookups received from each process.
    """

    rows: Tensor
    order: Tensor
    sent: list[int]
    received: list[int]

    def answer(self, vectors: Tensor) -> Tensor:
        """Sends back looked-up rows [n, D]; returns the [L, D] that this process asked for."""
        back = _Exchange.apply(vectors, self.sent, self.received)  # type: ignore[no-untyped-call]
        inverse = torch.empty_like(self.order)
        inverse[self.order] = torch.arange(len(self.order), device=inverse.device)
        answers: Tensor = back.index_select(0, inverse)
        return answers


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, vectors: Tensor, received: list[int], sent: list[int]) -> Tensor:
        ctx.sizes = (received, sent)
        back = vectors.new_empty(sum(received), vectors.shape[1])
        dist.all_to_all_single(back, vectors.contiguous(), received, sent)
        return back

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        received, sent = ctx.sizes
        back = gradient.new_empty(sum(sent), gradient.shape[1])
        dist.all_to_all_single(back, gradient.contiguous(), sent, received)
        return back, None, None


class TableShard:
    """This process's rows of one table: an equal range of consecutive rows.

    Except between `fill` and `empty`, the model holds an empty tensor in place of the table.

    Args:
        parameter: [R, ...] the whole table, the same on every process; it no longer requires a
            gradient.
        processes: the processes that share the table.
        is_dense: True if every row gets a gradient in a step; False if only the rows that a batch
            looks up do.

    Attributes:
        num_rows: R.
        rows: range of this process's rows in the table.
        values: [r, D] this process's rows.
        lookups: collects row gradients; unused if `is_dense`.
    """

    def __init__(self, parameter: nn.Parameter, processes: Processes, is_dense: bool) -> None:
        self._parameter = parameter.requires_grad_(False)
        self._processes = processes
        self.num_rows = parameter.shape[0]
        self._size = -(-self.num_rows // processes.world_size)
        start = min(processes.rank * self._size, self.num_rows)
        self.rows = range(start, min(start + self._size, self.num_rows))
        own = self.own(parameter.detach().view(self.num_rows, -1)).clone()
        self.values = nn.Parameter(own, requires_grad=is_dense)
        self.lookups = RowLookups()
        self.empty()

    def request(self, rows: Tensor) -> _Request:
        """Sends [L] int64 row numbers to the processes that hold the rows."""
        owners = rows // self._size
        order = torch.argsort(owners, stable=True)
        sent = torch.bincount(owners, minlength=self._processes.world_size)
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent)
        sizes = (received.tolist(), sent.tolist())
        wanted = rows.new_empty(sum(sizes[0]))
        dist.all_to_all_single(wanted, rows[order], *sizes)
        return _Request(wanted - self.rows.start, order, sizes[1], sizes[0])

    def lookup(self, rows: Tensor) -> Tensor:
        """Maps [L] int64 row numbers to [L, D], with row gradients."""
        request = self.request(rows)
        if not torch.is_grad_enabled():
            return request.answer(F.embedding(request.rows, self.values))
        anchor = self.lookups.anchor(request.rows, self.values.shape[1], self.values.dtype)
        vectors = ops.embedding_gather(self.values, request.rows, self.values.dtype, anchor=anchor)
        return request.answer(vectors)

    def lookup_before_head(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Returns ([L, D], this process's rows); see `lookup_before_head`."""
        request = self.request(rows)
        vectors, table = lookup_before_head(self.values, request.rows)
        return request.answer(vectors), table

    def gradients(self, table: int) -> list[RowGradients]:
        """Returns the gradients of the last backward, for a table number, and clears them."""
        if not self.values.requires_grad:
            return self.lookups.take(table)
        gradient, self.values.grad = self.values.grad, None
        rows = torch.arange(len(self.rows), device=self.values.device)
        return [] if gradient is None else [RowGradients(table, rows, gradient)]

    def own(self, whole: Tensor) -> Tensor:
        """Returns this process's rows of the table or of its state."""
        return whole[self.rows.start : self.rows.stop]

    @torch.no_grad()
    def gather(self, own: Tensor) -> Tensor:
        """Joins [r, ...] to [R, ...]; every process must call it."""
        whole = own.new_zeros(self.num_rows, *own.shape[1:])
        self.own(whole).copy_(own)
        return self._processes.sum(whole)

    def fill(self) -> None:
        """Gathers the whole table into the model; every process must call it."""
        whole = self.gather(self.values.detach())
        self._parameter.data = whole.view(-1, *self._parameter.shape[1:])

    @torch.no_grad()
    def take(self) -> None:
        """Copies this process's rows of the model's whole table, after `fill`."""
        self.values.copy_(self.own(self._parameter).view_as(self.values))

    def empty(self) -> None:
        """Frees the whole table."""
        self._parameter.data = self._parameter.new_empty(0, *self._parameter.shape[1:])


class RowShards(nn.Module):
    """A network and its loss, with item tables sharded by rows.

    A sampled loss shards all tables. The full softmax shards only the embedding, whose rows also
    score items if the head is tied.

    Args:
        network: network and loss.
        processes: the processes of the run.

    Attributes:
        shards: this process's rows of the tables `embedding`, `head` and `bias`.
    """

    def __init__(self, network: LossNetwork, processes: Processes) -> None:
        super().__init__()
        self.network = network
        self._processes = processes
        model = network.model
        self._is_tied = model.head.weight is None
        tables: dict[str, nn.Parameter | None] = {_EMBEDDING: model.embedding.items}
        if network.kind != "full":
            tables |= {_HEAD: model.head.weight, _BIAS: model.head.bias}
        is_dense = network.kind == "full" and self._is_tied
        self.shards = {
            name: TableShard(parameter, processes, is_dense)
            for name, parameter in tables.items()
            if parameter is not None
        }

    def forward(self, inputs: LabelledBatch) -> Tensor:
        """Returns this process's mean loss over its targets, a float32 scalar."""
        network, head = self.network, self.network.model.head
        embedding = self.shards[_EMBEDDING]
        if network.kind == "full" and self._is_tied:
            vectors, table = embedding.lookup_before_head(inputs.items)
            # The first row of the whole table is padding, the last one the mask item.
            rows = embedding.rows
            first, stop = max(rows.start, 1), min(rows.stop, embedding.num_rows - 1)
            own = slice(first - rows.start, max(stop, first) - rows.start)
            items = ItemRange(self._processes, first - 1, own)
            hidden, bias = network.hidden(inputs, vectors), network.trained_bias
            return parallel_cross_entropy(
                *(hidden, head.scored(table), bias, inputs.labels - 1, items, inputs.weights)
            )
        candidates, of_candidates = inputs.candidates, None
        vectors = embedding.lookup(inputs.items)
        if candidates is not None:
            scoring = embedding if self._is_tied else self.shards[_HEAD]
            of_candidates = (
                head.scored(scoring.lookup(candidates if self._is_tied else candidates - 1)),
                self.shards[_BIAS].lookup(candidates - 1).squeeze(1),
            )
        return network.loss_of(inputs, vectors, of_candidates)

    def stored_tables(self) -> list[Tensor]:
        """Returns this process's rows of each table."""
        return [shard.values.detach() for shard in self.shards.values()]

    def take_row_gradients(self) -> list[RowGradients]:
        """Returns the gradients of the last backward, and clears them."""
        return [g for i, shard in enumerate(self.shards.values()) for g in shard.gradients(i)]

    def describe(self) -> list[str]:
        """Returns a line per table with its rows."""
        return [
            f"{name}: {shard.num_rows} rows, {len(shard.rows)} on the first process"
            for name, shard in self.shards.items()
        ]

    def fill_tables(self) -> None:
        """Gathers the whole tables into the model; every process must call it."""
        for shard in self.shards.values():
            shard.fill()

    def empty_tables(self) -> None:
        """Frees the whole tables."""
        for shard in self.shards.values():
            shard.empty()
