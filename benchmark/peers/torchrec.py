# SPDX-License-Identifier: Apache-2.0
"""TorchRec on CPU processes: its DLRM with FBGEMM's sharded tables, its interaction."""

import collections
import contextlib
import dataclasses
import importlib.util
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from benchmark.side_by_side import table_major, torchrec_columns
from dlrm.data.batch import Batch
from dlrm.model.network import Dlrm
from dlrm.nn.embedding import read_tables


def has_torchrec() -> bool:
    """Returns True if TorchRec and FBGEMM are installed (`make torchrec`)."""
    return all(importlib.util.find_spec(name) for name in ("torchrec", "fbgemm_gpu"))


def interaction_arch(num_tables: int) -> Callable[[Tensor, Tensor], Tensor]:
    """Builds InteractionArch: ([B, D], [B, F, D]) -> [B, D + F(F+1)/2]."""
    from torchrec.models.dlrm import InteractionArch

    module: Callable[[Tensor, Tensor], Tensor] = InteractionArch(num_tables)
    return module


@contextlib.contextmanager
def single_process_group() -> Iterator[None]:
    """Joins a process group of one process, which sharded modules need."""
    store = dist.HashStore()  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


@dataclasses.dataclass(frozen=True, slots=True)
class TorchRecBatch:
    """A batch in TorchRec's layout.

    Attributes:
        numerical: [B, M].
        values: [F * B] int64 ids, all of the first feature first.
        lengths: [F * B] int64, all 1.
        offsets: [F * B + 1] int64.
        label: [B].
    """

    numerical: Tensor
    values: Tensor
    lengths: Tensor
    offsets: Tensor
    label: Tensor

    @classmethod
    def from_batch(cls, batch: Batch[Tensor]) -> "TorchRecBatch":
        """Converts one of our batches."""
        values, offsets = table_major(batch.ids)
        return cls(batch.numerical, values, torch.ones_like(values), offsets, batch.label)


class TorchRecDlrm:
    """TorchRec's DLRM with our weights; SGD on MLPs, fused SGD on tables.

    DistributedModelParallel shards the tables, and on several processes DistributedDataParallel
    wraps the MLPs; gradients are those of the mean over the samples of all processes.

    Args:
        model: source of sizes and weights, with dot interaction.
        lr: of both optimizers.
        planned_for: local batch size for TorchRec's planner; None places the tables table-wise,
            round robin.
        pipelined: use `train_in_pipeline` instead of `train`.
        in_bfloat16: run the forward pass under bfloat16 autocast.

    Attributes:
        plan: number of tables of each kind of sharding.
    """

    def __init__(
        self,
        model: Dlrm,
        lr: float,
        planned_for: int | None = None,
        pipelined: bool = False,
        in_bfloat16: bool = False,
    ) -> None:
        from torchrec.distributed.model_parallel import DistributedModelParallel
        from torchrec.distributed.train_pipeline import TrainPipelineSparseDist
        from torchrec.models.dlrm import DLRM, DLRMTrain
        from torchrec.modules.embedding_configs import EmbeddingBagConfig
        from torchrec.modules.embedding_modules import EmbeddingBagCollection
        from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward
        from torchrec.optim.optimizers import in_backward_optimizer_filter

        self._in_bfloat16 = in_bfloat16
        tables = read_tables(model.embeddings)
        dim = model.embeddings.embedding_dim
        self._keys = [f"feature_{i}" for i in range(len(tables))]
        collection = EmbeddingBagCollection(
            tables=[
                EmbeddingBagConfig(
                    name=f"table_{i}",
                    embedding_dim=dim,
                    num_embeddings=len(table),
                    feature_names=[self._keys[i]],
                )
                for i, table in tables.items()
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
        network = DLRMTrain(dense) if pipelined else dense
        self._prefix = "model." if pipelined else ""
        if planned_for is None:
            plan = _whole_tables(collection, self._prefix + _COLLECTION)
        else:
            plan = _planned(network, planned_for)
        self.plan = _describe(plan)
        self._model: Any = DistributedModelParallel(
            network,
            device=torch.device("cpu"),
            plan=plan,
            init_data_parallel=dist.get_world_size() > 1,
        )
        self._copy_tables(tables)
        self._copy_mlps(model)
        parameters = in_backward_optimizer_filter(self._model.named_parameters())
        self._optimizer = torch.optim.SGD([p for _, p in parameters], lr=lr)
        if pipelined:
            self._pipeline = TrainPipelineSparseDist(
                self._model, self._optimizer, torch.device("cpu")
            )

    @torch.no_grad()
    def _copy_tables(self, tables: Mapping[int, Tensor]) -> None:
        state = self._model.state_dict()
        for i, values in tables.items():
            key = f"{self._prefix}{_COLLECTION}.embedding_bags.table_{i}.weight"
            stored = state[key]
            if isinstance(stored, Tensor) and not hasattr(stored, "local_shards"):
                stored.copy_(values)  # every process has the whole table
                continue
            for shard in stored.local_shards():
                row, column = shard.metadata.shard_offsets
                rows, columns = shard.metadata.shard_sizes
                shard.tensor.copy_(values[row : row + rows, column : column + columns])

    @torch.no_grad()
    def _copy_mlps(self, model: Dlrm) -> None:
        dim = model.embeddings.embedding_dim
        order = torchrec_columns(dim, len(self._keys) + 1)
        ours = [*model.bottom_mlp.linears, *model.top_mlp.linears]
        module = self._model.module.model if self._prefix else self._model.module
        theirs = [
            layer
            for mlp in (module.dense_arch, module.over_arch)
            for layer in mlp.modules()
            if isinstance(layer, nn.Linear)
        ]
        for number, (source, target) in enumerate(zip(ours, theirs, strict=True)):
            first_of_top = number == len(model.bottom_mlp.linears)
            target.weight.copy_(source.weight[:, order] if first_of_top else source.weight)
            target.bias.copy_(source.bias)

    def prepare(self, batch: Batch[Tensor]) -> TorchRecBatch:
        """Converts a batch, untimed."""
        return TorchRecBatch.from_batch(batch)

    def _features(self, batch: TorchRecBatch) -> Any:
        from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

        return KeyedJaggedTensor(
            keys=self._keys, values=batch.values, lengths=batch.lengths, offsets=batch.offsets
        )

    def begin_inference(self) -> None:
        """Prepares for calls of `logits` alone."""
        self._model.eval()

    def logits(self, batch: TorchRecBatch) -> Tensor:
        """Runs the forward pass; returns the logits [B]."""
        with torch.autocast("cpu", torch.bfloat16, enabled=self._in_bfloat16):
            logits: Tensor = self._model(batch.numerical, self._features(batch)).squeeze(1)
        return logits.float()

    def train(self, batch: TorchRecBatch) -> Tensor:
        """Trains on this rank's local batch; returns its loss."""
        loss = nn.functional.binary_cross_entropy_with_logits(self.logits(batch), batch.label)
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        return loss.detach()

    def train_in_pipeline(self, batches: Iterable[TorchRecBatch]) -> list[Tensor]:
        """Trains on local batches, overlapped with the exchange of the next input."""
        from torchrec.datasets.utils import Batch as PipelinedBatch

        waiting = (PipelinedBatch(b.numerical, self._features(b), b.label) for b in batches)
        losses = []
        with contextlib.suppress(StopIteration):
            while True:
                loss, _, _ = self._pipeline.progress(waiting)
                losses.append(loss)
        return losses


_COLLECTION = "sparse_arch.embedding_bag_collection"


def _whole_tables(collection: Any, name: str) -> Any:
    """Plans tables table-wise, round robin, with FBGEMM's fused kernels."""
    from torchrec.distributed.embedding_types import EmbeddingComputeKernel
    from torchrec.distributed.sharding_plan import construct_module_sharding_plan, table_wise
    from torchrec.distributed.types import ShardingPlan

    world_size = dist.get_world_size()
    sharding = {
        config.name: table_wise(
            rank=i % world_size, compute_kernel=EmbeddingComputeKernel.FUSED.value
        )
        for i, config in enumerate(collection.embedding_bag_configs())
    }
    plan = construct_module_sharding_plan(
        collection, sharding, local_size=world_size, world_size=world_size, device_type="cpu"
    )
    return ShardingPlan(plan={name: plan})


def _planned(network: nn.Module, batch_size: int) -> Any:
    """Plans tables with TorchRec's planner, for these processes on a CPU."""
    from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
    from torchrec.distributed.planner import EmbeddingShardingPlanner, Topology

    world_size = dist.get_world_size()
    topology = Topology(world_size=world_size, local_world_size=world_size, compute_device="cpu")
    planner = EmbeddingShardingPlanner(topology=topology, batch_size=batch_size)
    sharders: list[Any] = [EmbeddingBagCollectionSharder()]
    return planner.collective_plan(network, sharders, dist.group.WORLD)


def _describe(plan: Any) -> str:
    """Counts the tables by sharding and kernel, in words."""
    (tables,) = plan.plan.values()
    counts = collections.Counter(
        f"{table.sharding_type} {table.compute_kernel}" for table in tables.values()
    )
    return ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))
