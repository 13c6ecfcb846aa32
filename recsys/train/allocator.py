# SPDX-License-Identifier: Apache-2.0
"""Process-wide memory settings of a training run."""

import ctypes
import os
import sys

_M_TRIM_THRESHOLD = -1
_M_MMAP_MAX = -4


def keep_freed_memory() -> bool:
    """Makes glibc keep freed memory for the next step.

    By default glibc returns each block above 32 MiB to the kernel and faults it in again at the
    next step, page by page: 1.02 to 1.6 times the step time on a CPU. Other software can set the
    same, so a comparison must state which side did.

    Returns:
        False if the C library is not glibc or refused.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(_M_MMAP_MAX, 0)) and bool(mallopt(_M_TRIM_THRESHOLD, 2**31 - 1))


def keep_few_primitives() -> None:
    """Makes oneDNN cache code of few shapes, for batches of varying size.

    By default oneDNN keeps generated code for the last 1,024 shapes, which such a run never meets
    again. It fragments the heap: a third of a GiB in a thousand steps. Call this before the first
    operation of torch.
    """
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "32")
