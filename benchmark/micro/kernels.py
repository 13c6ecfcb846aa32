# SPDX-License-Identifier: Apache-2.0
"""Our CPU kernels beside those of PyTorch, TorchRec and FBGEMM, in one process.

    python -m benchmark.micro.kernels

All candidates share threads, allocator setting and inputs, take turns, and are checked against
float64 before they are timed. `make peers` makes an environment with TorchRec and FBGEMM; without
it their columns are missing. The floor of a case is the time in which its traffic would pass at
the rate of a copy, or its operations at the rate of a matrix product, whichever is longer.
"""

import argparse
import statistics
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from benchmark.ceilings import Ceilings, measure_cpu
from benchmark.micro.kernels_case import OURS, KernelCase
from benchmark.micro.kernels_embedding import embedding_cases
from benchmark.micro.kernels_interaction import interaction_cases
from benchmark.micro.kernels_sparse_step import sparse_step_cases
from benchmark.peers.torchrec_interaction import has_torchrec
from benchmark.record import RESULTS, Record, make_record, write_records
from benchmark.stopwatch import time_interleaved
from cuda_ext import library
from training.allocator import keep_freed_memory

GROUPS = ("interaction", "embedding", "sparse_step")


def measure_case(case: KernelCase, ceilings: Ceilings, repeats: int) -> dict[str, list[float]]:
    """Times the candidates of a case.

    Returns:
        metric -> figures of all rounds: milliseconds per candidate, the ratio over the peer, and
        the share of the floor that we reach, in percent.
    """
    seconds = time_interleaved(case.candidates, repeats)
    found = {name: [1e3 * t for t in times] for name, times in seconds.items()}
    if case.peer is not None:
        pairs = zip(seconds[OURS], seconds[case.peer], strict=True)
        found[f"ours over {case.peer}"] = [peer / ours for ours, peer in pairs]
    floor = ceilings.floor_s(case.num_bytes, case.flops, "float32")
    found["ours, share of the floor"] = [100 * floor / t for t in seconds[OURS]]
    return found


def unit_of(metric: str) -> str:
    """Returns the unit of a metric of `measure_case`."""
    if metric.startswith("ours over"):
        return "x"
    return "%" if metric.endswith("floor") else "ms"


def cases_of(group: str, options: argparse.Namespace) -> Iterator[KernelCase]:
    """Yields the cases of a group of kernels."""
    sizes = [options.rows] * options.tables
    for dim in options.dims:
        if group == "interaction":
            for batch_size in options.batch_sizes:
                yield from interaction_cases(
                    dim, batch_size, options.tables, compiled=options.compile
                )
        elif group == "embedding":
            yield from embedding_cases(sizes, dim, options.batch_sizes)
        else:
            yield from sparse_step_cases(sizes, dim, options.batch_sizes)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures every case; returns the exit status."""
    options = _parse(arguments)
    torch.set_num_threads(options.threads)
    allocator = "freed memory kept" if keep_freed_memory() else "default"
    ceilings = measure_cpu(options.copy_mib << 20, options.matmul_size)
    print(
        f"{options.threads} threads; allocator on all sides: {allocator}; "
        f"copy {ceilings.copy_bytes_per_s / 1e9:.1f} GB/s, "
        f"float32 matrix product {ceilings.matmul_flops_per_s['float32'] / 1e9:.0f} GFLOP/s"
    )
    if not has_torchrec():
        print("TorchRec and FBGEMM are not installed here and are left out: see `make peers`")
    config = {
        "threads": options.threads,
        "allocator": allocator,
        "ours": f"{library.path_of('cpu')} kernels",
        "tables": f"{options.tables} x {options.rows:,} rows",
    }
    for group in options.groups:
        records: list[Record] = []
        for case in cases_of(group, options):
            found = measure_case(case, ceilings, options.repeats)
            records += [
                make_record(
                    f"{group}_kernels",
                    case.name,
                    metric,
                    figures,
                    unit=unit_of(metric),
                    direction="lower" if unit_of(metric) == "ms" else "higher",
                    config=config,
                )
                for metric, figures in found.items()
            ]
            medians = (
                f"{metric} {statistics.median(figures):.3g} {unit_of(metric)}"
                for metric, figures in found.items()
            )
            print(f"{group}: {case.name}: {'; '.join(medians)}", flush=True)
        if options.results is not None:
            write_records(options.results / f"{group}_kernels.jsonl", records)
    return 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--groups", nargs="+", choices=GROUPS, default=list(GROUPS))
    parser.add_argument("--dims", type=int, nargs="+", default=[128, 16])
    parser.add_argument("--batch_sizes", type=int, nargs="+", default=[2048, 8192])
    parser.add_argument("--tables", type=int, default=26, help="number of tables")
    parser.add_argument("--rows", type=int, default=100_000, help="of each table")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--copy_mib", type=int, default=256, help="size of the copy that is timed")
    parser.add_argument("--matmul_size", type=int, default=4096)
    parser.add_argument(
        "--compile",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="measure torch.compile too (needs a C++ compiler)",
    )
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of .jsonl files")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
