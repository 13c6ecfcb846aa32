# SPDX-License-Identifier: Apache-2.0
"""Sums the gradients of dense parameters over the ranks, bucket by bucket, while backward runs."""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn


class GradientBuckets:
    """The gradients of parameters that every rank has.

    A bucket leaves as soon as backward has reached all of its parameters; nothing waits for it
    until `finish`.

    Args:
        buckets: parameters that travel together, in the order in which backward reaches them.
    """

    def __init__(self, buckets: Sequence[Sequence[nn.Parameter]]) -> None:
        self._buckets = [list(bucket) for bucket in buckets if bucket]
        self._missing = [len(bucket) for bucket in self._buckets]
        self._flat: dict[int, tuple[Tensor, dist.Work]] = {}
        self._next = 0
        for number, bucket in enumerate(self._buckets):
            for parameter in bucket:
                parameter.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                    lambda _parameter, number=number: self._arrived(number)
                )

    def _arrived(self, number: int) -> None:
        self._missing[number] -= 1
        # All ranks must send in one order, whatever the order in which their buckets fill.
        while self._next < len(self._buckets) and self._missing[self._next] <= 0:
            self._send(self._next)
            self._next += 1

    def _send(self, number: int) -> None:
        gradients = [
            torch.zeros_like(p) if p.grad is None else p.grad for p in self._buckets[number]
        ]
        flat = torch.cat([g.reshape(-1) for g in gradients])
        work = dist.all_reduce(flat, async_op=True)
        assert work is not None
        self._flat[number] = (flat, work)

    @torch.no_grad()
    def finish(self) -> None:
        """Waits for the sums and puts them where the gradients were."""
        for number in range(self._next, len(self._buckets)):
            self._send(number)
        for number, bucket in enumerate(self._buckets):
            flat, work = self._flat.pop(number)
            work.wait()
            sizes = [p.numel() for p in bucket]
            for parameter, part in zip(bucket, torch.split(flat, sizes), strict=True):
                parameter.grad = part.view_as(parameter)
            self._missing[number] = len(bucket)
        self._next = 0
