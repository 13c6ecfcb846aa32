# SPDX-License-Identifier: Apache-2.0
"""All-reduces the loss and dense gradients while backward runs."""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dlrm.data.batch import Batch
from dlrm.distributed.exchange import ExchangedLookups
from dlrm.distributed.network import DistributedDlrm
from dlrm.model.network import loss_in_shards, sum_of_losses
from dlrm.nn.shards import tree_sum


class _SumOfRanks:
    """A sum of a tensor over the ranks, in progress.

    Args:
        own: tensor of this rank; without `in_tree`, it becomes the sum.
        in_tree: gather the tensors and add them in a tree, see `dlrm.nn.shards`, instead of in the
            order of the collective, which depends on the number of ranks.
    """

    def __init__(self, own: Tensor, in_tree: bool) -> None:
        self._parts = [own]
        if in_tree:
            self._parts = [torch.empty_like(own) for _ in range(dist.get_world_size())]
            work = dist.all_gather(self._parts, own, async_op=True)
        else:
            work = dist.all_reduce(own, async_op=True)
        assert work is not None
        self._work = work

    def wait(self) -> Tensor:
        """Returns the sum."""
        self._work.wait()
        return tree_sum(self._parts)


class GradientBuckets:
    """All-reduces the gradients of data-parallel parameters in buckets.

    The all-reduce of a bucket starts as soon as all its gradients are complete. Between `hold` and
    `release`, none starts. `finish` waits for all.

    Args:
        buckets: parameters reduced together, in the order in which backward completes them.
        in_tree: see `_SumOfRanks`.
    """

    def __init__(self, buckets: Sequence[Sequence[nn.Parameter]], *, in_tree: bool = False) -> None:
        self._in_tree = in_tree
        self._buckets = [list(bucket) for bucket in buckets if bucket]
        self._missing = [len(bucket) for bucket in self._buckets]
        self._sums: dict[int, _SumOfRanks] = {}
        self._next = 0
        self._is_held = False
        for number, bucket in enumerate(self._buckets):
            for parameter in bucket:
                parameter.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                    lambda _parameter, number=number: self._arrived(number)
                )

    def _arrived(self, number: int) -> None:
        self._missing[number] -= 1
        self._send_complete()

    def hold(self) -> None:
        """Delays all-reduces until `release` or `finish`."""
        self._is_held = True

    def release(self) -> None:
        """Starts the all-reduces that were held."""
        self._is_held = False
        self._send_complete()

    def _send_complete(self) -> None:
        # All ranks must start their all-reduces in the same order, even if buckets fill in another.
        while (
            not self._is_held and self._next < len(self._buckets) and self._missing[self._next] <= 0
        ):
            self._send(self._next)
            self._next += 1

    def _send(self, number: int) -> None:
        gradients = [
            torch.zeros_like(p) if p.grad is None else p.grad for p in self._buckets[number]
        ]
        flat = torch.cat([g.reshape(-1) for g in gradients])
        self._sums[number] = _SumOfRanks(flat, self._in_tree)

    @torch.no_grad()
    def finish(self) -> None:
        """Waits for the sums and stores them as the gradients."""
        for number in range(self._next, len(self._buckets)):
            self._send(number)
        for number, bucket in enumerate(self._buckets):
            flat = self._sums.pop(number).wait()
            sizes = [p.numel() for p in bucket]
            for parameter, total in zip(bucket, torch.split(flat, sizes), strict=True):
                parameter.grad = total.view_as(parameter)
            self._missing[number] = len(bucket)
        self._next = 0
        self._is_held = False


class AllReducedGradients:
    """Loss and dense gradients of the whole batch, over all ranks.

    Args:
        model: this rank's model.
    """

    side_stream = None  # a bucket is summed as soon as its gradients are complete

    def __init__(self, model: DistributedDlrm) -> None:
        bottom = {id(p) for each in model.networks for p in each.bottom_mlp.parameters()}
        parameters = model.mlp_parameters()
        self._buckets = GradientBuckets(
            [
                [p for p in parameters if id(p) not in bottom],
                [p for p in parameters if id(p) in bottom],
            ],
            in_tree=model.num_shards > 0,
        )
        self._num_shards = model.num_shards
        self._sharded = model.sharded
        self._sharded.after_send_back = self._buckets.release
        self._device = next(model.parameters()).device
        self._loss: tuple[Tensor, _SumOfRanks] | None = None

    def loss(self, logits: Tensor, batch: Batch[ExchangedLookups]) -> Tensor:
        """Returns this rank's term of the mean loss: the sum of its losses divided by B."""
        if self._sharded.trainable:
            # NCCL has one queue. Only the update waits for the sums of the top MLP, but in the
            # queue they would precede the gradients of vectors, which the rest of backward needs.
            self._buckets.hold()
        if self._num_shards:
            return loss_in_shards(logits, batch.label, batch.ids.num_rows, self._num_shards)
        return sum_of_losses(logits, batch.label, batch.ids.num_rows)

    def sum_loss(self, loss: Tensor) -> Tensor:
        """Starts summing the losses of the ranks; `reduce` waits for the sum."""
        total = loss.clone()
        self._loss = total, _SumOfRanks(total, self._num_shards > 0)
        return total

    def reduce(self) -> None:
        """Waits for the sums of gradients and loss over ranks."""
        self._buckets.finish()
        if self._loss is not None:
            total, sum_of_ranks = self._loss
            if (summed := sum_of_ranks.wait()) is not total:
                total.copy_(summed)
            self._loss = None

    def overflow_anywhere(self, overflow: Tensor | None) -> Tensor:
        """Combines the overflow flags of all ranks.

        Args:
            overflow: scalar bool tensor for this rank; None if it has no gradients.
        """
        # A rank without gradients must participate too, to skip the step with the others.
        flag = torch.zeros((), dtype=torch.int32, device=self._device)
        if overflow is not None:
            flag.copy_(overflow)
        dist.all_reduce(flag, dist.ReduceOp.MAX)
        return flag > 0
