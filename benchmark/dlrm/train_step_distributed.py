# SPDX-License-Identifier: Apache-2.0
"""Compares our DLRM training step on two processes with TorchRec's.

    .venv-peers/bin/python -m benchmark.dlrm.train_step_distributed

TorchRec uses DistributedModelParallel with FBGEMM's tables, and DistributedDataParallel for the
MLPs; `pipelined` trains with TrainPipelineSparseDist, as TorchRec's example does. All run in the
same two processes, start from the same weights, use the same batches in turns, and must reach the
same losses before they are timed. The time includes the distribution of the input. `make peers`
makes the environment.
"""

import argparse
import contextlib
import dataclasses
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from benchmark.dlrm.train_step_models import (
    LEARNING_RATE,
    LOSS_TOLERANCE,
    SIZES,
    TORCHREC,
    make_batches,
)
from benchmark.kernels.case import OURS
from benchmark.kernels.side_by_side import apply_settings, compare, make_parser, make_records
from benchmark.kernels.stopwatch import seconds_per_call
from benchmark.peers.torchrec_dlrm import TableWeights, TorchRecBatch, TorchRecDlrm
from benchmark.peers.torchrec_interaction import has_torchrec
from benchmark.processes import run_interleaved
from benchmark.record import Record, write_records
from dlrm.config import DataConfig, DlrmConfig, ModelConfig, OptimizerConfig
from dlrm.data.batch import Batch
from dlrm.distributed.batches import ExchangedBatches
from dlrm.distributed.columns import CutBatches, RankColumns
from dlrm.distributed.cost import machine_here, workload_of
from dlrm.distributed.exchange import rank_bounds
from dlrm.distributed.gradients import AllReducedGradients
from dlrm.distributed.network import DistributedDlrm
from dlrm.distributed.placement import Placement
from dlrm.distributed.planner import plan
from dlrm.model.network import Dlrm
from dlrm.nn.embedding import load_table
from dlrm.train.step import DlrmTrainStep
from recsys.train.optimizers.precision import Precision
from recsys.train.processes import Processes, join_processes

BENCHMARK = "train_step_distributed"
REPOSITORY = Path(__file__).resolve().parents[2]
CASES = (("big", "zipf", 2048), ("big", "zipf", 8192), ("small", "zipf", 2048))
PIPELINED = "TorchRec, pipelined"
CPU = torch.device("cpu")


class Side(Protocol):
    """One implementation, on one of the ranks."""

    plan: str
    """Number of tables in each kind of sharding."""

    def train(self, batches: Sequence[Batch[Tensor]]) -> list[Tensor]:
        """Trains on whole batches; returns the losses."""


class OurSide:
    """Our `DistributedDlrm`, with the lookups planned in a thread."""

    def __init__(
        self, config: ModelConfig, start: "Start", placement: Placement, rank: int
    ) -> None:
        config = dataclasses.replace(
            config, embedding_type="joint_fused", interaction_op="cuda_dot"
        )
        model = DistributedDlrm(config, placement, rank)
        start.copy_into(model)
        self._step = DlrmTrainStep(
            model,
            OptimizerConfig(optimizer="sgd", lr=LEARNING_RATE),
            Precision(device_type="cpu"),
            AllReducedGradients(model),
        )
        self._placement, self._rank = placement, rank
        kinds = {kind: len(placement.of_kind(kind)) for kind in ("replicate", "whole", "rows")}
        self.plan = ", ".join(f"{count} {kind}" for kind, count in kinds.items() if count)

    def train(self, batches: Sequence[Batch[Tensor]]) -> list[Tensor]:
        """Trains on whole batches; returns the losses over all samples."""
        cut = CutBatches(_InMemory(batches), RankColumns.of(self._placement, self._rank))
        exchanged = ExchangedBatches(cut, self._placement, self._rank, CPU)
        return [self._step(batch, LEARNING_RATE) for batch in exchanged.batches()]


class TorchRecSide:
    """TorchRec's DLRM, trained on the local batch of each batch."""

    def __init__(
        self, start: "Start", processes: Processes, planned_for: int, *, pipelined: bool
    ) -> None:
        self._dlrm = TorchRecDlrm(
            start.mlps, LEARNING_RATE, start.tables, planned_for, pipelined=pipelined
        )
        self._pipelined = pipelined
        self._processes = processes
        self._prepared: dict[int, TorchRecBatch] = {}
        self.plan = self._dlrm.plan

    def train(self, batches: Sequence[Batch[Tensor]]) -> list[Tensor]:
        """Trains on whole batches; returns the losses of this rank's samples."""
        local_batches = map(self._local, batches)
        if self._pipelined:
            return self._dlrm.train_in_pipeline(local_batches)
        return [self._dlrm.train(local) for local in local_batches]

    def _local(self, batch: Batch[Tensor]) -> TorchRecBatch:
        """Returns the local batch in TorchRec's layout, converted once."""
        if id(batch) not in self._prepared:
            bounds = rank_bounds(len(batch), self._processes.world_size)
            own = slice(int(bounds[self._processes.rank]), int(bounds[self._processes.rank + 1]))
            local = Batch(batch.numerical[own], batch.ids[own], batch.label[own])
            self._prepared[id(batch)] = TorchRecBatch.from_batch(local)
        return self._prepared[id(batch)]


@dataclasses.dataclass(frozen=True, slots=True)
class _InMemory:
    """A `BatchSource` of batches in memory."""

    all: Sequence[Batch[Tensor]]

    @property
    def batch_size(self) -> int:
        return len(self.all[0])

    @property
    def num_batches(self) -> int:
        return len(self.all)

    def batches(self, epoch: int = 0, start: int = 0) -> Iterator[Batch[Tensor]]:  # noqa: ARG002
        return iter(self.all[start:])


class Start:
    """The initial weights of all implementations, equal on every rank.

    Args:
        config: sizes of the network.
        table_sizes: rows of each table.

    Attributes:
        mlps: model with the MLPs' weights; its tables have one row each.
        tables: tables, drawn on demand.
    """

    def __init__(self, config: ModelConfig, table_sizes: Sequence[int]) -> None:
        torch.manual_seed(8)
        self.mlps = Dlrm(config, [1] * len(table_sizes))
        self.tables = TableWeights(table_sizes, self._table)
        self._dim = config.embedding_dim

    def _table(self, number: int) -> Tensor:
        rows = self.tables.sizes[number]
        generator = torch.Generator().manual_seed(number)
        bound = float(rows) ** -0.5
        return torch.empty(rows, self._dim).uniform_(-bound, bound, generator=generator)

    @torch.no_grad()
    def copy_into(self, model: DistributedDlrm) -> None:
        """Copies the weights into our model."""
        pairs = zip(self.mlps.mlp_parameters(), model.mlp_parameters(), strict=True)
        for source, target in pairs:
            target.copy_(source)
        for i in range(len(self.tables.sizes)):
            load_table(model.embeddings, i, self.tables.values(i))


def build_sides(
    config: ModelConfig, table_sizes: Sequence[int], batch_size: int, processes: Processes
) -> dict[str, Side]:
    """Builds each implementation with the plan of its own planner, ours first."""
    start = Start(config, table_sizes)
    data = DataConfig(dataset_type="synthetic_gpu", batch_size=batch_size)
    run = DlrmConfig(model=config, data=data)
    planned = plan(workload_of(run, table_sizes), machine_here(processes, CPU)).placement
    sides: dict[str, Side] = {OURS: OurSide(config, start, planned, processes.rank)}
    local_size = batch_size // processes.world_size
    sides[TORCHREC] = TorchRecSide(start, processes, local_size, pipelined=False)
    sides[PIPELINED] = TorchRecSide(start, processes, local_size, pipelined=True)
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
    for name in losses:
        losses[name] = processes.sum(losses[name]) / processes.world_size
    for name, other in losses.items():
        if not torch.allclose(other, losses[OURS], rtol=LOSS_TOLERANCE, atol=0.0):
            raise ArithmeticError(
                f"losses of the same steps: ours {losses[OURS].tolist()}, {name} {other.tolist()}"
            )


def time_sides(
    sides: dict[str, Side], batches: Sequence[Batch[Tensor]], processes: Processes, repeats: int
) -> dict[str, list[float]]:
    """Measures each implementation's seconds per step in each round."""

    def timer(side: Side) -> Callable[[], float]:
        def work() -> None:
            side.train(batches)
            processes.barrier()

        def measure() -> float:
            processes.barrier()
            return seconds_per_call(work) / len(batches)

        return measure

    return run_interleaved({name: timer(side) for name, side in sides.items()}, repeats)


def measure(options: argparse.Namespace, processes: Processes) -> list[Record]:
    """Measures every case; only rank 0's records are written."""
    settings = apply_settings(options)
    settings["processes"] = processes.world_size
    sizes = [options.rows] * options.tables
    records: list[Record] = []
    for model, distribution, usual in CASES:
        if model not in options.models or usual not in (options.batch_sizes or [usual]):
            continue
        config = SIZES[model]
        few = make_batches(config, sizes, usual, distribution)
        sides = build_sides(config, sizes, usual, processes)
        check_training(sides, few, processes)
        turns = max(1, options.samples // (usual * len(few)))
        seconds = time_sides(sides, few * turns, processes, options.repeats)
        measurements = compare(seconds, (TORCHREC, PIPELINED))
        for name, times in seconds.items():
            measurements[f"{name}, throughput", "samples/s"] = [usual / t for t in times]
        print("; ".join(f"{name}: {side.plan}" for name, side in sides.items()))
        case = f"{model}, {distribution}, B={usual:,}"
        records += make_records(BENCHMARK, case, measurements, settings)
    return records


def main(arguments: Sequence[str] | None = None) -> int:
    """Starts the ranks, or measures on one; returns the exit status."""
    given = sys.argv[1:] if arguments is None else arguments
    options = _parse(given)
    if "RANK" not in os.environ:
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command += [f"--nproc_per_node={options.processes}", "-m", __spec__.name, *given]
        threads = {"OMP_NUM_THREADS": str(options.threads)}
        return subprocess.run(
            command, cwd=REPOSITORY, env=os.environ | threads, check=False
        ).returncode
    with join_processes("cpu", options.threads) as processes, contextlib.ExitStack() as stack:
        if not processes.is_first:
            silence: Any = stack.enter_context(open(os.devnull, "w"))  # noqa: PTH123
            stack.enter_context(contextlib.redirect_stdout(silence))
        records = measure(options, processes)
        if processes.is_first:
            write_records(options.results / f"{BENCHMARK}.jsonl", records)
    return 0


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.set_defaults(threads=1)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--models", nargs="+", choices=list(SIZES), default=list(SIZES))
    parser.add_argument(
        "--batch_sizes", type=int, nargs="+", help="leave out the cases of all others"
    )
    parser.add_argument(
        "--samples", type=int, default=65_536, help="of a round of one side, at least 4 batches"
    )
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args(arguments)
    if not has_torchrec():
        parser.error("TorchRec and FBGEMM are not installed here: `make peers` makes .venv-peers")
    return options


if __name__ == "__main__":
    sys.exit(main())
