# SPDX-License-Identifier: Apache-2.0
"""Multiplies matrices with the faster library in torch.

On a CPU torch multiplies float32 matrices with MKL, which does not use the 512-bit vectors of
processors from makers other than Intel. oneDNN, in the same binary, does: it reaches twice the
operations per second on an AMD EPYC (Zen 5). On other processors, for other types and devices and
in traced graphs these are torch's own functions.
"""

import torch
from torch import Tensor

from cuda_ext import library
from cuda_ext.ops.registration import fake_kernel, kernels

_FEWEST_OPERATIONS = 1 << 20
"""Multiplications below which calling oneDNN takes longer than it saves."""

_FEWEST_SUMMED = 64
"""Length of sums below which writing and adding results takes longer than oneDNN saves."""

_MANY_ROWS = 512
"""Rows of a transposed product from which our own kernel, which transposes nothing, is faster."""

_VECTOR = 8
"""Columns that fill the narrowest vector of our kernel."""

_LARGEST_BLOCK, _SMALLEST_BLOCK = 1024, 256
"""Rows of the blocks, powers of two, of matrices whose number of rows is not round."""

CPU_IS_INTEL = "cpu" in library.COMPILED_FOR and bool(kernels.cpu_is_intel())
"""Whether the processor is from Intel; False too if the kernels are not compiled."""

_HAS_WIDER = (
    "cpu" in library.COMPILED_FOR
    and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    and torch.backends.mkl.is_available()  # type: ignore[no-untyped-call]
    and kernels.cpu_instruction_set() == "avx512"
    and not CPU_IS_INTEL
)


def has_wider_products() -> bool:
    """Returns True if oneDNN uses wider vectors than MKL here."""
    return _HAS_WIDER


def is_round(rows: int) -> bool:
    """Returns True if oneDNN multiplies this number of rows in one call.

    oneDNN generates code for each size, in a millisecond, and keeps it, in a MiB: batches of
    arbitrary numbers of tokens would fill the memory. Only powers of two times 1, 3, 5 or 7 are
    round. Other matrices are multiplied in blocks, their last rows by MKL.
    """
    return rows < 8 * (rows & -rows)


def product(a: Tensor, b: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Multiplies two matrices of the same type and any strides, without gradients.

    Args:
        a: [M, K].
        b: [K, N].
        out: [M, N] to write to; None makes a new tensor.

    Returns:
        [M, N]; `out` if given.
    """
    if not takes_onednn(a, b.shape[1]) or b.dtype != a.dtype:
        return torch.mm(a, b, out=out)
    return linear_in_blocks(a, b.t(), None, out)


def transposed_product(a: Tensor, b: Tensor) -> Tensor:
    """Multiplies the transpose of a [K, M] with b [K, N].

    Contiguous rows are faster. The result may be a transposed view.
    """
    result = _faster_transposed_product(a, b)
    return a.t() @ b if result is None else result


def add_transposed_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """Adds the product of `transposed_product` to `total`."""
    result = _faster_transposed_product(a, b) if a.shape[0] >= _FEWEST_SUMMED else None
    if result is None:
        total.addmm_(a.t(), b)
    else:
        total += result


def _faster_transposed_product(a: Tensor, b: Tensor) -> Tensor | None:
    rows, columns = a.shape
    if not takes_onednn(a, b.shape[1]) or b.dtype != a.dtype:
        return None
    has_vectors = a.stride(1) == 1 and b.stride(1) == 1 and b.shape[1] % _VECTOR == 0
    if rows >= _MANY_ROWS and has_vectors:
        summed: Tensor = kernels.transposed_product(a, b)
        return summed
    if not is_round(rows):
        return None
    # oneDNN copies what it transposes: choose the narrower matrix, or the result if it is small.
    if columns > b.shape[1] and rows > columns:
        return _onednn_linear(b.t(), a.t(), None).t()
    return _onednn_linear(a.t(), b.t(), None)


def takes_onednn(x: Tensor, columns: int) -> bool:
    """Returns True if oneDNN multiplies `x` by a matrix with `columns` columns."""
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


def linear_in_blocks(
    x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor | None = None
) -> Tensor:
    """Maps the rows of a matrix with oneDNN, in blocks.

    Args:
        x: [B, inputs] float32.
        weight: [outputs, inputs].
        bias: [outputs], or None.
        out: [B, outputs] to write to; None makes a new tensor.
    """
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
