# SPDX-License-Identifier: Apache-2.0
"""Registers fake kernels and gradients of the ops of a library.

The embedding table stays outside autograd: it is read and updated row by row. The gradient of the
looked-up rows arrives in the `anchor`, a leaf of the graph that has their shape but the memory of
one element (`ops.row_gradient_anchor`): after backward, `anchor.grad` is that gradient. A table
that requires a gradient gets a dense one.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch import library as torch_library

from cuda_ext import library

kernels: Any = torch.ops.cuda_ext
"""The compiled ops, for CPU tensors and, if built with CUDA, for CUDA tensors."""

FakeKernel = TypeVar("FakeKernel", bound=Callable[..., Any])
SetupContext = Callable[[Any, Sequence[Any], Any], None]
Gradient = Callable[..., tuple[Any, ...]]

_fake_kernels: dict[str, Callable[..., Any]] = {}
_gradients: dict[str, tuple[SetupContext, Gradient]] = {}


def is_compiled_for(tensor: Tensor, dtype: torch.dtype | None = None) -> bool:
    """Returns True if compiled kernels take a tensor and give results of `dtype`.

    None is the type of the tensor. Kernels take float16 only on GPUs, and float64 nowhere: it is
    for the reference.
    """
    if is_narrow(tensor, dtype) or torch.float64 in (tensor.dtype, dtype):
        return False
    return library.path_of(tensor.device.type) == "compiled"


def is_narrow(tensor: Tensor, dtype: torch.dtype | None = None) -> bool:
    """Returns True if a tensor is float16 on a CPU."""
    return tensor.device.type == "cpu" and (dtype or tensor.dtype) == torch.float16


def allow_tf32(tensor: Tensor) -> bool:
    """Returns True if PyTorch's settings allow products of float32 in TF32."""
    # fp32_precision also reflects the older allow_tf32, which raises once fp32_precision was set.
    return tensor.is_cuda and torch.backends.cuda.matmul.fp32_precision == "tf32"


def fake_kernel(*ops: str) -> Callable[[FakeKernel], FakeKernel]:
    """Marks a function that returns an op's results without data, for tracing."""

    def remember(function: FakeKernel) -> FakeKernel:
        _fake_kernels.update(dict.fromkeys(ops, function))
        return function

    return remember


def gradient(op: str, setup_context: SetupContext) -> Callable[[Gradient], Gradient]:
    """Marks an op's backward function: (compiled ops, context, gradient of each output).

    `setup_context` gets the context, the inputs and the output, and keeps what backward needs.
    """

    def remember(function: Gradient) -> Gradient:
        _gradients[op] = setup_context, function
        return function

    return remember


def register(namespace: str) -> None:
    """Registers fake kernels and gradients for the ops of a library."""
    ops = getattr(torch.ops, namespace)
    for op, function in _fake_kernels.items():
        if hasattr(ops, op):  # the emulated CUDA kernels lack ops that only CPUs have
            torch_library.register_fake(f"{namespace}::{op}", function)
    for op, (setup_context, backward) in _gradients.items():
        if not hasattr(ops, op):
            continue
        torch_library.register_autograd(
            f"{namespace}::{op}",
            partial(backward, ops),
            setup_context=setup_context,
        )
