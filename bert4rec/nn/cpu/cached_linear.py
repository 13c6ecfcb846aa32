# SPDX-License-Identifier: Apache-2.0
"""Linear layers over many tokens, in blocks that fit a CPU's cache.

MKL multiplies [100,000, 64] with [64, 256] at two thirds of the speed of its blocks of 1,024 rows,
and between the two layers of a feed-forward network each pass over all tokens would go to memory
and back. Other devices, other types and few tokens take PyTorch's own layers.
"""

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bert4rec.config import Activation
from cuda_ext import ops

_ROWS = 1024
"""Rows of a block: at 256 columns a float32 block takes 1 MiB."""


def linear(tokens: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Maps [N, D] to [N, out] like `torch.nn.functional.linear`.

    Args:
        tokens: [N, D].
        weight: [out, D].
        bias: [out].
    """
    if ops.has_wider_products() or not _pays(tokens, weight):
        return ops.linear(tokens, weight, bias)
    output: Tensor = _BlockedLinear.apply(tokens, weight, bias)  # type: ignore[no-untyped-call]
    return output


def feed_forward(
    tokens: Tensor, expand: nn.Linear, contract: nn.Linear, activation: Activation
) -> Tensor:
    """Maps [N, D] through layer, activation and layer to [N, D].

    Args:
        tokens: [N, D].
        expand: first layer, to more columns; with `swiglu` to twice those that `contract` takes.
        contract: second layer, back to D columns.
        activation: activation function between them.
    """
    if not _pays(tokens, expand.weight):
        between = ops.linear(tokens, expand.weight, expand.bias)
        active = activate(between, activation)
        return ops.linear(active, contract.weight, contract.bias)
    output: Tensor = _BlockedFeedForward.apply(  # type: ignore[no-untyped-call]
        tokens, expand.weight, expand.bias, contract.weight, contract.bias, activation
    )
    return output


def activate(between: Tensor, activation: Activation) -> Tensor:
    """Applies an activation function; `swiglu` halves the columns."""
    if activation == "swiglu":
        # Source: Shazeer 2020 (arXiv:2002.05202).
        gate, value = between.chunk(2, dim=1)
        return F.silu(gate) * value
    return F.gelu(between) if activation == "gelu" else F.relu(between)


def _activation_gradient(gradient: Tensor, between: Tensor, activation: Activation) -> Tensor:
    """Returns the gradient of the activation's input from that of its output."""
    if activation == "swiglu":
        gate, value = between.chunk(2, dim=1)
        to_gate = torch.ops.aten.silu_backward(gradient * value, gate)
        return torch.cat([to_gate, gradient * F.silu(gate)], dim=1)
    if activation == "gelu":
        to_between: Tensor = torch.ops.aten.gelu_backward(gradient, between)
    else:
        to_between = torch.ops.aten.threshold_backward(gradient, between, 0)
    return to_between


def _pays(tokens: Tensor, weight: Tensor) -> bool:
    tracing = torch.jit.is_tracing()  # type: ignore[attr-defined,no-untyped-call]
    if tracing or torch.compiler.is_compiling():
        return False  # an exported graph must fit any number of tokens
    return (
        tokens.device.type == "cpu"
        and tokens.dtype == weight.dtype
        and tokens.shape[0] > 2 * _ROWS
        and not torch.is_autocast_enabled("cpu")
    )


def _blocks(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Yields the same rows of each tensor, block by block."""
    for start in range(0, tensors[0].shape[0], _ROWS):
        yield tuple(tensor[start : start + _ROWS] for tensor in tensors)


class _BlockedLinear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: torch.autograd.function.FunctionCtx, tokens: Tensor, weight: Tensor, bias: Tensor
    ) -> Tensor:
        is_frozen = not ctx.needs_input_grad[1]  # type: ignore[attr-defined]
        ctx.save_for_backward(None if is_frozen else tokens, weight)  # type: ignore[arg-type]
        output = tokens.new_empty(tokens.shape[0], weight.shape[0])
        for rows, out in _blocks(tokens, output):
            torch.addmm(bias, rows, weight.t(), out=out)
        return output

    @staticmethod
    def backward(
        ctx: torch.autograd.function.FunctionCtx, gradient: Tensor
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        tokens, weight = ctx.saved_tensors  # type: ignore[attr-defined]
        to_tokens = gradient.new_empty(gradient.shape[0], weight.shape[1])
        if tokens is None:
            for delta, to_rows in _blocks(gradient, to_tokens):
                torch.mm(delta, weight, out=to_rows)
            return to_tokens, None, None
        to_weight = torch.zeros_like(weight)
        to_bias = weight.new_zeros(weight.shape[0])
        for rows, delta, to_rows in _blocks(tokens, gradient, to_tokens):
            torch.mm(delta, weight, out=to_rows)
            to_weight.addmm_(delta.t(), rows)
            to_bias += delta.sum(0)
        return to_tokens, to_weight, to_bias


class _BlockedFeedForward(torch.autograd.Function):
    """Keeps the activation's input; backward recomputes its output."""

    @staticmethod
    def forward(
        ctx: torch.autograd.function.FunctionCtx,
        tokens: Tensor,
        expand: Tensor,
        expand_bias: Tensor,
        contract: Tensor,
        contract_bias: Tensor,
        activation: Activation,
    ) -> Tensor:
        between = []
        output = tokens.new_empty(tokens.shape[0], contract.shape[0])
        for rows, out in _blocks(tokens, output):
            middle = ops.linear(rows, expand, expand_bias)
            active = activate(middle, activation)
            between.append(middle)
            ops.product(active, contract.t(), bias=contract_bias, out=out)
        ctx.save_for_backward(tokens, expand, contract, *between)
        ctx.activation = activation  # type: ignore[attr-defined]
        return output

    @staticmethod
    def backward(
        ctx: torch.autograd.function.FunctionCtx, gradient: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, None]:
        tokens, expand, contract, *between = ctx.saved_tensors  # type: ignore[attr-defined]
        activation: Activation = ctx.activation  # type: ignore[attr-defined]
        to_tokens = torch.empty_like(tokens)
        to_expand, to_contract = torch.zeros_like(expand), torch.zeros_like(contract)
        to_expand_bias = expand.new_zeros(expand.shape[0])
        to_contract_bias = contract.new_zeros(contract.shape[0])
        blocks = _blocks(tokens, gradient, to_tokens)
        for middle, (rows, delta, to_rows) in zip(between, blocks, strict=True):
            ops.add_transposed_product(to_contract, delta, activate(middle, activation))
            to_contract_bias += delta.sum(0)
            inner = _activation_gradient(ops.product(delta, contract), middle, activation)
            ops.add_transposed_product(to_expand, inner, rows)
            to_expand_bias += inner.sum(0)
            ops.product(inner, expand, out=to_rows)
        return to_tokens, to_expand, to_expand_bias, to_contract, to_contract_bias, None
