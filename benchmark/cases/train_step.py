# SPDX-License-Identifier: Apache-2.0
"""Our DLRM training step on the CPU, compared with PyTorch's and TorchRec's.

All candidates start from the same weights, use the same batches, threads and allocator setting,
take turns, and must reach the same losses before they are timed. The ceiling is the time that the
floating-point operations of the step would take at the rate of a large matrix product by the faster
library in torch. `make torchrec` installs TorchRec, which is left out otherwise.
"""

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch

from benchmark.case import Group, Key, Values
from benchmark.peers.dlrm import (
    BFLOAT16_LOSS_TOLERANCE,
    IN_FLOAT32,
    LOSS_TOLERANCE,
    PYTORCH,
    SIZES,
    TORCHREC,
    DlrmImplementation,
    build_candidates,
    check_training,
    forward_flops,
    make_batches,
    training_flops,
)
from benchmark.peers.torchrec import has_torchrec, single_process_group
from benchmark.side_by_side import (
    LIMITS,
    OURS,
    PRODUCT,
    Limits,
    SideBySide,
    speed_ups,
    timers,
)
from benchmark.stopwatch import Work, in_turns, seconds_per_call
from recsys.settings import setting

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
SHORTEST_S = 0.05
"""Shortest measurement, in seconds; it repeats short steps."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TrainSteps(SideBySide):
    """Training steps or forward passes of two models."""

    repeats: ClassVar[int] = 9

    inference: bool = setting(False, "Measure forward passes instead of training")
    bfloat16: bool = setting(False, "Run all under autocast, and ours in float32 too")
    models: tuple[str, ...] = setting(tuple(SIZES), "Models: big, small or both")
    batch_sizes: tuple[int, ...] = setting((), "Batch sizes to measure; default: all")

    @property
    def name(self) -> str:
        """Name of the results."""
        name = "inference_step" if self.inference else "train_step"
        return name + ("_bfloat16" if self.bfloat16 else "")

    def groups(self, folder: Path) -> Iterator[Group]:  # noqa: ARG002
        """Yields each model, distribution and size."""
        self.apply()
        dtype = torch.bfloat16 if self.bfloat16 else torch.float32
        limits = Limits(0, self.matmul_size, dtype)
        # TorchRec needs a process group, even of one process.
        with single_process_group() if has_torchrec() else contextlib.nullcontext():
            for model in self.models:
                yield from self._groups(model, limits)

    def _groups(self, model: str, limits: Limits) -> Iterator[Group]:
        config, sizes = SIZES[model], self.table_sizes
        candidates = build_candidates(config, sizes, self.bfloat16)
        tolerance = BFLOAT16_LOSS_TOLERANCE if self.bfloat16 else LOSS_TOLERANCE
        check_training(candidates, make_batches(config, sizes, 256, "zipf"), tolerance)
        if self.inference:
            for candidate in candidates.values():
                candidate.begin_inference()
        flops_of = forward_flops if self.inference else training_flops
        for name, distribution, size in INFERENCE_CASES if self.inference else TRAINING_CASES:
            if name != model or size not in (self.batch_sizes or [size]):
                continue
            batches = make_batches(config, sizes, size, distribution)
            works = {n: _work(each, batches, self.inference) for n, each in candidates.items()}
            row = f"{model}, {distribution}, B={size:,}"
            yield _group(row, works, limits, size, size * flops_of(config, self.tables))


def _group(
    row: str, works: dict[str, Work], limits: Limits, batch_size: int, flops: float
) -> Group:
    """Makes the candidates of a case; short steps are repeated."""
    first = min(seconds_per_call(work) for work in works.values() for _ in range(2))
    calls = max(1, round(SHORTEST_S / first))

    def rate(_seed: int) -> Values:
        return {Key(row, PRODUCT, "GFLOP/s"): limits.product_rate() / 1e9}

    def derive(values: Mapping[str, Values]) -> Values:
        (product,) = values[LIMITS].values()
        seconds = values[OURS][Key(row, OURS, "ms")] / 1e3
        return {
            **speed_ups(row, values, (TORCHREC, PYTORCH, IN_FLOAT32)),
            Key(row, "our throughput", "samples/s"): batch_size / seconds,
            Key(row, "ours, share of the ceiling", "%"): flops / seconds / product / 1e7,
        }

    candidates = {LIMITS: rate, **timers(row, works, calls)}
    return Group(candidates=candidates, derive=derive, warmup=1)


def _work(candidate: DlrmImplementation, batches: Sequence[Any], inference: bool) -> Work:
    """Returns a function that runs one forward pass or training step."""
    # Not inference_mode: FBGEMM's lookup on a CPU does not support it.
    function = torch.no_grad()(candidate.logits) if inference else candidate.train
    return in_turns(function, [(candidate.prepare(batch),) for batch in batches])


CASE = TrainSteps
