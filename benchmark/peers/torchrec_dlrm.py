# SPDX-License-Identifier: Apache-2.0
"""TorchRec's DLRM in one CPU process, its tables sharded and updated by FBGEMM (`make peers`)."""

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from benchmark.micro.kernels_case import table_major, upper_triangle_columns
from dlrm.data.batch import Batch
from dlrm.model.single import Dlrm


@contextlib.contextmanager
def single_process_group() -> Iterator[None]:
    """Makes the process group of one process that sharded modules ask for."""
    store = dist.HashStore()  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


@dataclasses.dataclass(frozen=True, slots=True)
class TorchRecBatch:
    """A batch as TorchRec wants it.

    Attributes:
        numerical: [B, M].
        values: [F * B] int64, all ids of the first feature first.
        lengths: [F * B] int64, ones.
        offsets: [F * B + 1] int64.
        label: [B].
    """

    numerical: Tensor
    values: Tensor
    lengths: Tensor
    offsets: Tensor
    label: Tensor

    @classmethod
    def from_batch(cls, batch: Batch) -> "TorchRecBatch":
        """Lays out one of our batches."""
        values, offsets = table_major(batch.ids)
        return cls(batch.numerical, values, torch.ones_like(values), offsets, batch.label)


class TorchRecDlrm:
    """DLRM with the weights of ours; SGD on the MLPs, fused SGD on the tables.

    DistributedModelParallel shards the tables table-wise; the MLPs stay outside
    DistributedDataParallel, whose reduction one process does not need.

    Args:
        model: whose sizes and weights to take; with dot interaction.
        lr: of both optimizers.
    """

    def __init__(self, model: Dlrm, lr: float) -> None:
        from torchrec.distributed.model_parallel import DistributedModelParallel
        from torchrec.models.dlrm import DLRM
        from torchrec.modules.embedding_configs import EmbeddingBagConfig
        from torchrec.modules.embedding_modules import EmbeddingBagCollection
        from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward
        from torchrec.optim.optimizers import in_backward_optimizer_filter

        tables = model.embeddings.tables()
        self._keys = [f"feature_{i}" for i in range(len(tables))]
        collection = EmbeddingBagCollection(
            tables=[
                EmbeddingBagConfig(
                    name=f"table_{i}",
                    embedding_dim=table.shape[1],
                    num_embeddings=table.shape[0],
                    feature_names=[self._keys[i]],
                )
                for i, table in enumerate(tables)
            ],
            device=torch.device("meta"),
        )
        apply_optimizer_in_backward(torch.optim.SGD, collection.parameters(), {"lr": lr})
        dense = DLRM(
            collection,
            model.num_numerical_features,
            [layer.out_features for layer in model.bottom_mlp.linears],
            [layer.out_features for layer in model.top_mlp.linears],
            dense_device=torch.device("cpu"),
        )
        self._model: Any = DistributedModelParallel(
            dense, device=torch.device("cpu"), plan=_plan(collection), init_data_parallel=False
        )
        self._copy_weights(model)
        parameters = in_backward_optimizer_filter(self._model.named_parameters())
        self._optimizer = torch.optim.SGD([p for _, p in parameters], lr=lr)

    @torch.no_grad()
    def _copy_weights(self, model: Dlrm) -> None:
        state = self._model.state_dict()
        for i, table in enumerate(model.embeddings.tables()):
            key = f"sparse_arch.embedding_bag_collection.embedding_bags.table_{i}.weight"
            (shard,) = state[key].local_shards()
            shard.tensor.copy_(table)
        dim = model.embeddings.embedding_dim
        pairs = upper_triangle_columns(len(self._keys) + 1)
        order = torch.cat([torch.arange(dim), dim + pairs])
        ours = [*model.bottom_mlp.linears, *model.top_mlp.linears]
        module = self._model.module
        theirs = [
            layer
            for part in (module.dense_arch, module.over_arch)
            for layer in part.modules()
            if isinstance(layer, nn.Linear)
        ]
        for number, (source, target) in enumerate(zip(ours, theirs, strict=True)):
            first_of_top = number == len(model.bottom_mlp.linears)
            target.weight.copy_(source.weight[:, order] if first_of_top else source.weight)
            target.bias.copy_(source.bias)

    def logits(self, batch: TorchRecBatch) -> Tensor:
        """Returns the logits of a batch, [B]."""
        from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

        features = KeyedJaggedTensor(
            keys=self._keys, values=batch.values, lengths=batch.lengths, offsets=batch.offsets
        )
        found: Tensor = self._model(batch.numerical, features).squeeze(1)
        return found

    def train(self, batch: TorchRecBatch) -> Tensor:
        """Trains on a batch; returns its loss."""
        loss = nn.functional.binary_cross_entropy_with_logits(self.logits(batch), batch.label)
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        return loss.detach()


def _plan(collection: Any) -> Any:
    """Returns the plan for one process: every table whole, with FBGEMM's fused kernels."""
    from torchrec.distributed.embedding_types import EmbeddingComputeKernel
    from torchrec.distributed.sharding_plan import construct_module_sharding_plan, table_wise
    from torchrec.distributed.types import ShardingPlan

    kernel = EmbeddingComputeKernel.FUSED.value
    sharding = {
        config.name: table_wise(rank=0, compute_kernel=kernel)
        for config in collection.embedding_bag_configs()
    }
    plan = construct_module_sharding_plan(
        collection, sharding, local_size=1, world_size=1, device_type="cpu"
    )
    return ShardingPlan(plan={"sparse_arch.embedding_bag_collection": plan})
