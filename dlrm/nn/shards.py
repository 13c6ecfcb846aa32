# SPDX-License-Identifier: Apache-2.0
"""Sums over a batch in an order that does not depend on the number of processes.

A batch is cut into `NUM_SHARDS` shards. Each is summed by itself, and the sums of the shards are
added in pairs, then the sums of the pairs. A process that has an aligned part of the shards
computes a whole branch of this tree, and adding the branches of all processes completes it.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

NUM_SHARDS = 4
"""Shards of a batch, and so the most processes of such a run. With more of them, each gradient of a
weight would be written and added more often."""

_independent: dict[tuple[int, ...], bool] = {}
"""Whether rows of a product of these sizes have the bits of the same rows in smaller products."""
_by_any_threads: dict[tuple[int, ...], bool] = {}
"""Whether a product of these sizes has the bits of one thread.

In MKL's strict mode all have; some do not on processors that lack this mode.
"""


def batch_bounds(num_rows: int, parts: int) -> list[int]:
    """Returns [parts + 1] bounds of the parts of a batch, whose sizes differ by at most one.

    The batch is halved as often as `parts` is even, so parts of a part are parts of the batch: the
    four parts of the first of two are the first four of eight.
    """
    if parts % 2 == 0:
        half = num_rows - num_rows // 2
        first, second = (batch_bounds(rows, parts // 2) for rows in (half, num_rows - half))
        return [*first, *(half + bound for bound in second[1:])]
    sizes = [num_rows // parts + (part < num_rows % parts) for part in range(parts)]
    return [sum(sizes[:part]) for part in range(parts + 1)]


def shards_of(tensor: Tensor, parts: int) -> list[Tensor]:
    """Returns views of the rows of each part of a batch."""
    bounds = batch_bounds(len(tensor), parts)
    return [tensor[bounds[i] : bounds[i + 1]] for i in range(parts)]


def tree_sum(parts: Sequence[Tensor]) -> Tensor:
    """Adds the sums of shards, a power of two, in pairs; without gradients it may change them."""
    while len(parts) > 1:
        parts = [_sum(parts[i], parts[i + 1]) for i in range(0, len(parts), 2)]
    return parts[0]


def _sum(first: Tensor, second: Tensor) -> Tensor:
    return first + second if torch.is_grad_enabled() else first.add_(second)


def product_in_shards(a: Tensor, b: Tensor, num_shards: int, bias: Tensor | None = None) -> Tensor:
    """Multiplies matrices; each row has the bits that it has in the product of its shard.

    One product is enough where the library computes a row without regard to the others. This is
    tried once for each size; elsewhere, each shard has a product of its own.

    Args:
        a: [b, K], this process' part of a batch.
        b: [K, N].
        num_shards: shards in this part.
        bias: [N] to add; None adds nothing.

    Returns:
        [b, N].
    """
    size = (*a.shape, b.shape[1], *b.stride(), num_shards, bias is not None)
    if size not in _independent:
        drawn = torch.randn(a.shape, dtype=a.dtype, generator=torch.Generator().manual_seed(0))
        each = torch.cat([_product(rows, b, bias) for rows in shards_of(drawn, num_shards)])
        _independent[size] = torch.equal(_product(drawn, b, bias), each)
    if _independent[size]:
        return _product(a, b, bias)
    return torch.cat([_product(rows, b, bias) for rows in shards_of(a, num_shards)])


def _product(a: Tensor, b: Tensor, bias: Tensor | None) -> Tensor:
    """Multiplies with all threads if that has the bits of one thread, and otherwise with one."""
    threads = torch.get_num_threads()
    size = (*a.shape, *a.stride(), b.shape[1], *b.stride(), bias is not None, threads)
    if threads > 1 and size not in _by_any_threads:
        generator = torch.Generator().manual_seed(0)
        first, second = _drawn_like(a, generator), _drawn_like(b, generator)
        of_all = _library_product(first, second, bias)
        _by_any_threads[size] = torch.equal(of_all, _of_one_thread(first, second, bias))
    if threads == 1 or _by_any_threads[size]:
        return _library_product(a, b, bias)
    return _of_one_thread(a, b, bias)


def _drawn_like(tensor: Tensor, generator: torch.Generator) -> Tensor:
    drawn = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
    return drawn.copy_(torch.randn(tensor.shape, dtype=tensor.dtype, generator=generator))


def _of_one_thread(a: Tensor, b: Tensor, bias: Tensor | None) -> Tensor:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _library_product(a, b, bias)
    finally:
        torch.set_num_threads(threads)


def _library_product(a: Tensor, b: Tensor, bias: Tensor | None) -> Tensor:
    return torch.mm(a, b) if bias is None else torch.addmm(bias, a, b)


def linear_in_shards(
    x: Tensor, weight: Tensor, bias: Tensor | None, num_shards: int, *, relu: bool = False
) -> Tensor:
    """Computes `ops.linear` for each shard of the rows; the gradients are sums in a tree.

    Args:
        x: [b, inputs] float32, this process' part of a batch.
        weight: [outputs, inputs].
        bias: [outputs], or None.
        num_shards: shards in this part.
        relu: apply a ReLU to the result.

    Returns:
        [b, outputs].
    """
    output: Tensor = _LinearInShards.apply(x, weight, bias, num_shards, relu)  # type: ignore[no-untyped-call]
    return output


class _LinearInShards(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, num_shards: int, relu: bool
    ) -> Tensor:
        output = product_in_shards(x, weight.t(), num_shards, bias)
        if relu:
            torch.relu_(output)
        ctx.num_shards, ctx.has_bias = num_shards, bias is not None
        ctx.save_for_backward(x, weight, output if relu else None)
        return output

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, output = ctx.saved_tensors
        delta = gradient.contiguous()
        if output is not None:
            delta = torch.ops.aten.threshold_backward(delta, output, 0)
        deltas, inputs = shards_of(delta, ctx.num_shards), shards_of(x, ctx.num_shards)
        to_x = None
        if ctx.needs_input_grad[0]:
            to_x = product_in_shards(delta, weight, ctx.num_shards)
        pairs = zip(deltas, inputs, strict=True)
        to_weight = tree_sum([_product(of_rows.t(), rows, None) for of_rows, rows in pairs])
        to_bias = tree_sum([of_rows.sum(0) for of_rows in deltas]) if ctx.has_bias else None
        return to_x, to_weight, to_bias, None, None
