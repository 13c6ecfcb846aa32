# SPDX-License-Identifier: Apache-2.0
"""What NCCL asks of collectives and gloo does not: tests on gloo refuse what would fail on GPUs."""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils import _pytree

DTYPES = {
    *(torch.bool, torch.uint8, torch.int8, torch.int32, torch.int64),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
}
"""Types that PyTorch hands to NCCL; int16 is none of them."""

SAME_SIZE = ("all_reduce", "broadcast", "all_gather", "all_gather_into_tensor")
"""Collectives whose tensors have one size on all ranks."""

COLLECTIVES = (*SAME_SIZE, "all_to_all_single", "reduce_scatter_tensor", "reduce", "gather")


@contextlib.contextmanager
def checked_collectives() -> Iterator[list[tuple[object, ...]]]:
    """Checks the tensors of this rank's collectives.

    Yields the collectives called so far: name, sizes if they are the same on all ranks, types.

    Raises:
        AssertionError: a tensor has a type that NCCL lacks or is not contiguous.
    """
    called: list[tuple[object, ...]] = []

    def checked(name: str, collective: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        tensors = [t for t in _pytree.tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
        for tensor in tensors:
            assert tensor.dtype in DTYPES, f"{name}: NCCL has no {tensor.dtype}"
            assert tensor.is_contiguous(), f"{name}: a tensor is not contiguous"
        sizes = [t.numel() for t in tensors] if name in SAME_SIZE else []
        called.append((name, *sizes, *(str(t.dtype) for t in tensors)))
        return collective(*args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        for name in COLLECTIVES:
            collective = getattr(dist, name)
            patch.setattr(dist, name, functools.partial(checked, name, collective))
        yield called


@contextlib.contextmanager
def nccl_rules() -> Iterator[list[tuple[object, ...]]]:
    """Checks the collectives of this rank, and at the end their order on all ranks.

    Yields what `checked_collectives` does.

    Raises:
        AssertionError: as there, or the ranks called collectives in different orders, with which
            NCCL hangs.
    """
    with checked_collectives() as called:
        yield called
        if dist.is_initialized():
            of_ranks: list[Any] = [None] * dist.get_world_size()
            dist.all_gather_object(of_ranks, called)
            for other in of_ranks:
                assert other == called, f"collectives in another order: {other} and {called}"
