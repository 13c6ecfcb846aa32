# SPDX-License-Identifier: Apache-2.0
"""Linear layers and matrix products, by the faster library in torch.

torch multiplies float32 matrices on a CPU with MKL, which leaves the 512-bit vectors of processors
of other makers than Intel idle; oneDNN, in the same binary, uses them: twice the operations per
second on an AMD EPYC (Zen 5). On other processors, for other types and devices and in traced graphs
these are torch's own functions.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from cuda_ext import library
from cuda_ext.ops.registration import fake_kernel, kernels

_FEWEST_OPERATIONS = 1 << 20
"""Multiplications below which calling oneDNN takes longer than it saves."""

_FEWEST_SUMMED = 64
"""Length of sums below which writing and adding them takes longer than faster products save."""

_MANY_ROWS = 512
"""Rows of a transposed product from which our kernel is faster, which transposes nothing."""

_VECTOR = 8
"""Columns that fill the narrowest vector of that kernel."""

_LARGEST_BLOCK, _SMALLEST_BLOCK = 1024, 256
"""Rows of the blocks, powers of two, of matrices with other numbers of rows than round ones."""

_HAS_WIDER = (
    "cpu" in library.COMPILED_FOR
    and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    and torch.backends.mkl.is_available()  # type: ignore[no-untyped-call]
    and kernels.cpu_instruction_set() == "avx512"
    and not kernels.cpu_is_intel()
)


def has_wider_products() -> bool:
    """Returns whether oneDNN uses wider vectors than MKL on this processor."""
    return _HAS_WIDER


def is_round(rows: int) -> bool:
    """Returns whether oneDNN multiplies matrices of so many rows in one call.

    oneDNN generates code for each size and keeps it, a MiB and a millisecond: batches of any number
    of tokens would fill the memory. Four sizes for each power of two are round: 1, 3, 5 and 7
    times one. Others go in blocks, the rest to MKL.
    """
    return rows < 8 * (rows & -rows)


def product(
    a: Tensor, b: Tensor, *, bias: Tensor | None = None, out: Tensor | None = None
) -> Tensor:
    """Multiplies two matrices of the same type, without gradients.

    Args:
        a: [M, K], of any strides.
        b: [K, N], of any strides.
        bias: [N] to add to each row.
        out: [M, N] to write to.

    Returns:
        [M, N]; `out` if given.
    """
    if not _takes_onednn(a, b.shape[1]) or b.dtype != a.dtype:
        return torch.mm(a, b, out=out) if bias is None else torch.addmm(bias, a, b, out=out)
    return _linear_in_blocks(a, b.t(), bias, out)


def transposed_product(a: Tensor, b: Tensor) -> Tensor:
    """Multiplies the transpose of a matrix with another, without gradients.

    Args:
        a: [K, M]; faster with contiguous rows, as is b.
        b: [K, N].

    Returns:
        [M, N], contiguous or a transposed view.
    """
    result = _faster_transposed_product(a, b)
    return a.t() @ b if result is None else result


def add_transposed_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """Adds the product of a transposed matrix and another to a matrix.

    Args:
        total: [M, N], changed in place.
        a: [K, M]; faster with contiguous rows, as is b.
        b: [K, N].
    """
    result = _faster_transposed_product(a, b) if a.shape[0] >= _FEWEST_SUMMED else None
    if result is None:
        total.addmm_(a.t(), b)
    else:
        total += result


def _faster_transposed_product(a: Tensor, b: Tensor) -> Tensor | None:
    rows, columns = a.shape
    if not _takes_onednn(a, b.shape[1]) or b.dtype != a.dtype:
        return None
    has_vectors = a.stride(1) == 1 and b.stride(1) == 1 and b.shape[1] % _VECTOR == 0
    if rows >= _MANY_ROWS and has_vectors:
        summed: Tensor = kernels.transposed_product(a, b)
        return summed
    if not is_round(rows):
        return None
    # What is transposed is copied on the way: the narrower one, or the result where that is small.
    if columns > b.shape[1] and rows > columns:
        return _onednn_linear(b.t(), a.t(), None).t()
    return _onednn_linear(a.t(), b.t(), None)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, relu: bool = False) -> Tensor:
    """Maps the rows of a matrix like `torch.nn.functional.linear`.

    Args:
        x: [B, inputs]; any number of dimensions where torch's function runs.
        weight: [outputs, inputs].
        bias: [outputs], or None.
        relu: apply a ReLU to the result.

    Returns:
        [B, outputs].
    """
    if not _takes_onednn(x, weight.shape[0]) or weight.dtype != x.dtype:
        x = F.linear(x, weight, bias)
        return torch.relu(x) if relu else x
    tensors = (x, weight) if bias is None else (x, weight, bias)
    if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
        output: Tensor = _Linear.apply(x, weight, bias, relu)  # type: ignore[no-untyped-call]
        return output
    output = _linear_in_blocks(x, weight, bias)
    return torch.relu_(output) if relu else output


def _takes_onednn(x: Tensor, columns: int) -> bool:
    tracing = torch.jit.is_tracing()  # type: ignore[attr-defined,no-untyped-call]
    return (
        not tracing
        and not torch.compiler.is_compiling()
        and x.dtype == torch.float32
        and x.device.type == "cpu"
        and x.ndim == 2
        and x.numel() * columns >= _FEWEST_OPERATIONS
        and has_wider_products()
        and not torch.is_autocast_enabled("cpu")
    )


def _linear_in_blocks(
    x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor | None = None
) -> Tensor:
    rows = x.shape[0]
    if is_round(rows):
        output = _onednn_linear(x, weight, bias)
        return output if out is None else out.copy_(output)
    if out is None:
        out = x.new_empty(rows, weight.shape[0])
    first = 0
    while rows - first >= _SMALLEST_BLOCK:
        size = min(_LARGEST_BLOCK, 1 << ((rows - first).bit_length() - 1))
        out[first : first + size] = _onednn_linear(x[first : first + size], weight, bias)
        first += size
    if bias is None:
        torch.mm(x[first:], weight.t(), out=out[first:])
    else:
        torch.addmm(bias, x[first:], weight.t(), out=out[first:])
    return out


def _onednn_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    output: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return output


@fake_kernel("transposed_product")
def _(a: Tensor, b: Tensor) -> Tensor:
    return a.new_empty(a.shape[1], b.shape[1])


@fake_kernel("relu_backward")
def _(gradient: Tensor, output: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    rows, columns = gradient.shape
    exact = torch.promote_types(gradient.dtype, torch.float32)
    return (
        gradient.new_empty(rows, columns),
        gradient.new_empty(columns, rows),
        gradient.new_empty(columns, dtype=exact),
    )


class _Linear(torch.autograd.Function):
    # oneDNN's own ReLU is not used: it turns a NaN into zero.
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, relu: bool) -> Tensor:
        output = _linear_in_blocks(x, weight, bias)
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
            delta, transposed, sums = kernels.relu_backward(gradient.contiguous(), output)
            to_weight = None
            if wants_weight and is_round(len(x)):
                to_weight = product(transposed, x)
            elif wants_weight:
                to_weight = transposed_product(delta, x)
            to_bias = sums if wants_bias else None
        return product(delta, weight) if wants_x else None, to_weight, to_bias, None
