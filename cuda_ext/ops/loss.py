# SPDX-License-Identifier: Apache-2.0
"""Binary cross entropy; on a GPU one pass computes its gradient too."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from cuda_ext import reference
from cuda_ext.ops.registration import fake_kernel, is_compiled_for, kernels


def binary_cross_entropy(logits: Tensor, labels: Tensor, num_samples: int | None = None) -> Tensor:
    """Returns the mean binary cross entropy of logits.

    Args:
        logits: [B] float32; torch's function, the fallback, takes other types and shapes.
        labels: [B] float32, 0 to 1.
        num_samples: divisor of the sum, if this is part of a larger batch; None for B.

    Returns:
        Scalar loss.
    """
    compiled = (
        logits.is_cuda
        and logits.dtype == labels.dtype == torch.float32
        and len(logits) > 0
        and logits.is_contiguous()
        and labels.is_contiguous()
        and not torch.compiler.is_compiling()
        and is_compiled_for(logits)
    )
    if compiled:
        divisor = len(logits) if num_samples is None else num_samples
        loss: Tensor = _BinaryCrossEntropy.apply(logits, labels, divisor)  # type: ignore[no-untyped-call]
        return loss
    if num_samples is None:
        return F.binary_cross_entropy_with_logits(logits, labels)
    return F.binary_cross_entropy_with_logits(logits, labels, reduction="sum") / num_samples


class _BinaryCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor, divisor: int) -> Tensor:
        loss: Tensor
        loss, gradient = kernels.cross_entropy(logits, labels, 1 / divisor)
        ctx.save_for_backward(gradient)
        return loss

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None, None]:
        (gradient,) = ctx.saved_tensors
        return gradient * upstream, None, None


fake_kernel("cross_entropy")(reference.cross_entropy)
