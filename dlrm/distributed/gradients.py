# SPDX-License-Identifier: Apache-2.0
"""Sums the gradients of dense parameters over ranks while backward runs."""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dlrm.data.batch import Batch
from dlrm.distributed.exchange import ExchangedLookups
from dlrm.distributed.network import DistributedDlrm


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
            for parameter, total in zip(bucket, torch.split(flat, sizes), strict=True):
                parameter.grad = total.view_as(parameter)
            self._missing[number] = len(bucket)
        self._next = 0


class AllReducedGradients:
    """Gradients and loss of the mean over the samples of all ranks.

    Args:
        model: of this rank.
        freeze_mlps: the MLPs have no gradients.
    """

    def __init__(self, model: DistributedDlrm, *, freeze_mlps: bool = False) -> None:
        bottom = {id(p) for p in model.bottom_mlp.parameters()}
        parameters = [] if freeze_mlps else model.mlp_parameters()
        self._buckets = GradientBuckets(
            [
                [p for p in parameters if id(p) not in bottom],
                [p for p in parameters if id(p) in bottom],
            ]
        )
        self._device = next(model.parameters()).device
        self._loss_summed: dist.Work | None = None

    def loss(self, logits: Tensor, batch: Batch[ExchangedLookups]) -> Tensor:
        """Returns this rank's addend of the mean loss of all samples."""
        losses = torch.nn.functional.binary_cross_entropy_with_logits(
            logits, batch.label, reduction="sum"
        )
        return losses / batch.ids.num_rows

    def sum_loss(self, loss: Tensor) -> Tensor:
        """Starts to sum the ranks' addends; `reduce` waits for the sum."""
        total = loss.clone()
        self._loss_summed = dist.all_reduce(total, async_op=True)
        return total

    def reduce(self) -> None:
        """Replaces this rank's gradients by the sums over all ranks."""
        self._buckets.finish()
        if self._loss_summed is not None:
            self._loss_summed.wait()
            self._loss_summed = None

    def overflow_anywhere(self, overflow: Tensor | None) -> Tensor:
        """Returns a scalar bool tensor: any rank's gradient is inf or nan.

        Args:
            overflow: the same of this rank's gradients; None where it has none.
        """
        # A rank without rows of tables has nothing that overflows, but must hear of the others.
        flag = torch.zeros((), dtype=torch.int32, device=self._device)
        if overflow is not None:
            flag.copy_(overflow)
        dist.all_reduce(flag, dist.ReduceOp.MAX)
        return flag > 0
