# SPDX-License-Identifier: Apache-2.0
"""Settings of memory that a training run applies once, at its start."""

import ctypes
import os
import sys

_M_TRIM_THRESHOLD = -1
_M_MMAP_MAX = -4


def keep_freed_memory() -> bool:
    """Tells glibc to keep freed blocks.

    Otherwise large tensors are faulted in at every step.

    Without it glibc returns each block above 32 MiB to the kernel and faults it in again at the
    next step, page by page: 1.02 to 1.6 times the step time on a CPU. Peers can set the same, so
    a comparison has to say which side did.

    Returns:
        Whether the setting was taken; False where the C library is not glibc.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(_M_MMAP_MAX, 0)) and bool(mallopt(_M_TRIM_THRESHOLD, 2**31 - 1))


def keep_few_primitives() -> None:
    """Tells oneDNN to cache code of few shapes.

    For a run whose batches are of ever other sizes.

    It generates code for each shape that GELU or a batched product meets and keeps that of 1,024,
    which such a run never needs again. They lie between the large blocks of the heap, and holes
    that nothing fits into grew by a third of a GiB in a thousand steps. To be called before the
    first operation of torch.
    """
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "32")
