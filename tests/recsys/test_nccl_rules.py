# SPDX-License-Identifier: Apache-2.0
"""Collectives that gloo takes and NCCL does not are refused in tests."""

import pytest
import torch
import torch.distributed as dist

from tests.harness import run_ranks

pytestmark = pytest.mark.multiprocess


def sum_and_exchange(rank: int) -> None:
    dist.all_reduce(torch.full((4,), float(rank)))
    dist.all_to_all_single(torch.zeros(2), torch.zeros(2))


def broadcast_halves(_: int) -> None:
    dist.broadcast(torch.zeros(2, dtype=torch.int16), 0)


def sum_a_transpose(_: int) -> None:
    dist.all_reduce(torch.zeros(3, 2).t())


def sum_in_two_orders(rank: int) -> None:
    """Both sums have as many bytes, so gloo does not notice."""
    for dtype in (torch.int32, torch.float32)[:: 1 if rank else -1]:
        dist.all_reduce(torch.zeros(4, dtype=dtype))


def test_what_nccl_takes_passes():
    run_ranks(2, sum_and_exchange)


@pytest.mark.parametrize("fault", [broadcast_halves, sum_a_transpose, sum_in_two_orders])
def test_what_fails_or_hangs_in_nccl_is_refused(fault):
    run_ranks(2, fault, status=1)
