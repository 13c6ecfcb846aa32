# SPDX-License-Identifier: Apache-2.0
"""Compares the predicted step times of placements with measured ones.

    python -m benchmark.dlrm.planner

Two processes measure the rates of this machine first (lookups, matrix products, the exchange), as
the planner takes them. Then they train the same DLRM with 26 tables under several placements, in
turns: the planned one, the one planned where memory is short, all tables whole, all dealt out by
rows, all on both. A last table has the seconds of the whole way by the programs: dataset, plan,
training, checkpoint, exported model.
"""

import argparse
import dataclasses
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from benchmark.dlrm.train_step_distributed import REPOSITORY, OurSide, Side, Start, time_sides
from benchmark.dlrm.train_step_models import SIZES, make_batches
from benchmark.kernels.stopwatch import seconds_per_call
from benchmark.processes import run_process
from benchmark.record import RESULTS, Record, make_record, write_records
from dlrm.config import DataConfig, DlrmConfig, ModelConfig
from dlrm.data.batch import Batch
from dlrm.distributed.cost import Machine, Workload, machine_here, predict, workload_of
from dlrm.distributed.placement import Placement, PlacementKind, TablePlacement
from dlrm.distributed.planner import plan
from dlrm.nn.embedding import build_embeddings
from dlrm.nn.mlp import Mlp
from recsys.train.processes import Processes, join_processes

BENCHMARK = "planner"
DISTRIBUTIONS = ("uniform", "zipf")
TABLES = (
    *(413000, 398000, 340000, 312000, 248500, 184000, 82000, 51300, 12000, 11400, 9500, 6500, 5300),
    *(4900, 3200, 2000, 1460, 630, 560, 300, 105, 24, 15, 10, 4, 3),
)
"""Rows of 26 tables with 2.1 million rows, spread as those of the Criteo log."""

SHORT_OF_MEMORY = 0.6
"""Memory of each of two devices as a share of that of all tables: the largest must be dealt out."""

_CALLS = 20
_LARGE_VALUES = 1 << 20
CPU = torch.device("cpu")


def measured_machine(config: ModelConfig, workload: Workload, processes: Processes) -> Machine:
    """Measures the rates of the cost model, on all processes at once."""
    assumed = machine_here(processes, CPU)
    local = workload.global_batch // processes.world_size
    lookup_s = _lookup_seconds(config, local, processes)
    bytes_of_lookups = 2 * local * len(TABLES) * config.embedding_dim * 4
    memory = bytes_of_lookups / lookup_s
    dense_s = _dense_seconds(config, local, processes)
    traffic_s = local * workload.dense_activation_bytes / memory
    flop = local * workload.dense_flop / max(dense_s - traffic_s, dense_s / 10)
    latency_s = _exchange_seconds(processes, processes.world_size)
    large_s = _exchange_seconds(processes, _LARGE_VALUES)
    others = (processes.world_size - 1) / processes.world_size
    node = _LARGE_VALUES * 4 * others / max(large_s - latency_s, 1e-9)
    rates = processes.gather_values((memory, flop, node, latency_s))
    memory, flop, node, latency_s = (
        sum(column) / len(column) for column in zip(*rates, strict=True)
    )
    return dataclasses.replace(
        assumed,
        memory_bytes_per_s=memory,
        flop_per_s=flop,
        node_bytes_per_s=node,
        network_bytes_per_s=node,
        latency_s=latency_s,
        overlap=0.0,  # the threads that exchange need the cores that compute
    )


def _timed(work: Callable[[], object], processes: Processes) -> float:
    work()
    processes.barrier()
    return seconds_per_call(work, calls=_CALLS)


@torch.no_grad()
def _lookup_seconds(config: ModelConfig, rows: int, processes: Processes) -> float:
    tables = build_embeddings("joint_fused", TABLES, config.embedding_dim, False, "float32")
    (batch, *_) = make_batches(config, TABLES, rows, "zipf")
    return _timed(lambda: tables(tables.prepare(batch.ids), torch.float32), processes)


def _dense_seconds(config: ModelConfig, rows: int, processes: Processes) -> float:
    features = len(TABLES) + 1
    width = config.embedding_dim + features * (features - 1) // 2
    bottom = Mlp(config.num_numerical_features, config.bottom_mlp_sizes, final_relu=True)
    top = Mlp(width, config.top_mlp_sizes, final_relu=False)
    numerical = torch.rand(rows, config.num_numerical_features)
    joined = torch.rand(rows, width, requires_grad=True)
    parameters = [*bottom.parameters(), *top.parameters(), joined]

    def work() -> None:
        torch.autograd.grad(bottom(numerical).sum() + top(joined).sum(), parameters)

    return _timed(work, processes)


def _exchange_seconds(processes: Processes, values: int) -> float:
    if processes.world_size == 1:
        return 0.0
    sent = torch.zeros(values)
    received = torch.zeros_like(sent)
    return _timed(lambda: dist.all_to_all_single(received, sent), processes)


def unique_share(batches: Sequence[Batch[Tensor]]) -> float:
    """Returns the distinct rows of a table in a batch, per lookup."""
    columns = [column for batch in batches for column in batch.ids.t()]
    return sum(len(torch.unique(column)) for column in columns) / sum(map(len, columns))


def placements(workload: Workload, machine: Machine) -> dict[str, Placement]:
    """Returns the compared placements by name, the planned one first."""
    needed = sum(map(workload.table_bytes, workload.table_sizes))
    memory = needed * SHORT_OF_MEMORY / (1 - machine.reserved_fraction)
    short = dataclasses.replace(machine, memory_bytes=memory)
    ranks = machine.world_size

    def all_of(kind: PlacementKind) -> Placement:
        rank_of = [i % ranks if kind == "whole" else None for i in range(len(TABLES))]
        tables = zip(workload.table_sizes, rank_of, strict=True)
        return Placement(ranks, tuple(TablePlacement(n, kind, rank) for n, rank in tables))

    return {
        "planned": plan(workload, machine).placement,
        "planned, short of memory": plan(workload, short).placement,
        "all whole": all_of("whole"),
        "all by rows": all_of("rows"),
        "all replicated": all_of("replicate"),
    }


def compare_steps(options: argparse.Namespace, processes: Processes) -> list[Record]:
    """Predicts and measures the step of every placement and distribution."""
    config = SIZES["small"]
    data = DataConfig(dataset_type="synthetic_gpu", batch_size=options.batch_size)
    workload = workload_of(DlrmConfig(model=config, data=data), TABLES)
    machine = measured_machine(config, workload, processes)
    settings = {"processes": processes.world_size, "threads": 1, "B": options.batch_size}
    records: list[Record] = []
    if processes.is_first:
        print(
            f"measured: lookups {machine.memory_bytes_per_s / 1e9:.2f} GB/s, "
            f"products {machine.flop_per_s / 1e9:.1f} GFLOP/s, "
            f"exchange {machine.node_bytes_per_s / 1e9:.2f} GB/s, "
            f"{machine.latency_s * 1e6:.0f} us a collective",
            flush=True,
        )
    for distribution in DISTRIBUTIONS:
        batches = make_batches(config, TABLES, options.batch_size, distribution)
        workload = dataclasses.replace(workload, unique_share=unique_share(batches))
        placed = placements(workload, machine)
        start = Start(config, TABLES)
        sides: dict[str, Side] = {
            name: OurSide(config, start, p, processes.rank) for name, p in placed.items()
        }
        seconds = time_sides(sides, list(batches), processes, options.repeats)
        predicted = {name: predict(p, workload, machine).seconds for name, p in placed.items()}
        if processes.is_first:
            records += _records(distribution, predicted, seconds, settings)
        del sides
    return records


def _records(
    distribution: str,
    predicted: Mapping[str, float],
    seconds: Mapping[str, Sequence[float]],
    settings: Mapping[str, Any],
) -> list[Record]:
    print(f"\n| {distribution} ids | predicted ms | measured ms | predicted / measured |")
    print("|---|---|---|---|")
    records = []
    for name, times in seconds.items():
        ms = [1e3 * t for t in times]
        measured = make_record(
            *(BENCHMARK, f"{name}, {distribution}", "step", ms),
            unit="ms",
            direction="lower",
            config=settings,
        )
        ratios = [predicted[name] / t for t in times]
        ratio = make_record(
            *(BENCHMARK, f"{name}, {distribution}", "predicted over measured", ratios),
            unit="x",
            direction="lower",
            config=settings,
        )
        records += [measured, ratio]
        print(
            f"| {name} | {1e3 * predicted[name]:.2f} | {measured.value:.2f} | {ratio.value:.2f} |",
            flush=True,
        )
    return records


def way_by_programs(folder: Path, batch_size: int, steps: int) -> dict[str, float]:
    """Runs the programs from the dataset to the exported model.

    Returns:
        Step -> seconds, start of the program included.

    Raises:
        RuntimeError: a program fails.
    """
    sizes = ",".join(map(str, TABLES))
    model = SIZES["small"]
    network = [
        f"--embedding_dim={model.embedding_dim}",
        f"--bottom_mlp_sizes={','.join(map(str, model.bottom_mlp_sizes))}",
        f"--top_mlp_sizes={','.join(map(str, model.top_mlp_sizes))}",
    ]
    python = [sys.executable, "-m"]
    commands = {
        "dataset": [
            *(*python, "dlrm.scripts.prepare_synthetic_dataset"),
            *(f"--synthetic_dataset_dir={folder}/data", f"--synthetic_dataset_table_sizes={sizes}"),
            f"--synthetic_dataset_num_entries={(steps + 2) * batch_size}",
        ],
        "plan": [
            *(*python, "dlrm.scripts.plan_placement", f"--tables={sizes}", "--world_size=2"),
            *("--hbm_gib=8", f"--placement={folder}/plan.json", f"--batch_size={batch_size}"),
            *network,
        ],
        "training and checkpoint": [
            *(*python, "torch.distributed.run", "--standalone", "--nproc_per_node=2"),
            *("-m", "dlrm.scripts.dist_main", "--mode=train", f"--dataset={folder}/data"),
            *(f"--placement={folder}/plan.json", f"--batch_size={batch_size}", *network),
            *(f"--max_steps={steps}", "--test_after=10", "--num_threads=1", "--base_device=cpu"),
            *(f"--save_checkpoint_path={folder}/run", f"--log_path={folder}/log.json"),
        ],
        "exported model": [
            *(sys.executable, "triton/deployer.py", f"--checkpoint={folder}/run"),
            f"--repository={folder}/models",
        ],
    }
    seconds = {}
    for name, command in commands.items():
        used = run_process(command, env={"OMP_NUM_THREADS": "1"}, folder=REPOSITORY)
        if used.exit_status:
            raise RuntimeError(f"{name} ended with status {used.exit_status}: {used.output}")
        seconds[name] = used.wall_s
    return seconds


def measure_way(options: argparse.Namespace) -> list[Record]:
    """Measures the whole way by the programs."""
    with tempfile.TemporaryDirectory(prefix="planner-") as folder:
        seconds = way_by_programs(Path(folder), options.batch_size, options.steps)
    print(f"\n| step of the way ({options.steps} training steps) | seconds |\n|---|---|")
    for name, value in seconds.items():
        print(f"| {name} | {value:.1f} |", flush=True)
    settings = {"processes": 2, "threads": 1, "B": options.batch_size, "steps": options.steps}
    return [
        make_record(
            *(BENCHMARK, "by the programs", name, [value]),
            unit="s",
            direction="lower",
            config=settings,
            threshold="20%",
        )
        for name, value in seconds.items()
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Starts the processes, or measures in one; returns the exit status."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batch_size", type=int, default=4096, help="of all processes together")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--steps", type=int, default=100, help="of the training by the programs")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of .jsonl files")
    options = parser.parse_args(given)
    path = options.results / f"{BENCHMARK}.jsonl"
    if "RANK" not in os.environ:
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command += ["--nproc_per_node=2", "-m", "benchmark.dlrm.planner", *given]
        threads = {"OMP_NUM_THREADS": "1"}
        ended = subprocess.run(command, cwd=REPOSITORY, env=os.environ | threads, check=False)
        if not ended.returncode:
            write_records(path, measure_way(options))
        return ended.returncode
    with join_processes("cpu", 1) as processes:
        records = compare_steps(options, processes)
        if processes.is_first:
            write_records(path, records)
    return 0


if __name__ == "__main__":
    sys.exit(main())
