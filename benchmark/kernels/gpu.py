# SPDX-License-Identifier: Apache-2.0
"""Measures every op of the extension against the device's limits.

`python -m benchmark.gpu --parts ops` writes the results as one JSON file. Times are those of CUDA
events. The floor of an op is the longer of two times: for its least traffic (each distinct row
once) at the rate of a large copy, and for its operations at the rate of a matrix product of that
type. Batches that fit into the L2 cache may be faster.
"""

import dataclasses
import json
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from benchmark.kernels.ceilings import Ceilings, measure_cuda
from benchmark.kernels.gpu_cases import OpCase, Sizes, interaction_cases, lookup_cases, update_cases
from benchmark.kernels.stopwatch import time_interleaved
from benchmark.machine import commit, hardware, versions
from cuda_ext import library


def all_cases(sizes: Sizes, device: torch.device) -> Iterator[OpCase]:
    """Yields every op at every size, one after the other."""
    yield from interaction_cases(sizes, device)
    yield from lookup_cases(sizes, device)
    yield from update_cases(sizes, device)


def measure_op(
    case: OpCase, ceilings: Ceilings, sizes: Sizes, device: torch.device
) -> dict[str, Any]:
    """Times one op; returns the fields of its JSON object."""
    times = time_interleaved(
        {"op": case.work}, sizes.repeats, device=device, calls=sizes.calls, warmup=3
    )["op"]
    seconds = statistics.median(times)
    floor_s = ceilings.floor_s(case.num_bytes, case.flops, case.matmul)
    return {
        "op": case.op,
        "distribution": case.distribution,
        "batch_size": case.batch_size,
        "dtype": case.dtype,
        "seconds": seconds,
        "fastest_s": min(times),
        "slowest_s": max(times),
        "bytes": case.num_bytes,
        "bytes_per_s": case.num_bytes / seconds,
        "share_of_copy": case.num_bytes / seconds / ceilings.copy_bytes_per_s,
        "flops": case.flops,
        "flops_per_s": case.flops / seconds,
        "share_of_matmul": case.flops / seconds / ceilings.matmul_flops_per_s[case.matmul],
        "floor_s": floor_s,
        "share_of_floor": floor_s / seconds,
    }


def measure_kernels(target: Path, sizes: Sizes, device: torch.device, limit_s: float) -> None:
    """Measures limits and ops and writes them to a JSON file.

    Args:
        target: file to write, also if time runs out.
        sizes: sizes of inputs and measurements.
        device: device of the ops; a CPU is timed by the wall clock.
        limit_s: seconds after which no further op is started.
    """
    started = time.perf_counter()
    ceilings = measure_cuda(device, sizes.copy_bytes, sizes.matmul_size)
    print(json.dumps(dataclasses.asdict(ceilings)), flush=True)
    measured: list[dict[str, Any]] = []
    complete = True
    for case in all_cases(sizes, device):
        if time.perf_counter() - started > limit_s:
            complete = False
            break
        measured.append(measure_op(case, ceilings, sizes, device))
        one = measured[-1]
        print(
            f"{one['op']:32s} {one['dtype']:9s} {one['distribution'] or '':8s}"
            f"{one['batch_size']:7d} {one['seconds'] * 1e6:10.1f} us "
            f"{one['bytes_per_s'] / 1e9:8.1f} GB/s {one['flops_per_s'] / 1e12:8.2f} TFLOP/s "
            f"{100 * one['share_of_floor']:6.1f} % of the floor",
            flush=True,
        )
    result = {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "kernels": library.path_of(device.type),
        "complete": complete,
        "seconds": time.perf_counter() - started,
        "sizes": dataclasses.asdict(sizes),
        "ceilings": dataclasses.asdict(ceilings),
        "ops": measured,
        "hardware": hardware(),
        "versions": versions(),
        "commit": commit(),
    }
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(result, indent=1) + "\n")
