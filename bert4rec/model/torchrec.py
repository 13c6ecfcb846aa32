# SPDX-License-Identifier: Apache-2.0
"""BERT4Rec with item tables sharded by TorchRec and updated by FBGEMM.

DistributedModelParallel shards the tables as its planner decides, and copies all other parameters
to every process. Needs the extra `torchrec`.
"""

import contextlib
import logging
import warnings
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from bert4rec.model.loss import LossNetwork
from bert4rec.nn.targets import LabelledBatch
from cuda_ext.ops import RowOptimizer
from cuda_ext.row_rules import ROW_RULES
from recsys.errors import UserError
from recsys.installation import command_for
from recsys.train.memory import to_device

_ITEMS, _HEAD = "item_embedding", "item_head"
_TOKENS, _CANDIDATES = "tokens", "candidates"


class _Collected(nn.Module):
    """The network, with its item vectors taken from an EmbeddingCollection."""

    def __init__(self, network: LossNetwork, collection: nn.Module) -> None:
        super().__init__()
        self.collection = collection
        self.network = network

    def forward(self, inputs: LabelledBatch) -> Tensor:
        """Returns the mean loss over the targets, a float32 scalar."""
        from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

        network, head = self.network, self.network.model.head
        lookups, candidates = {_TOKENS: inputs.items}, inputs.candidates
        if candidates is not None:
            lookups[_CANDIDATES] = candidates if head.weight is None else candidates - 1
        # One "sample" with all lookups: their number may differ between processes.
        features = KeyedJaggedTensor(
            keys=list(lookups),
            values=torch.cat(list(lookups.values())),
            lengths=to_device(
                torch.tensor([rows.numel() for rows in lookups.values()]), inputs.items.device
            ),
        )
        embedded = self.collection(features)
        of_candidates = None
        if candidates is not None:
            vectors = head.scored(embedded[_CANDIDATES].values())
            of_candidates = vectors, head.bias_of(candidates - 1)
        return network.loss_of(inputs, embedded[_TOKENS].values(), of_candidates)


class ShardedNetwork(nn.Module):
    """A network with sharded item tables; gathers and scatters the shards.

    During training, the model holds empty tensors in place of its sharded tables. `fill_tables`
    replaces them with whole tables, for evaluating and saving.

    Args:
        network: network and loss; a sampled loss shards the head's table too.
        rule: fused optimizer of the rows.
        weight_decay: decay of the rows that a batch looks up.
        device: device of this process.
    """

    def __init__(
        self, network: LossNetwork, rule: RowOptimizer, weight_decay: float, device: torch.device
    ) -> None:
        super().__init__()
        from torchrec.distributed.embedding import EmbeddingCollectionSharder
        from torchrec.distributed.model_parallel import DistributedModelParallel

        model = network.model
        self._tables = {_ITEMS: model.embedding.items}
        if network.kind != "full" and model.head.weight is not None:
            self._tables[_HEAD] = model.head.weight
        collection = _collection(self._tables, network.kind != "full", device)
        for parameter in self._tables.values():
            parameter.requires_grad_(False)
            parameter.data = parameter.new_empty(0, parameter.shape[1])
        fused = {
            "optimizer": _fbgemm_rule(rule),
            "learning_rate": 0.0,
            "eps": ROW_RULES[rule].hyperparameters.get("eps", 0.0),
            "weight_decay": weight_decay,
        }
        sharders: list[Any] = [EmbeddingCollectionSharder(fused_params=fused)]
        whole = _Collected(network, collection)
        self._parallel: Any = DistributedModelParallel(
            whole, device=device, sharders=sharders, plan=_plan(whole, self._tables, sharders)
        )

    def forward(self, inputs: LabelledBatch) -> Tensor:
        """Returns this process's mean loss over its targets, a float32 scalar."""
        loss: Tensor = self._parallel(inputs)
        return loss

    def set_lr(self, lr: float) -> None:
        """Sets the learning rate of the row updates in the next backward."""
        optimizer = self._parallel.fused_optimizer
        for group in optimizer.param_groups:
            group["lr"] = lr
        optimizer.zero_grad()  # makes FBGEMM use the new rate

    def describe(self) -> list[str]:
        """Returns the planner's sharding of each table, a line per table."""
        plan = self._parallel.plan.plan
        return [
            f"{table}: {parameter.sharding_type} on {sorted(set(parameter.ranks or []))}"
            for module in plan.values()
            for table, parameter in module.items()
        ]

    def _shards(self) -> dict[str, Any]:
        """Returns the sharded tables and their optimizer states by name."""
        sharded = {
            name: tensor
            for name, tensor in self._parallel.state_dict().items()
            if ".embeddings." in f".{name}"
        }
        tables = {name.split("embeddings.")[1].split(".")[0]: t for name, t in sharded.items()}
        for key, values in self._parallel.fused_optimizer.state_dict()["state"].items():
            table = key.split("embeddings.")[1].split(".")[0]
            tables |= {
                f"{table}.{name.split('.')[-1]}": t
                for name, t in values.items()
                if not isinstance(t, torch.Tensor) or t.dim()
            }
        return tables

    @torch.no_grad()
    def gather(self) -> dict[str, Tensor]:
        """Gathers every table and optimizer state on all processes."""
        gathered = {}
        shards = self._shards()
        # Only the process that stores a table-wise table knows its states.
        sizes: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(sizes, {name: tuple(t.size()) for name, t in shards.items()})
        device = _device_of(next(iter(shards.values())))
        for name, size in sorted({n: s for of_rank in sizes for n, s in of_rank.items()}.items()):
            whole = torch.zeros(size, device=device)
            for shard in shards[name].local_shards() if name in shards else ():
                whole[_slices_of(shard)] = shard.tensor
            # Each element is in one shard, so the sum is that element.
            dist.all_reduce(whole)
            gathered[name] = whole
        return gathered

    @torch.no_grad()
    def scatter(self, states: dict[str, Tensor]) -> None:
        """Copies the model's tables and states, named as in `gather`, after `fill_tables`."""
        whole = states | {name: parameter.data for name, parameter in self._tables.items()}
        for name, sharded in self._shards().items():
            for shard in sharded.local_shards():
                shard.tensor.copy_(whole[name][_slices_of(shard)])

    def fill_tables(self) -> None:
        """Gathers the whole tables into the model; every process must call it."""
        tables = self.gather()
        for name, parameter in self._tables.items():
            parameter.data = tables[name]

    def empty_tables(self) -> None:
        """Frees the whole tables."""
        for parameter in self._tables.values():
            parameter.data = parameter.new_empty(0, parameter.shape[1])


def shard_network(
    network: LossNetwork, rule: RowOptimizer, weight_decay: float, device: torch.device
) -> ShardedNetwork:
    """Shards the item tables of a network over the process group.

    Raises:
        UserError: TorchRec is missing, or FBGEMM has no such optimizer on this device.
    """
    with _quiet():
        try:
            import torchrec  # noqa: F401  (optional, so imported where it is needed)
        except ImportError as error:
            raise UserError(
                f"`parallelism` dmp needs TorchRec and FBGEMM, which {command_for('torchrec')} "
                "installs. `parallelism` ddp needs neither",
                setting="parallelism",
            ) from error
        return ShardedNetwork(network, rule, weight_decay, device)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silences messages of TorchRec and FBGEMM about their own code."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    warnings.filterwarnings("ignore", "Please use DTensor", FutureWarning)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            yield
    finally:
        logging.disable(before)


def _collection(tables: dict[str, nn.Parameter], has_candidates: bool, device: torch.device) -> Any:
    """Copies the tables into an EmbeddingCollection."""
    from torchrec.modules.embedding_configs import EmbeddingConfig
    from torchrec.modules.embedding_modules import EmbeddingCollection

    features = {_ITEMS: [_TOKENS], _HEAD: [_CANDIDATES]}
    if has_candidates and _HEAD not in tables:
        features[_ITEMS] = [_TOKENS, _CANDIDATES]
    collection = EmbeddingCollection(
        tables=[
            EmbeddingConfig(
                name=name,
                embedding_dim=table.shape[1],
                num_embeddings=table.shape[0],
                feature_names=features[name],
            )
            for name, table in tables.items()
        ],
        device=device,
    )
    with torch.no_grad():
        for name, table in tables.items():
            collection.embeddings[name].weight.copy_(table)
    return collection


def _fbgemm_rule(rule: RowOptimizer) -> Any:
    from fbgemm_gpu.split_embedding_configs import EmbOptimType

    is_adam = rule == "adam"
    return EmbOptimType.ADAM if is_adam else EmbOptimType.EXACT_ROWWISE_ADAGRAD


def _plan(module: nn.Module, tables: dict[str, nn.Parameter], sharders: list[Any]) -> Any:
    """Plans the sharding of the tables with TorchRec's planner.

    Data-parallel tables are excluded, since their gradients would be dense, and column-wise
    tables, since row-wise Adagrad would keep a sum per column block.
    """
    from torchrec.distributed.embedding_types import EmbeddingComputeKernel
    from torchrec.distributed.planner import EmbeddingShardingPlanner, Topology
    from torchrec.distributed.planner.storage_reservations import FixedPercentageStorageReservation
    from torchrec.distributed.planner.types import ParameterConstraints
    from torchrec.distributed.types import ShardingType

    allowed = ParameterConstraints(
        sharding_types=[ShardingType.TABLE_WISE.value, ShardingType.ROW_WISE.value],
        compute_kernels=[EmbeddingComputeKernel.FUSED.value],
    )
    device = next(module.parameters()).device
    planner = EmbeddingShardingPlanner(
        topology=Topology(
            world_size=dist.get_world_size(),
            local_world_size=dist.get_world_size(),
            compute_device=device.type,
        ),
        constraints=dict.fromkeys(tables, allowed),
        storage_reservation=FixedPercentageStorageReservation(0.15),
        stats=[],  # `describe` gives the plan in a line per table
    )
    return planner.collective_plan(module, sharders, dist.GroupMember.WORLD)


def _slices_of(shard: Any) -> tuple[slice, ...]:
    """Returns the slices of the whole tensor that are in a shard."""
    offsets, sizes = shard.metadata.shard_offsets, shard.metadata.shard_sizes
    return tuple(
        slice(start, start + size)
        for start, size, _ in zip(offsets, sizes, shard.tensor.shape, strict=False)
    )


def _device_of(sharded: Any) -> torch.device:
    local = sharded.local_shards()
    uses_cuda = local[0].tensor.is_cuda if local else torch.cuda.is_available()
    return torch.device("cuda", torch.cuda.current_device()) if uses_cuda else torch.device("cpu")
