# SPDX-License-Identifier: Apache-2.0
"""Compares our DLRM training step on the CPU with PyTorch and TorchRec.

    python -m benchmark.dlrm.train_step
    python -m benchmark.dlrm.train_step --inference
    python -m benchmark.dlrm.train_step --bfloat16

All candidates start from the same weights, use the same batches, threads and allocator setting,
take turns, and must reach the same losses before they are timed. The ceiling is the time that the
floating-point operations of the step would take at the rate of a large matrix product by the faster
library in torch. `make peers` makes an environment with TorchRec; without it TorchRec is left out.
"""

import argparse
import contextlib
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from benchmark.dlrm.train_step_models import (
    BFLOAT16_LOSS_TOLERANCE,
    IN_FLOAT32,
    LOSS_TOLERANCE,
    PYTORCH,
    SIZES,
    TORCHREC,
    Candidate,
    build_candidates,
    check_training,
    forward_flops,
    make_batches,
    training_flops,
)
from benchmark.kernels.case import OURS, Rotation
from benchmark.kernels.side_by_side import (
    Measurements,
    apply_settings,
    compare,
    make_parser,
    make_records,
)
from benchmark.kernels.stopwatch import Work, time_interleaved
from benchmark.peers.torchrec_dlrm import single_process_group
from benchmark.peers.torchrec_interaction import has_torchrec
from benchmark.record import Record, write_records
from cuda_ext import ops

TRAINING_CASES = (
    ("big", "uniform", 2048),
    ("big", "zipf", 2048),
    ("big", "uniform", 8192),
    ("big", "zipf", 8192),
    ("small", "uniform", 2048),
    ("small", "zipf", 2048),
)
INFERENCE_CASES = tuple(
    (model, "zipf", batch_size) for model in ("big", "small") for batch_size in (1, 64, 4096)
)
CEILING = "matrix product"
SHORTEST_S = 0.05
"""Seconds of one measurement, at least; short steps are repeated within it."""


def measure_case(
    works: dict[str, Work],
    batch_size: int,
    flops: float,
    matrix: torch.Tensor,
    repeats: int,
) -> Measurements:
    """Times a step of each candidate and a large matrix product.

    Args:
        works: candidate -> function that runs one step.
        batch_size: B.
        flops: floating-point operations of the step.
        matrix: square; its product with itself is the ceiling.
        repeats: number of rounds.

    Returns:
        Times, speed-ups, our samples per second and our percentage of the ceiling.
    """
    first = time_interleaved(works, 1)
    calls = max(1, round(SHORTEST_S / min(times[0] for times in first.values())))
    timed = {name: _repeated(work, calls) for name, work in works.items()}
    timed[CEILING] = lambda: ops.product(matrix, matrix)
    seconds = time_interleaved(timed, repeats, warmup=1)
    rates = [2 * len(matrix) ** 3 / t for t in seconds.pop(CEILING)]
    steps = {name: [t / calls for t in times] for name, times in seconds.items()}
    measurements: Measurements = {(CEILING, "GFLOP/s"): [rate / 1e9 for rate in rates]}
    measurements |= compare(steps, (TORCHREC, PYTORCH, IN_FLOAT32))
    measurements["our throughput", "samples/s"] = [batch_size / t for t in steps[OURS]]
    shares = [100 * flops / t / rate for t, rate in zip(steps[OURS], rates, strict=True)]
    measurements["ours, share of the ceiling", "%"] = shares
    return measurements


def _repeated(work: Work, calls: int) -> Work:
    def run() -> None:
        for _ in range(calls):
            work()

    return run


def training_work(candidate: Candidate, batches: Sequence[Any]) -> Work:
    """Returns a function that runs one training step."""
    turns = Rotation([candidate.prepare(batch) for batch in batches])
    return lambda: candidate.train(turns())


def inference_work(candidate: Candidate, batches: Sequence[Any]) -> Work:
    """Returns a function that runs one forward pass."""
    turns = Rotation([candidate.prepare(batch) for batch in batches])

    def run() -> object:
        # Not inference_mode: FBGEMM's lookup on a CPU does not support it.
        with torch.no_grad():
            return candidate.logits(turns())

    return run


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures every case; returns the exit status."""
    options = _parse(arguments)
    settings = apply_settings(options)
    benchmark = "inference_step" if options.inference else "train_step"
    benchmark += "_bfloat16" if options.bfloat16 else ""
    records: list[Record] = []
    # TorchRec needs a process group, even of one process.
    with single_process_group() if has_torchrec() else contextlib.nullcontext():
        for case, measurements in _measure(options):
            records += make_records(benchmark, case, measurements, settings)
    write_records(options.results / f"{benchmark}.jsonl", records)
    return 0


def _measure(options: argparse.Namespace) -> Iterator[tuple[str, Measurements]]:
    """Yields (case, measurements) of every case of the command line."""
    sizes = [options.rows] * options.tables
    dtype = torch.bfloat16 if options.bfloat16 else torch.float32
    matrix = torch.ones(options.matmul_size, options.matmul_size, dtype=dtype)
    work_of, flops_of = (
        (inference_work, forward_flops) if options.inference else (training_work, training_flops)
    )
    for model in options.models:
        config = SIZES[model]
        candidates = build_candidates(config, sizes, options.bfloat16)
        tolerance = BFLOAT16_LOSS_TOLERANCE if options.bfloat16 else LOSS_TOLERANCE
        check_training(candidates, make_batches(config, sizes, 256, "zipf"), tolerance)
        for name, distribution, usual in INFERENCE_CASES if options.inference else TRAINING_CASES:
            if name != model or usual not in (options.batch_sizes or [usual]):
                continue
            batches = make_batches(config, sizes, usual, distribution)
            works = {
                candidate: work_of(implementation, batches)
                for candidate, implementation in candidates.items()
            }
            flops = usual * flops_of(config, options.tables)
            measurements = measure_case(works, usual, flops, matrix, options.repeats)
            yield f"{model}, {distribution}, B={usual:,}", measurements


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("--inference", action="store_true", help="forward passes, not training")
    parser.add_argument(
        "--bfloat16", action="store_true", help="all under autocast, ours in float32 beside them"
    )
    parser.add_argument("--models", nargs="+", choices=list(SIZES), default=list(SIZES))
    parser.add_argument(
        "--batch_sizes", type=int, nargs="+", help="leave out the cases of all others"
    )
    parser.add_argument("--repeats", type=int, default=9)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
