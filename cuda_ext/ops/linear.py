# SPDX-License-Identifier: Apache-2.0
"""Runs linear layers with a ReLU in fewer passes over memory.

On a CPU the faster library computes the products (see `products`); on a GPU the kernel of the
product applies bias and ReLU. Between two products of backward one kernel computes the gradient of
the ReLU's input and its sums, the gradient of the bias. Traced graphs use torch's own functions.
"""

import contextlib
import contextvars
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from cuda_ext import reference
from cuda_ext.ops.products import (
    is_round,
    linear_in_blocks,
    product,
    takes_onednn,
    transposed_product,
)
from cuda_ext.ops.registration import fake_kernel, is_compiled_for, kernels
from cuda_ext.side_stream import SideStream

_ReluLayers = Sequence[tuple[Tensor, Tensor]]

_ALIGNED_BYTES = 16
"""Tensor cores read rows in vectors of this size; other rows go to slower kernels."""


def linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    relu: bool = False,
) -> Tensor:
    """Maps the rows of a matrix like `torch.nn.functional.linear`, optionally with a ReLU.

    Args:
        x: [B, inputs]; torch's function, the fallback, takes any number of dimensions.
        weight: [outputs, inputs].
        bias: [outputs], or None.
        relu: apply a ReLU to the result.

    Returns:
        [B, outputs].
    """
    if not takes_onednn(x, weight.shape[0]) or weight.dtype != x.dtype:
        x = F.linear(x, weight, bias)
        return torch.relu(x) if relu else x
    tensors = (x, weight) if bias is None else (x, weight, bias)
    if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
        output: Tensor = _Linear.apply(x, weight, bias, relu)  # type: ignore[no-untyped-call]
        return output
    output = linear_in_blocks(x, weight, bias)
    return torch.relu_(output) if relu else output


def takes_perceptron(x: Tensor) -> bool:
    """Returns True if `perceptron` takes an input."""
    tracing = torch.jit.is_tracing()  # type: ignore[attr-defined,no-untyped-call]
    return (
        torch.is_grad_enabled()
        and x.is_cuda
        and x.ndim == 2
        and not tracing
        and not torch.compiler.is_compiling()
        and is_compiled_for(x)
    )


_side_stream: contextvars.ContextVar[SideStream | None] = contextvars.ContextVar(
    "side_stream", default=None
)


@contextlib.contextmanager
def weight_gradients_on(stream: SideStream | None) -> Iterator[None]:
    """Computes the gradients of `perceptron` weights on a side stream.

    These products are bound by the tensor cores, the rest of a recommender's backward pass by
    memory. The gradients of the parameters must be None before backward; after it, the caller joins
    the stream before it reads or frees them. None uses the current stream.
    """
    token = _side_stream.set(stream)
    try:
        yield
    finally:
        _side_stream.reset(token)


def perceptron(x: Tensor, layers: _ReluLayers, *, final_relu: bool) -> Tensor:
    """Runs linear layers with ReLU between them.

    The product of a layer applies its bias and ReLU; in backward one kernel between two products
    masks the gradient and sums that of the bias. (cuBLASLt's epilogue for both, DRELU_BGRAD, runs
    as a separate kernel on an H100 and takes three times as long.) Tensor cores do not help a last
    layer with one output: it has one kernel for forward and one for all its gradients. Runs on a
    GPU, in training. A ReLU keeps a NaN and passes gradients to it.

    Args:
        x: [B, inputs], for which `takes_perceptron` is true.
        layers: weight [outputs, inputs] and bias [outputs] of each layer.
        final_relu: apply a ReLU after the last layer too.

    Returns:
        [B, outputs of the last layer], of autocast's type, or without autocast of the weights'; a
        single output without ReLU is float32.
    """
    flat = [tensor for layer in layers for tensor in layer]
    own = _in_own_type(layers)
    result: Tensor = _DevicePerceptron.apply(x.to(own[0].dtype), final_relu, *flat, *own)  # type: ignore[no-untyped-call]
    return result


def _in_own_type(layers: _ReluLayers) -> list[Tensor]:
    """Casts weights and biases to the type of autocast with one kernel."""
    tensors = [tensor.detach() for layer in layers for tensor in layer]
    dtype = _autocast_dtype()
    return tensors if dtype is None else _cast(tensors, dtype)


def _cast(tensors: Sequence[Tensor], dtype: torch.dtype) -> list[Tensor]:
    copies = [torch.empty_like(tensor, dtype=dtype) for tensor in tensors]
    torch._foreach_copy_(copies, list(tensors))
    return copies


def _autocast_dtype() -> torch.dtype | None:
    return torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else None


for _definition in (
    reference.relu_backward,
    reference.output_layer,
    reference.output_layer_backward,
):
    fake_kernel(_definition.__name__)(_definition)


class _Linear(torch.autograd.Function):
    # oneDNN's own ReLU is not used: it turns a NaN into zero.
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, relu: bool) -> Tensor:
        output = linear_in_blocks(x, weight, bias)
        output = torch.relu_(output) if relu else output
        _, trains_weight, *_ = ctx.needs_input_grad
        ctx.save_for_backward(x if trains_weight else None, weight, output if relu else None)
        return output

    @staticmethod
    def backward(
        ctx: Any, gradient: Tensor
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        x, weight, output = ctx.saved_tensors
        wants_x, wants_weight, wants_bias, _ = ctx.needs_input_grad
        if output is None:
            delta = gradient
            to_weight = transposed_product(delta, x) if wants_weight else None
            to_bias = delta.sum(0) if wants_bias else None
        else:
            takes_transposed = wants_weight and is_round(len(x))
            delta, transposed, sums = kernels.relu_backward(
                gradient.contiguous(), output, takes_transposed
            )
            to_weight = None
            if takes_transposed:
                to_weight = product(transposed, x)
            elif wants_weight:
                to_weight = transposed_product(delta, x)
            to_bias = sums if wants_bias else None
        return product(delta, weight) if wants_x else None, to_weight, to_bias, None


def _padded(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Pads rows with zeros so that kernels read whole vectors."""
    padding = -x.shape[1] % (_ALIGNED_BYTES // x.element_size())
    return (F.pad(x, (0, padding)), F.pad(weight, (0, padding))) if padding else (x, weight)


class _DevicePerceptron(torch.autograd.Function):
    """Linear layers on a GPU; see `perceptron`.

    The gradients of weights are summed in float32 and stay float32.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, final_relu: bool, *tensors: Tensor) -> Tensor:
        count = len(tensors) // 4
        own = list(zip(tensors[2 * count :: 2], tensors[2 * count + 1 :: 2], strict=True))
        ctx.inputs, ctx.exact, ctx.final_relu = x.shape[1], tensors[0].dtype, final_relu
        ctx.side_stream = _side_stream.get()
        inputs, weights = [], []
        x, first = _padded(x, own[0][0])
        own[0] = first, own[0][1]
        for i, (weight, bias) in enumerate(own):
            inputs.append(x)
            weights.append(weight)
            is_last = i == count - 1
            if is_last and _is_output_layer(weight, final_relu):
                x = kernels.output_layer(x, weight, bias)
            else:
                relu = final_relu or not is_last
                map_rows = torch._addmm_activation if relu else torch.addmm
                x = map_rows(bias, x, weight.t())
        ctx.save_for_backward(*inputs, *weights, x if final_relu else None)
        return x

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        *saved, output = ctx.saved_tensors
        count = len(saved) // 2
        inputs, weights = saved[:count], saved[count:]
        needed = ctx.needs_input_grad[2 : 2 + 2 * count]
        gradient = gradient.contiguous()
        before: tuple[Tensor, Tensor] | None = None
        to_last_weight: Tensor | None = None
        if _is_output_layer(weights[-1], ctx.final_relu):
            delta = gradient
            of_input, sums = kernels.output_layer_backward(
                gradient, inputs[-1], weights[-1], count > 1
            )
            columns = inputs[-1].shape[1]
            of_columns, to_last_weight, to_bias = sums.split([columns, columns, 1])
            before, to_last_weight = (of_input, of_columns), to_last_weight[None]
        elif ctx.final_relu:
            delta, _, to_bias = kernels.relu_backward(gradient, output, False)
        else:
            delta, to_bias = gradient, gradient.sum(0, dtype=ctx.exact)
        deltas, to_biases = [delta], [to_bias]
        for i in reversed(range(1, count)):
            if before is None:
                after = torch.mm(deltas[0], weights[i])
                of_input, _, sums = kernels.relu_backward(after, inputs[i], False)
                before = of_input, sums
            deltas.insert(0, before[0])
            to_biases.insert(0, before[1])
            before = None
        to_x = None
        if ctx.needs_input_grad[0]:
            to_x = torch.mm(deltas[0], weights[0]) if before is None else before[0]
            to_x = to_x[:, : ctx.inputs]
        to_weights: list[Tensor | None] = [*[None] * (count - 1), to_last_weight]
        to_weights, to_biases = _in_type(ctx.exact, to_weights), _in_type(ctx.exact, to_biases)
        missing = [i for i in range(count) if needed[2 * i] and to_weights[i] is None]
        stream = ctx.side_stream if missing else None
        with stream.after(*inputs, *deltas) if stream else contextlib.nullcontext():
            for i in missing:
                to_weights[i] = _product_in(ctx.exact, deltas[i].t(), inputs[i])
            if to_weights[0] is not None and to_weights[0].shape[1] != ctx.inputs:
                to_weights[0] = to_weights[0][:, : ctx.inputs].contiguous()
        to_parameters = (t for pair in zip(to_weights, to_biases, strict=True) for t in pair)
        return to_x, None, *to_parameters, *[None] * (2 * count)


def _is_output_layer(weight: Tensor, relu: bool) -> bool:
    return len(weight) == 1 and not relu


def _in_type(dtype: torch.dtype, tensors: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Converts the tensors that have another type, with one kernel."""
    others = [t for t in tensors if t is not None and t.dtype != dtype]
    if not others:
        return list(tensors)
    left = iter(_cast(others, dtype))
    return [next(left) if t is not None and t.dtype != dtype else t for t in tensors]


def _product_in(dtype: torch.dtype, a: Tensor, b: Tensor) -> Tensor:
    return torch.mm(a, b) if a.dtype == dtype else torch.mm(a, b, out_dtype=dtype)
