# SPDX-License-Identifier: Apache-2.0
"""Our DLRM training step on two processes, compared with TorchRec's.

Needs `make torchrec`. TorchRec uses DistributedModelParallel with FBGEMM's tables, and
DistributedDataParallel for the MLPs; `pipelined` trains with TrainPipelineSparseDist, as TorchRec's
example does. All run in the same two processes, start from the same weights, use the same batches
in turns, and must reach the same losses before they are timed. The time includes the distribution
of the input.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from benchmark.case import Group, Key, Values
from benchmark.peers.dlrm import (
    LEARNING_RATE,
    SIZES,
    TORCHREC,
    compare_losses,
    copy_weights,
    make_batches,
)
from benchmark.peers.torchrec import TorchRecBatch, TorchRecDlrm, has_torchrec
from benchmark.side_by_side import OURS, SideBySide, speed_ups
from benchmark.stopwatch import seconds_per_call
from dlrm.config import DataConfig, DlrmConfig, ModelConfig, OptimizerConfig
from dlrm.data.batch import Batch
from dlrm.distributed.batches import ExchangedBatches
from dlrm.distributed.columns import CutBatches, RankColumns
from dlrm.distributed.exchange import rank_bounds
from dlrm.distributed.gradients import AllReducedGradients
from dlrm.distributed.network import DistributedDlrm, hardware_here, workload_of
from dlrm.distributed.placement import Placement
from dlrm.distributed.planner import plan
from dlrm.model.network import Dlrm
from dlrm.train.step import DlrmTrainStep
from recsys.errors import UserError
from recsys.settings import setting
from recsys.train.optimizers.precision import Precision
from recsys.train.processes import Processes, join_processes

CASES = (("big", "zipf", 2048), ("big", "zipf", 8192), ("small", "zipf", 2048))
PIPELINED = "TorchRec, pipelined"
CPU = torch.device("cpu")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TrainStepDistributed(SideBySide):
    """Training steps of two models."""

    threads: int = setting(1, "Threads of each process")
    ranks: int = setting(2, "Processes")
    models: tuple[str, ...] = setting(tuple(SIZES), "Models: big, small or both")
    samples: int = setting(65_536, "Samples per round of each implementation, at least 4 batches")

    def __post_init__(self) -> None:
        """Refuses an environment without TorchRec."""
        if not has_torchrec():
            raise UserError("TorchRec is not installed here: run `make torchrec`")

    @property
    def processes(self) -> int:
        """Processes that measure together."""
        return self.ranks

    def config(self) -> dict[str, Any]:
        """Returns the settings."""
        return SideBySide.config(self) | {"processes": self.ranks}

    def groups(self, folder: Path) -> Iterator[Group]:  # noqa: ARG002
        """Yields each model and size."""
        self.apply()
        with join_processes("cpu", self.threads) as processes:
            for model, distribution, size in CASES:
                if model not in self.models:
                    continue
                config = SIZES[model]
                few = make_batches(config, self.table_sizes, size, distribution)
                sides = build_sides(config, self.table_sizes, size, processes)
                check_training(sides, few, processes)
                print("; ".join(f"{name}: {side.plan}" for name, side in sides.items()))
                batches = few * max(1, self.samples // (size * len(few)))
                row = f"{model}, {distribution}, B={size:,}"
                yield group(row, size, sides, batches, processes)


class Side(NamedTuple):
    """One implementation, on one of the ranks."""

    plan: str
    """Number of tables in each kind of sharding."""

    train: Callable[[Sequence[Batch[Tensor]]], list[Tensor]]
    """Trains on whole batches; returns the losses, of all samples or of this rank's."""


def our_side(config: ModelConfig, start: Dlrm, placement: Placement, rank: int) -> Side:
    """Makes our `DistributedDlrm`, with the lookups planned in a thread."""
    fused = dataclasses.replace(config, embedding_type="joint_fused", interaction_op="cuda_dot")
    model = DistributedDlrm(fused, placement, rank)
    copy_weights(start, model)
    step = DlrmTrainStep(
        model,
        OptimizerConfig(optimizer="sgd", lr=LEARNING_RATE),
        Precision(device_type="cpu"),
        AllReducedGradients(model),
    )

    def train(batches: Sequence[Batch[Tensor]]) -> list[Tensor]:
        cut = CutBatches(_InMemory(batches), RankColumns.of(placement, rank))
        exchanged = ExchangedBatches(cut, placement, rank, CPU)
        return [step(batch, LEARNING_RATE) for batch in exchanged.batches()]

    kinds = {kind: len(placement.of_kind(kind)) for kind in ("replicate", "whole", "rows")}
    return Side(", ".join(f"{count} {kind}" for kind, count in kinds.items() if count), train)


def torchrec_side(start: Dlrm, processes: Processes, planned_for: int, *, pipelined: bool) -> Side:
    """Makes TorchRec's DLRM, trained on the local batch of each batch."""
    dlrm = TorchRecDlrm(start, LEARNING_RATE, planned_for, pipelined=pipelined)
    prepared: dict[int, TorchRecBatch] = {}

    def local(batch: Batch[Tensor]) -> TorchRecBatch:
        """Returns the local batch in TorchRec's layout, converted once."""
        if id(batch) not in prepared:
            bounds = rank_bounds(len(batch), processes.world_size).tolist()
            own = slice(bounds[processes.rank], bounds[processes.rank + 1])
            rows = Batch(batch.numerical[own], batch.ids[own], batch.label[own])
            prepared[id(batch)] = TorchRecBatch.from_batch(rows)
        return prepared[id(batch)]

    def train(batches: Sequence[Batch[Tensor]]) -> list[Tensor]:
        local_batches = map(local, batches)
        if pipelined:
            return dlrm.train_in_pipeline(local_batches)
        return [dlrm.train(each) for each in local_batches]

    return Side(dlrm.plan, train)


@dataclasses.dataclass(frozen=True, slots=True)
class _InMemory:
    """`SplitBatches` of batches in memory."""

    all: Sequence[Batch[Tensor]]

    @property
    def batch_size(self) -> int:
        return len(self.all[0])

    @property
    def num_batches(self) -> int:
        return len(self.all)

    def batches(self, epoch: int = 0, start: int = 0) -> Iterator[Batch[Tensor]]:  # noqa: ARG002
        return iter(self.all[start:])


def group(
    row: str,
    batch_size: int,
    sides: Mapping[str, Side],
    batches: Sequence[Batch[Tensor]],
    processes: Processes,
) -> Group:
    """Makes the candidates of a case: milliseconds of a step."""

    def measure(side: Side, name: str, _seed: int) -> Values:
        def work() -> None:
            side.train(batches)
            processes.barrier()

        processes.barrier()
        return {Key(row, name, "ms"): 1e3 * seconds_per_call(work) / len(batches)}

    def derive(values: Mapping[str, Values]) -> Values:
        rates = {
            Key(row, f"{name}, throughput", "samples/s"): 1e3 * batch_size / ms
            for name, of_side in values.items()
            for ms in of_side.values()
        }
        return {**speed_ups(row, values, (TORCHREC, PIPELINED)), **rates}

    return Group(
        candidates={n: functools.partial(measure, side, n) for n, side in sides.items()},
        derive=derive,
    )


def build_sides(
    config: ModelConfig, table_sizes: Sequence[int], batch_size: int, processes: Processes
) -> dict[str, Side]:
    """Builds each implementation with the plan of its own planner, ours first."""
    torch.manual_seed(8)  # the initial weights are equal on every rank
    start = Dlrm(config, table_sizes)
    data = DataConfig(dataset_type="synthetic_gpu", batch_size=batch_size)
    run = DlrmConfig(model=config, data=data)
    planned = plan(workload_of(run, table_sizes), hardware_here(processes, CPU)).placement
    sides: dict[str, Side] = {OURS: our_side(config, start, planned, processes.rank)}
    local_size = batch_size // processes.world_size
    sides[TORCHREC] = torchrec_side(start, processes, local_size, pipelined=False)
    sides[PIPELINED] = torchrec_side(start, processes, local_size, pipelined=True)
    return sides


def check_training(
    sides: dict[str, Side], batches: Sequence[Batch[Tensor]], processes: Processes
) -> None:
    """Trains every implementation and compares the losses of all samples.

    Raises:
        ArithmeticError: a loss differs from ours.
    """
    losses = {name: torch.stack(side.train(batches)) for name, side in sides.items()}
    # Local batches have equal sizes, so the mean of their losses is that of the batch.
    compare_losses({n: processes.sum(of) / processes.world_size for n, of in losses.items()})


CASE = TrainStepDistributed
