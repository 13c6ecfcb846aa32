# SPDX-License-Identifier: Apache-2.0
"""Loads the compiled kernels; without them the ops run in plain PyTorch."""

import functools
import warnings
from pathlib import Path
from typing import Literal

import torch

from recsys.installation import command_for

KERNELS = Path(__file__).with_name("_kernels.so")
NAMESPACE = "cuda_ext"


def _load() -> str | None:
    if not KERNELS.exists():
        return f"they are not built: {command_for('kernels')} builds them"
    try:
        torch.ops.load_library(KERNELS)  # type: ignore[no-untyped-call]
    except OSError as error:
        return (
            f"they do not load into torch {torch.__version__} ({error}); rebuild them: "
            f"{command_for('kernels')}"
        )
    return None


LOAD_ERROR = _load()
"""None, or why the compiled kernels cannot be used and what to do."""

COMPILED_FOR = frozenset(
    device_type
    for device_type in ("cpu", "cuda")
    if LOAD_ERROR is None
    and torch._C._dispatch_has_kernel_for_dispatch_key(
        f"{NAMESPACE}::dot_interaction", device_type.upper()
    )
)
"""Device types for which the kernels are compiled: "cpu", "cuda"."""


def why_not_compiled(device_type: str) -> str:
    """Returns why compiled kernels are missing, and how to get them."""
    without_cuda = f"they were built without CUDA; with nvcc, run {command_for('cuda kernels')}"
    return LOAD_ERROR or (
        without_cuda if device_type == "cuda" else f"none exist for {device_type}"
    )


@functools.cache
def _warn_once(device_type: str) -> None:
    warnings.warn(
        f"cuda_ext runs in plain PyTorch on {device_type}, without compiled kernels: "
        f"{why_not_compiled(device_type)}",
        RuntimeWarning,
        stacklevel=4,
    )


def path_of(device_type: str) -> Literal["compiled", "reference"]:
    """Returns the implementation for a device type; warns once if kernels are missing."""
    if device_type in COMPILED_FOR:
        return "compiled"
    if not torch.compiler.is_compiling():
        _warn_once(device_type)
    return "reference"
