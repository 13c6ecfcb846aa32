# SPDX-License-Identifier: Apache-2.0
"""Compares our CPU kernels with those of PyTorch, TorchRec and FBGEMM.

    python -m benchmark.kernels.cpu

All candidates use the same threads, allocator setting and inputs, take turns, and are checked
against float64 before they are timed. Inputs are converted to each layout before the clock runs.
Our tables use huge pages and check ids, FBGEMM's do neither. `make peers` makes an environment with
TorchRec and FBGEMM; without it they are left out. The floor of a case is the longer of two times:
for its traffic at the rate of a copy, and for its operations at the rate of a matrix product; both
rates are measured just before the case.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence

from benchmark.kernels.case import OURS, KernelCase
from benchmark.kernels.ceilings import Ceilings, measure_cpu
from benchmark.kernels.embedding import embedding_cases
from benchmark.kernels.interaction import interaction_cases
from benchmark.kernels.side_by_side import (
    Measurements,
    apply_settings,
    compare,
    make_parser,
    make_records,
)
from benchmark.kernels.sparse_step import sparse_step_cases
from benchmark.kernels.stopwatch import time_interleaved
from benchmark.record import Record, write_records

GROUPS = ("interaction", "embedding", "sparse_step")


def measure_case(case: KernelCase, ceilings: Ceilings, repeats: int) -> Measurements:
    """Times a case's candidates and computes our percentage of the floor."""
    measurements: Measurements = {
        ("copy", "GB/s"): [ceilings.copy_bytes_per_s / 1e9],
        ("matrix product", "GFLOP/s"): [ceilings.matmul_flops_per_s["float32"] / 1e9],
        ("traffic", "MB"): [case.num_bytes / 1e6],
    }
    if case.flops:
        measurements["operations", "GFLOP"] = [case.flops / 1e9]
    seconds = time_interleaved(case.candidates, repeats)
    measurements |= compare(seconds, [] if case.peer is None else [case.peer])
    floor = ceilings.floor_s(case.num_bytes, case.flops, "float32")
    measurements["ours, share of the floor", "%"] = [100 * floor / t for t in seconds[OURS]]
    return measurements


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
    settings = apply_settings(options)
    for group in options.groups:
        records: list[Record] = []
        for case in cases_of(group, options):
            ceilings = measure_cpu(options.copy_mib << 20, options.matmul_size)
            measurements = measure_case(case, ceilings, options.repeats)
            records += make_records(f"{group}_kernels", case.name, measurements, settings)
        write_records(options.results / f"{group}_kernels.jsonl", records)
    return 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("--groups", nargs="+", choices=GROUPS, default=list(GROUPS))
    parser.add_argument("--dims", type=int, nargs="+", default=[128, 16])
    parser.add_argument("--batch_sizes", type=int, nargs="+", default=[2048, 8192])
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--copy_mib", type=int, default=256, help="size of the copy that is timed")
    parser.add_argument(
        "--compile",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="measure torch.compile too (needs a C++ compiler)",
    )
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
