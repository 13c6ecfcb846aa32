# SPDX-License-Identifier: Apache-2.0
"""The ops of the GPU benchmark, with their least traffic and operations."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor

from benchmark.kernels.case import Rotation, id_batches, row_offsets
from benchmark.kernels.ceilings import tf32_matmul
from benchmark.kernels.interaction import interaction_flops
from benchmark.kernels.stopwatch import Work
from cuda_ext import ops, reference
from cuda_ext.row_rules import ROW_RULES

T = TypeVar("T")

DISTRIBUTIONS = ("uniform", "zipf")
VECTOR_TYPES = {
    "float32": torch.float32,
    "tf32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}

NO_BAD_ID = 2**63 - 1


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class OpCase:
    """One op at one size.

    Attributes:
        op: name of the op and its variant.
        batch_size: B.
        dtype: dtype of the vectors.
        work: function that runs the op once.
        num_bytes: least traffic in bytes.
        distribution: distribution of the ids, `uniform` or `zipf`; None without ids.
        flops: number of floating-point operations.
        matmul: dtype or mode whose matrix-product rate limits the operations.
    """

    op: str
    batch_size: int
    dtype: str
    work: Work
    num_bytes: float
    distribution: str | None = None
    flops: float = 0.0
    matmul: str = "float32"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Sizes:
    """Sizes of the inputs and of the measurement.

    Attributes:
        tables: F.
        rows: rows of each table.
        dim: D.
        batch_sizes: all values of B.
        copy_bytes: bytes of the timed copy.
        matmul_size: rows and columns of the timed matrix products.
        repeats: measurements of each case.
        calls: calls per measurement.
    """

    tables: int = 26
    rows: int = 1_000_000
    dim: int = 128
    batch_sizes: tuple[int, ...] = (8192, 32768, 65536)
    copy_bytes: int = 1 << 30
    matmul_size: int = 8192
    repeats: int = 7
    calls: int = 10


def interaction_cases(sizes: Sizes, device: torch.device) -> Iterator[OpCase]:
    """Yields dot_interaction, forward and backward, in each dtype."""
    num_vectors = sizes.tables + 1
    width = reference.interaction_width(num_vectors, sizes.dim)
    for batch in sizes.batch_sizes:
        flops = interaction_flops(batch, num_vectors, sizes.dim)
        for name, dtype in VECTOR_TYPES.items():
            shape = (batch, sizes.tables, sizes.dim)
            vectors = torch.randn(shape, dtype=dtype, device=device)
            bottom = torch.randn(batch, sizes.dim, dtype=dtype, device=device)
            inputs = float(dtype.itemsize * batch * num_vectors * sizes.dim)
            output = float(dtype.itemsize * batch * width)
            yield OpCase(
                op="dot_interaction forward",
                batch_size=batch,
                dtype=name,
                work=_in_mode(name, partial(ops.dot_interaction, vectors, bottom)),
                num_bytes=inputs + output,
                flops=flops,
                matmul=name,
            )
            leaves = (vectors.requires_grad_(), bottom.requires_grad_())
            with _mode(name):
                backward = _backward(ops.dot_interaction(*leaves), leaves)
            yield OpCase(
                op="dot_interaction backward",
                batch_size=batch,
                dtype=name,
                work=_in_mode(name, backward),
                num_bytes=2 * inputs + output,
                flops=2 * flops,
                matmul=name,
            )


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class _Lookups:
    """Batches of lookups: ids and rows [B, F], and mean distinct rows."""

    distribution: str
    batch_size: int
    ids: list[Tensor]
    rows: list[Tensor]
    distinct: float

    @property
    def count(self) -> int:
        return self.rows[0].numel()


def _lookups(sizes: Sizes, device: torch.device) -> Iterator[_Lookups]:
    table_sizes = [sizes.rows] * sizes.tables
    offsets = row_offsets(table_sizes, device)
    for distribution in DISTRIBUTIONS:
        for batch in sizes.batch_sizes:
            ids = id_batches(table_sizes, batch, distribution, device)
            rows = [ops.joint_rows(drawn, offsets, dtype=torch.int32) for drawn in ids]
            distinct = sum(torch.unique(drawn).numel() for drawn in rows) / len(rows)
            yield _Lookups(
                distribution=distribution, batch_size=batch, ids=ids, rows=rows, distinct=distinct
            )


def _table(sizes: Sizes, device: torch.device) -> Tensor:
    return torch.empty(sizes.tables * sizes.rows, sizes.dim, device=device).uniform_(-0.1, 0.1)


def lookup_cases(sizes: Sizes, device: torch.device) -> Iterator[OpCase]:
    """Yields stack_ids, joint_rows, sort_rows, embedding_gather and gather_dot_interaction."""
    table = _table(sizes, device)
    for lookups in _lookups(sizes, device):
        yield from _row_cases(sizes, lookups, device)
        for name, dtype in VECTOR_TYPES.items():
            if name != "tf32":
                yield OpCase(
                    op="embedding_gather",
                    distribution=lookups.distribution,
                    batch_size=lookups.batch_size,
                    dtype=name,
                    work=_in_turns(lookups.rows, partial(_gather, table, dtype)),
                    num_bytes=4 * lookups.count
                    + sizes.dim * (4 * lookups.distinct + dtype.itemsize * lookups.count),
                )
            yield from _fused_cases(sizes, lookups, table, name)


def _gather(table: Tensor, dtype: torch.dtype, rows: Tensor) -> Tensor:
    return ops.embedding_gather(table, rows, dtype)


_ID_TYPES = (torch.int32, torch.int16, torch.int8)


def _row_cases(sizes: Sizes, lookups: _Lookups, device: torch.device) -> Iterator[OpCase]:
    offsets = row_offsets([sizes.rows] * sizes.tables, device)
    # On a GPU the op records a bad id here instead of waiting for the device.
    bad = torch.full((1,), NO_BAD_ID, device=device) if device.type == "cuda" else None
    columns = [ids.t().contiguous() for ids in lookups.ids]
    groups = [
        [of_batch[i :: len(_ID_TYPES)].to(dtype) for i, dtype in enumerate(_ID_TYPES)]
        for of_batch in columns
    ]
    order = [f for i in range(len(_ID_TYPES)) for f in range(sizes.tables)[i :: len(_ID_TYPES)]]
    yield OpCase(
        op="stack_ids",
        distribution=lookups.distribution,
        batch_size=lookups.batch_size,
        dtype="int32",
        work=_in_turns(groups, partial(ops.stack_ids, features=order)),
        num_bytes=sum(group.nbytes for group in groups[0]) + 4 * lookups.count,
    )
    yield OpCase(
        op="joint_rows",
        distribution=lookups.distribution,
        batch_size=lookups.batch_size,
        dtype="int32",
        work=_in_turns(
            lookups.ids,
            partial(ops.joint_rows, offsets=offsets, dtype=torch.int32, bad=bad),
        ),
        num_bytes=(8 + 4) * lookups.count,
    )
    yield OpCase(
        op="sort_rows",
        distribution=lookups.distribution,
        batch_size=lookups.batch_size,
        dtype="int32",
        work=_in_turns(
            lookups.rows, partial(ops.sort_rows, num_table_rows=sizes.rows * sizes.tables)
        ),
        num_bytes=(4 + 4 + 4) * lookups.count,
    )


def _fused_cases(sizes: Sizes, lookups: _Lookups, table: Tensor, name: str) -> Iterator[OpCase]:
    """Yields gather_dot_interaction, forward and backward, in one dtype."""
    dtype, batch = VECTOR_TYPES[name], lookups.batch_size
    bottom = torch.randn(batch, sizes.dim, dtype=dtype, device=table.device)
    width = reference.interaction_width(sizes.tables + 1, sizes.dim)
    flops = interaction_flops(batch, sizes.tables + 1, sizes.dim)
    read = 4 * lookups.count + 4 * sizes.dim * lookups.distinct
    ends = dtype.itemsize * batch * (sizes.dim + width)
    forward = OpCase(
        op="gather_dot_interaction forward",
        distribution=lookups.distribution,
        batch_size=batch,
        dtype=name,
        work=_in_mode(name, _in_turns(lookups.rows, partial(_interact, table, bottom))),
        num_bytes=read + ends,
        flops=flops,
        matmul=name,
    )
    yield forward
    bottom.requires_grad_()
    calls = []
    for rows in lookups.rows:
        anchor = ops.row_gradient_anchor((*rows.shape, sizes.dim), dtype, table.device)
        with _mode(name):
            output = ops.gather_dot_interaction(table, rows, bottom, anchor=anchor)
        calls.append(_backward(output, (bottom, anchor)))
    row_gradients = dtype.itemsize * sizes.dim * (lookups.count + batch)
    yield dataclasses.replace(
        forward,
        op="gather_dot_interaction backward",
        work=_in_mode(name, _in_turns(calls, _call)),
        num_bytes=read + ends + row_gradients,
        flops=2 * flops,
    )


def _interact(table: Tensor, bottom: Tensor, rows: Tensor) -> Tensor:
    return ops.gather_dot_interaction(table, rows, bottom)


def update_cases(sizes: Sizes, device: torch.device) -> Iterator[OpCase]:
    """Yields update_rows of each rule, and SGD by atomic additions."""
    table, one = _table(sizes, device), torch.ones((), device=device)
    for rule, definition in ROW_RULES.items():
        state = ops.row_optimizer_state(rule, table)
        for lookups in _lookups(sizes, device):
            for dtype in (torch.float32, torch.bfloat16):
                gradients = torch.randn(lookups.count, sizes.dim, dtype=dtype, device=device)
                update = _Update(rule, table, state, gradients.mul_(1e-3), one)
                state_bytes = definition.state_bytes_per_row(sizes.dim)
                ordered = OpCase(
                    op=f"update_rows {rule}",
                    distribution=lookups.distribution,
                    batch_size=lookups.batch_size,
                    dtype=str(dtype).removeprefix("torch."),
                    work=_in_turns(update.sort(lookups.rows), update.ordered),
                    num_bytes=(4 + 4 + dtype.itemsize * sizes.dim) * lookups.count
                    + 2 * (4 * sizes.dim + state_bytes) * lookups.distinct,
                )
                yield ordered
                if rule == "sgd":
                    yield dataclasses.replace(
                        ordered,
                        op="sgd_rows_unsorted",
                        work=_in_turns(lookups.rows, update.atomic),
                        num_bytes=ordered.num_bytes - 4 * lookups.count,
                    )


@dataclasses.dataclass(frozen=True, slots=True)
class _Update:
    rule: ops.RowOptimizer
    table: Tensor
    state: dict[str, Tensor]
    gradients: Tensor
    one: Tensor

    def sort(self, batches: Sequence[Tensor]) -> list[tuple[Tensor, tuple[Tensor, Tensor]]]:
        flat = [rows.reshape(-1) for rows in batches]
        return [(rows, ops.sort_rows(rows, self.table.shape[0])) for rows in flat]

    def ordered(self, batch: tuple[Tensor, tuple[Tensor, Tensor]]) -> None:
        self._run(batch[0], batch[1], deterministic=True)

    def atomic(self, rows: Tensor) -> None:
        self._run(rows.reshape(-1), None, deterministic=False)

    def _run(
        self, rows: Tensor, by_row: tuple[Tensor, Tensor] | None, *, deterministic: bool
    ) -> None:
        ops.update_rows(
            self.rule,
            self.table,
            self.state,
            rows,
            self.gradients,
            ops.RowStep(lr=self.one, step=self.one),
            sorted_rows=by_row,
            deterministic=deterministic,
        )


def _call(work: Work) -> object:
    return work()


def _in_turns(items: Sequence[T], function: Callable[[T], object]) -> Work:
    """Returns a function that runs `function` on the next item each time."""
    turns = Rotation(items)
    return lambda: function(turns())


def _backward(output: Tensor, inputs: Sequence[Tensor]) -> Work:
    """Returns a function that runs the backward pass alone."""
    gradient = torch.randn_like(output)
    return lambda: torch.autograd.grad(output, inputs, gradient, retain_graph=True)


def _mode(name: str) -> contextlib.AbstractContextManager[None]:
    return tf32_matmul() if name == "tf32" else contextlib.nullcontext()


def _in_mode(name: str, work: Work) -> Work:
    """Wraps a function to run with TF32, if `name` is `tf32`."""

    def run() -> object:
        with _mode(name):
            return work()

    return run
