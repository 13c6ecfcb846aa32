# SPDX-License-Identifier: Apache-2.0
"""Pages of large tensors in CPU memory: their size, and which of them are resident."""

import ctypes
import itertools
import mmap
import sys
from collections.abc import Iterator

import torch
from torch import Tensor

_MADV_RANDOM = 1
_MADV_WILLNEED = 3
_MADV_DONTNEED = 4
_MADV_HUGEPAGE = 14
_HUGE_PAGE = 2 * 1024 * 1024
_SMALL_PAGE = mmap.PAGESIZE
_PIECE = 4 * 1024 * 1024
"""Elements of a piece of a tensor."""


def use_huge_pages(tensor: Tensor) -> Tensor:
    """Requests 2 MiB pages for a large, unwritten CPU tensor; returns it.

    Lookups hit scattered rows of a large embedding table: with pages of 4 KiB almost every one also
    misses the TLB. Gathers and updates become 1.5 to 1.9 times as fast. Does nothing for other
    tensors and on systems other than Linux.
    """
    if not sys.platform.startswith("linux") or tensor.device.type != "cpu":
        return tensor
    start = -(-tensor.data_ptr() // _HUGE_PAGE) * _HUGE_PAGE
    end = (tensor.data_ptr() + tensor.nbytes) // _HUGE_PAGE * _HUGE_PAGE
    if end > start:
        _advise(start, end - start, _MADV_HUGEPAGE)
    return tensor


def expect_random_access(tensor: Tensor) -> Tensor:
    """Makes the use of a row of a file mapping bring in only its own pages; returns the tensor.

    By default, the system reads many pages around one that is used, and treats up to 2 MiB of them
    as one: a table of which few rows are in use would be in memory as a whole.
    """
    _advise_all(tensor, _MADV_RANDOM)
    return tensor


def _is_file(tensor: Tensor) -> bool:
    """Returns True if a tensor is a shared file mapping, as `torch.from_file` makes."""
    return tensor.device.type == "cpu" and tensor.untyped_storage().filename is not None


def pieces(tensor: Tensor) -> Iterator[Tensor]:
    """Yields the elements of a contiguous tensor in order, in pieces: [n] each.

    Of a file mapping, the next piece is read from disk meanwhile, and each piece is removed from
    the process after its use. Its content stays in the file.
    """
    parts = torch.split(tensor.view(-1), _PIECE)
    if not _is_file(tensor):
        yield from parts
        return
    _advise_all(parts[0], _MADV_WILLNEED)
    for part, following in itertools.zip_longest(parts, parts[1:]):
        if following is not None:
            _advise_all(following, _MADV_WILLNEED)
        yield part
        _advise_all(part, _MADV_DONTNEED)


def copy_values(into: Tensor, values: Tensor) -> None:
    """Copies values into a tensor of the same shape; into a file mapping, piece by piece."""
    if not _is_file(into):
        into.copy_(values)
        return
    begin, flat = 0, values.reshape(-1)
    for piece in pieces(into):
        piece.copy_(flat[begin : begin + len(piece)])
        begin += len(piece)


def _advise_all(tensor: Tensor, advice: int) -> None:
    """Gives advice on all pages that a tensor touches."""
    start = tensor.data_ptr() // _SMALL_PAGE * _SMALL_PAGE
    _advise(start, tensor.data_ptr() + tensor.nbytes - start, advice)


def _advise(start: int, num_bytes: int, advice: int) -> None:
    madvise = ctypes.CDLL(None, use_errno=True).madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    madvise(start, num_bytes, advice)  # only advice: a refusal does no harm
