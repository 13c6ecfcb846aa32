# SPDX-License-Identifier: Apache-2.0
"""What the compiled ops need to take part in autograd, torch.compile and torch.export.

The embedding table stays outside autograd: it is read by its rows and updated by its rows. The
gradient of the rows that were looked up leaves through the `anchor`, a leaf of the graph that has
their shape and no memory (`ops.row_gradient_anchor`): after backward, `anchor.grad` is that
gradient. A table that does require a gradient gets a dense one.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch import library as torch_library

from cuda_ext import reference
from cuda_ext.fake_kernels import FAKE_KERNELS


def register(namespace: str) -> None:
    """Registers fake kernels and autograd for the ops of a loaded library.

    Args:
        namespace: of the library under torch.ops.
    """
    ops = getattr(torch.ops, namespace)
    for name, fake in FAKE_KERNELS.items():
        torch_library.register_fake(f"{namespace}::{name}", fake)
    _InteractionAutograd(ops).register(namespace)
    _GatherInteractionAutograd(ops).register(namespace)
    _GatherAutograd(ops).register(namespace)
    _BagAutograd(ops).register(namespace)


class _Autograd:
    """One op's autograd formula; subclasses give `name`, `setup_context` and `backward`."""

    name: str

    def __init__(self, ops: Any) -> None:
        self.ops = ops

    def register(self, namespace: str) -> None:
        torch_library.register_autograd(
            f"{namespace}::{self.name}", self.backward, setup_context=self.setup_context
        )

    def setup_context(self, ctx: Any, inputs: Sequence[Any], output: Tensor) -> None:
        raise NotImplementedError

    def backward(self, ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        raise NotImplementedError

    def dense_gradient(self, table: Tensor, rows: Tensor, gradients: Tensor) -> Tensor:
        """Sums row gradients into a gradient of the whole table, always in the same order."""
        gradients = gradients.reshape(-1, table.shape[1]).contiguous()
        rows = rows.reshape(-1)
        if table.dtype == torch.float64:
            return torch.zeros_like(table).index_add(0, rows, gradients)
        total = torch.zeros_like(table, dtype=torch.float32)
        sorted_rows, positions = self.ops.sort_rows(rows, table.shape[0])
        minus_one, step = total.new_full((), -1.0), total.new_zeros(())
        self.ops.update_rows(
            *(total, None, None, None, sorted_rows, positions, gradients, None, None),
            *(minus_one, step, None, None, "sgd", 0.0, 0.0, 0.0, 0.0, 0),
        )
        return total.to(table.dtype)


class _InteractionAutograd(_Autograd):
    name = "dot_interaction"

    def setup_context(self, ctx: Any, inputs: Sequence[Any], output: Tensor) -> None:  # noqa: ARG002
        features, bottom, ctx.self_interaction, ctx.allow_tf32 = inputs
        ctx.save_for_backward(features, bottom)

    def backward(self, ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        features, bottom = ctx.saved_tensors
        to_features, to_bottom = self.ops.dot_interaction_backward(
            gradient, features, bottom, ctx.self_interaction, ctx.allow_tf32
        )
        wants_features, wants_bottom, *_ = ctx.needs_input_grad
        return (
            to_features if wants_features else None,
            to_bottom if wants_bottom else None,
            None,
            None,
        )


class _GatherInteractionAutograd(_Autograd):
    name = "gather_dot_interaction"

    def setup_context(self, ctx: Any, inputs: Sequence[Any], output: Tensor) -> None:  # noqa: ARG002
        table, rows, bottom, _, ctx.self_interaction, ctx.allow_tf32 = inputs
        ctx.save_for_backward(table, rows, bottom)

    def backward(self, ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        table, rows, bottom = ctx.saved_tensors
        to_vectors, to_bottom = self.ops.gather_dot_interaction_backward(
            gradient, table, rows, bottom, ctx.self_interaction, ctx.allow_tf32
        )
        to_table = None
        if ctx.needs_input_grad[0]:
            to_table = self.dense_gradient(table, rows, to_vectors)
        wanted = zip(ctx.needs_input_grad, (to_table, None, to_bottom, to_vectors), strict=False)
        return *(gradient if needed else None for needed, gradient in wanted), None, None


class _GatherAutograd(_Autograd):
    name = "embedding_gather"

    def setup_context(self, ctx: Any, inputs: Sequence[Any], output: Tensor) -> None:  # noqa: ARG002
        table, rows, _, _ = inputs
        ctx.save_for_backward(table, rows)

    def backward(self, ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        table, rows = ctx.saved_tensors
        to_table = self.dense_gradient(table, rows, gradient) if ctx.needs_input_grad[0] else None
        return to_table, None, gradient if ctx.needs_input_grad[2] else None, None


class _BagAutograd(_Autograd):
    name = "embedding_bag"

    def setup_context(self, ctx: Any, inputs: Sequence[Any], output: Tensor) -> None:  # noqa: ARG002
        table, rows, bag_offsets, scale, _, _ = inputs
        ctx.save_for_backward(table, rows, bag_offsets, scale)

    def backward(self, ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        table, rows, bag_offsets, scale = ctx.saved_tensors
        source = reference.bag_of_lookup(bag_offsets, rows.numel())
        gradient = gradient.contiguous()
        to_table = to_scale = None
        if ctx.needs_input_grad[0]:
            per_lookup = gradient.index_select(0, source)
            if scale is not None:
                per_lookup = per_lookup * scale.unsqueeze(1)
            to_table = self.dense_gradient(table, rows, per_lookup)
        if ctx.needs_input_grad[3]:
            to_scale = self.ops.embedding_bag_scale_backward(gradient, table, rows, source)
        to_anchor = gradient if ctx.needs_input_grad[4] else None
        return to_table, None, None, to_scale, to_anchor, None
