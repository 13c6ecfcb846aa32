# SPDX-License-Identifier: Apache-2.0
"""One optimizer step of a DLRM whose tables lie on several ranks."""

import torch
import torch.distributed as dist
from torch import Tensor

from dlrm.config import OptimizerConfig
from dlrm.distributed.batches import PlacedBatch
from dlrm.distributed.gradients import GradientBuckets
from dlrm.distributed.network import DistributedDlrm
from dlrm.train.step import DlrmTrainStep
from recsys.train.precision import Precision


class DistributedTrainStep(DlrmTrainStep):
    """Forward, backward and update on the batch of all ranks.

    The gradient is that of the mean over the whole batch, as on one process.

    Args:
        model: this rank's part.
        config: optimizers and rates.
        precision: of the forward pass.
        freeze_mlps: leave the MLPs as they are.
        freeze_embeddings: leave the tables as they are.
    """

    def __init__(
        self,
        model: DistributedDlrm,
        config: OptimizerConfig,
        precision: Precision,
        *,
        freeze_mlps: bool = False,
        freeze_embeddings: bool = False,
    ) -> None:
        super().__init__(
            model,
            config,
            precision,
            freeze_mlps=freeze_mlps,
            freeze_embeddings=freeze_embeddings,
        )
        bottom = {id(p) for p in model.bottom_mlp.parameters()}
        self._buckets = GradientBuckets(
            [
                [p for p in self._mlp_parameters if id(p) not in bottom],
                [p for p in self._mlp_parameters if id(p) in bottom],
            ]
        )

    def update(self, batch: PlacedBatch) -> Tensor:  # type: ignore[override]
        """Trains on a batch with the rate that is set.

        Returns:
            The loss before the update: the mean over the samples of all ranks.
        """
        mean = self._backward(batch).clone()  # type: ignore[arg-type]
        scale = self._precision.loss_scale
        loss_summed = dist.all_reduce(mean, async_op=True)
        found = self.embedding_optimizer.gradients() if self.embedding_optimizer else []
        overflow: Tensor | None = None
        if scale != 1.0:
            self._buckets.finish()
            overflow = self._find_overflow_anywhere([g.gradients for g in found])
        if self.embedding_optimizer is not None:
            # Unless a flag has to be asked first, the sums of the MLPs travel meanwhile.
            self.embedding_optimizer.step(found, self._embedding_lr, overflow)
        if scale == 1.0:
            self._buckets.finish()
        if self.mlp_optimizer is not None:
            self.mlp_optimizer.step(self._lr, scale, overflow)
        assert loss_summed is not None
        loss_summed.wait()
        return mean

    def _loss(self, logits: Tensor, batch: PlacedBatch) -> Tensor:  # type: ignore[override]
        """Returns this rank's part of the mean over the samples of all ranks."""
        found = torch.nn.functional.binary_cross_entropy_with_logits(
            logits, batch.label, reduction="sum"
        )
        return found / batch.num_rows

    def _find_overflow_anywhere(self, of_tables: list[Tensor]) -> Tensor:
        """Returns a scalar bool tensor: a gradient of any rank is inf or nan."""
        dense = [p.grad for p in self._mlp_parameters if p.grad is not None]
        found = [g for g in dense + of_tables if g.numel()]
        overflow = self._precision.find_overflow(found) if found else None
        # A rank without rows of tables has nothing that overflows, but must hear of the others.
        flag = self._lr.new_zeros((), dtype=torch.int32)
        if overflow is not None:
            flag.copy_(overflow)
        dist.all_reduce(flag, dist.ReduceOp.MAX)
        return flag > 0
