# SPDX-License-Identifier: Apache-2.0
"""Common flags, settings and records of benchmarks in one process."""

import argparse
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmark.kernels.case import OURS
from benchmark.peers.torchrec_interaction import has_torchrec
from benchmark.record import RESULTS, Record, make_record
from cuda_ext import library
from recsys.train.memory import keep_freed_memory

Measurements = dict[tuple[str, str], list[float]]
"""(metric, unit) -> measured value of each round."""


def make_parser(description: str | None) -> argparse.ArgumentParser:
    """Returns a parser with the common flags."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tables", type=int, default=26, help="number of tables")
    parser.add_argument("--rows", type=int, default=100_000, help="of each table")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--allocator",
        choices=("kept", "default"),
        default="kept",
        help="whether freed memory is kept (recsys.train.memory), for every candidate",
    )
    parser.add_argument(
        "--matmul_size", type=int, default=2048, help="of the ceiling that is timed"
    )
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of .jsonl files")
    return parser


def apply_settings(options: argparse.Namespace) -> dict[str, Any]:
    """Sets threads and allocator of this process, for all candidates.

    Returns:
        {setting: value} for the records; also printed.
    """
    torch.set_num_threads(options.threads)
    kept = options.allocator == "kept" and keep_freed_memory()
    settings = {
        "threads": options.threads,
        "allocator": "freed memory kept" if kept else "default",
        "ours": f"{library.path_of('cpu')} kernels",
        "tables": f"{options.tables} x {options.rows:,} rows",
    }
    print("; ".join(f"{name}: {value}" for name, value in settings.items()), "(on all sides)")
    if not has_torchrec():
        print("TorchRec and FBGEMM are not installed here and are left out: see `make peers`")
    return settings


def compare(seconds: Mapping[str, Sequence[float]], peers: Iterable[str]) -> Measurements:
    """Computes each candidate's milliseconds and our speed-up over each peer.

    The speed-up is computed per round, so that drift of the machine cancels.

    Args:
        seconds: candidate -> seconds of each round.
        peers: candidates to compare ours with.
    """
    measurements: Measurements = {
        (name, "ms"): [1e3 * t for t in times] for name, times in seconds.items()
    }
    for peer in peers:
        if peer in seconds:
            pairs = zip(seconds[OURS], seconds[peer], strict=True)
            measurements[f"ours over {peer}", "x"] = [other / ours for ours, other in pairs]
    return measurements


def make_records(
    benchmark: str, case: str, measurements: Measurements, settings: Mapping[str, Any]
) -> Iterator[Record]:
    """Yields a record per metric of a case; prints the medians."""
    medians = (
        f"{metric} {statistics.median(values):.4g} {unit}"
        for (metric, unit), values in measurements.items()
    )
    print(f"{benchmark}: {case}: {'; '.join(medians)}", flush=True)
    for (metric, unit), values in measurements.items():
        yield make_record(
            benchmark,
            case,
            metric,
            values,
            unit=unit,
            direction="lower" if unit == "ms" else "higher",
            config=settings,
        )
