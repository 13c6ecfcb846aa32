# SPDX-License-Identifier: Apache-2.0
"""Device and precision of a run: autocast, loss scale, overflow flag."""

import contextlib
import dataclasses
import functools
import logging
import math
import platform
from collections.abc import Sequence

import torch
from torch import Tensor

from cuda_ext import ops
from recsys.errors import UserError
from recsys.train.optimizers import AmpDtype

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Precision:
    """Precision settings of a step.

    Attributes:
        device_type: `cuda` or `cpu`.
        dtype: dtype of matrix products; None computes everything in float32.
        loss_scale: factor of the loss and divisor of the gradients; 1 turns scaling off. float16
            needs scaling (its smallest normal number is 6e-5), bfloat16 does not.
    """

    device_type: str
    dtype: torch.dtype | None = None
    loss_scale: float = 1.0

    def autocast(self) -> contextlib.AbstractContextManager[object]:
        """Returns the autocast context of the forward pass."""
        if self.dtype is None:
            return contextlib.nullcontext()
        return torch.autocast(self.device_type, dtype=self.dtype)

    def find_overflow(
        self, gradients: Sequence[Tensor], flags: Sequence[Tensor] = ()
    ) -> Tensor | None:
        """Checks the gradients for overflow, without waiting for the device.

        Args:
            gradients: gradients that nothing has checked yet.
            flags: scalar bool tensors, True where other gradients overflow.

        Returns:
            Scalar bool tensor with which every optimizer skips the step; None without loss scale or
            gradients.
        """
        if self.loss_scale == 1.0:
            return None
        # One call for each dtype: for mixed dtypes PyTorch launches a kernel for every tensor.
        norms = [
            torch.stack(torch._foreach_norm([g for g in gradients if g.dtype == dtype], math.inf))
            for dtype in dict.fromkeys(g.dtype for g in gradients)
        ]
        if norms:
            infinite = ~torch.isfinite(torch.cat([n.to(torch.float32) for n in norms])).all()
            flags = [infinite, *flags]
        return functools.reduce(torch.logical_or, flags) if flags else None


def resolve_precision(
    device: torch.device, amp: bool, amp_dtype: AmpDtype, loss_scale: float
) -> Precision:
    """Chooses a precision that the device computes fast; logs each change.

    On a CPU without bfloat16 instructions, bfloat16 takes 9 (forward) to 44 (step) times as long as
    float32; with those of AVX-512 on an Intel processor, a step takes 1.6 times as long. No CPU
    computes float16 fast.
    """
    if not amp:
        return Precision(device_type=device.type)
    if device.type == "cpu":
        if not _cpu_gains_by_bfloat16():
            logger.warning(
                "`amp`: bfloat16 is not faster than float32 on this CPU; computing in float32"
            )
            return Precision(device_type=device.type)
        if amp_dtype == "float16":
            logger.warning("`amp_dtype` float16 is slow on a CPU; computing in bfloat16")
        return Precision(device_type=device.type, dtype=torch.bfloat16)
    if amp_dtype == "bfloat16":
        return Precision(device_type=device.type, dtype=torch.bfloat16)
    return Precision(device_type=device.type, dtype=torch.float16, loss_scale=loss_scale)


def set_tf32(device: torch.device, wanted: bool) -> None:
    """Turns TF32 for products of float32 matrices on or off; warns on other devices than GPUs.

    Products of the network and the dot interaction then keep 8 bits of exponent and 10 of mantissa;
    sums stay in float32. NVIDIA's published float32 figures on GPUs use TF32.
    """
    if wanted and device.type != "cuda":
        logger.warning("`tf32` only works on GPUs; computing in float32")
        return
    matmul = torch.backends.cuda.matmul
    if wanted or matmul.fp32_precision == "tf32":  # an earlier run of the process may have set it
        matmul.fp32_precision = "tf32" if wanted else "ieee"


def _cpu_gains_by_bfloat16() -> bool:
    """Returns whether products of bfloat16 are faster than those of float32.

    They are with AMX, and with the instructions of AVX-512 on other processors than Intel's, whose
    two units for float32 do as much as the one for bfloat16.
    """
    if platform.machine() not in ("x86_64", "AMD64"):
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    if torch.cpu._is_amx_tile_supported():
        return True
    return bool(torch.cpu._is_avx512_bf16_supported()) and not ops.CPU_IS_INTEL


def resolve_device(base_device: str) -> torch.device:
    """Returns the device of a run.

    Raises:
        UserError: `cuda` without a CUDA device.
    """
    if base_device == "auto":
        base_device = "cuda" if torch.cuda.is_available() else "cpu"
    if base_device == "cuda" and not torch.cuda.is_available():
        raise UserError(
            "`base_device` cuda: this machine (or this build of torch) has no CUDA device; "
            "use `base_device` auto or cpu",
            setting="base_device",
        )
    return torch.device(base_device)
