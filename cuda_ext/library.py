# SPDX-License-Identifier: Apache-2.0
"""Finds and loads the compiled kernels; without them every op runs its reference."""

import functools
import warnings
from pathlib import Path
from typing import Literal

import torch

KERNELS = Path(__file__).with_name("_kernels.so")
NAMESPACE = "cuda_ext"


@functools.cache
def load_error() -> str | None:
    """Loads the compiled kernels, once.

    Returns:
        None, or why they cannot be used and what to do.
    """
    if not KERNELS.exists():
        return "they are not built: `make build` compiles them, given g++"
    try:
        torch.ops.load_library(KERNELS)  # type: ignore[no-untyped-call]
    except OSError as error:
        return f"they do not load into torch {torch.__version__} ({error}): `make build` again"
    return None


def has_kernels(device_type: str) -> bool:
    """Returns whether compiled kernels take tensors of a device type, `cpu` or `cuda`."""
    return load_error() is None and torch._C._dispatch_has_kernel_for_dispatch_key(
        f"{NAMESPACE}::dot_interaction", device_type.upper()
    )


@functools.cache
def _warn_once(device_type: str) -> None:
    reason = load_error() or "they were built without CUDA: `FORCE_CUDA=1 make build`, given nvcc"
    warnings.warn(
        f"cuda_ext runs in plain PyTorch on {device_type}, without compiled kernels: {reason}",
        RuntimeWarning,
        stacklevel=4,
    )


def path_of(device_type: str) -> Literal["compiled", "reference"]:
    """Returns which implementation tensors of a device type meet; says so once if it is slow."""
    if _has_kernels(device_type):
        return "compiled"
    if not torch.compiler.is_compiling():
        _warn_once(device_type)
    return "reference"


_has_kernels = functools.cache(has_kernels)
