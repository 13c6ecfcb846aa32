# SPDX-License-Identifier: Apache-2.0
"""Candidates in one process, compared with the limits of the machine."""

import abc
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from benchmark.case import Case, Group, Key, Measure, Values
from benchmark.stopwatch import CPU, Work, seconds_per_call
from cuda_ext import library, ops
from cuda_ext.error_bounds import Bounded
from dlrm.data.synthetic import draw_ids
from recsys.settings import setting
from recsys.train.memory import keep_freed_memory

OURS = "ours"
NUM_BATCHES = 4
"""Batches used in turns, so that the rows of a step are not yet in the cache."""
LIMITS = "limits of the machine"
PRODUCT = "matrix product"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class SideBySide(Case, abc.ABC):
    """Settings of cases in one process; the same for every candidate."""

    tables: int = setting(26, "Number of tables")
    rows: int = setting(100_000, "Rows of each table")
    threads: int = setting(2, "Threads of PyTorch")
    allocator: Literal["kept", "default"] = setting(
        "kept", "Whether freed memory is kept (recsys.train.memory)"
    )
    matmul_size: int = setting(2048, "Rows and columns of the matrix product that gives the limit")

    @property
    def table_sizes(self) -> list[int]:
        """Rows of each table."""
        return [self.rows] * self.tables

    def apply(self) -> None:
        """Sets threads and allocator of this process."""
        torch.set_num_threads(self.threads)
        self.config()

    def config(self) -> dict[str, Any]:
        """Returns the settings, and how the kernels are built."""
        kept = self.allocator == "kept" and keep_freed_memory()
        return {
            "threads": self.threads,
            "allocator": "freed memory kept" if kept else "default",
            "ours": f"{library.path_of('cpu')} kernels",
            "tables": f"{self.tables} x {self.rows:,} rows",
        }


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class KernelSettings(SideBySide, abc.ABC):
    """Settings of the cases that measure single kernels."""

    repeats: ClassVar[int] = 15

    dims: tuple[int, ...] = setting((128, 16), "Columns of a table")
    batch_sizes: tuple[int, ...] = setting((2048, 8192), "Samples of a batch")
    copy_mib: int = setting(256, "MiB of the copy that gives the limit")
    device: Literal["cpu", "cuda"] = setting("cpu", "Device; cuda leaves out peers for CPUs")

    def config(self) -> dict[str, Any]:
        """Returns the settings, with the device if it is not a CPU."""
        on_gpu = {"device": self.device} if self.device != "cpu" else {}
        return SideBySide.config(self) | on_gpu

    @property
    def on(self) -> torch.device:
        """The device."""
        return torch.device(self.device)

    def limits(self) -> "Limits":
        """Returns the limits of the device."""
        return Limits(self.copy_mib << 20, self.matmul_size, device=self.on)


class Limits:
    """Rates of a large copy (0 bytes: no copy) and of a matrix product."""

    def __init__(
        self,
        copy_bytes: int,
        matmul_size: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device = CPU,
    ) -> None:
        self._source = torch.ones(copy_bytes // 4, device=device)
        self._target = torch.zeros_like(self._source)
        self._matrix = torch.ones(matmul_size, matmul_size, dtype=dtype, device=device)
        self.device = device

    def copy_rate(self) -> float:
        """Measures bytes per second, read plus written."""
        seconds = seconds_per_call(lambda: self._target.copy_(self._source), self.device)
        return 2 * self._source.nbytes / seconds

    def product_rate(self) -> float:
        """Measures FLOP per second, by the faster library in torch."""
        matrix = self._matrix
        seconds = seconds_per_call(lambda: ops.product(matrix, matrix), self.device)
        return 2 * len(matrix) ** 3 / seconds


def kernel_group(
    row: str,
    works: Mapping[str, Work],
    limits: Limits,
    *,
    peer: str,
    num_bytes: float,
    flops: float = 0.0,
) -> Group:
    """Makes the candidates of a kernel, with its floor.

    The floor is the longer of two times: of its traffic at the rate of a copy, and of its
    operations at the rate of a matrix product; both rates are measured in every round.

    Args:
        row: the computation and its sizes.
        works: implementation -> function that runs it once, ours among them.
        limits: limits of the machine, for the floor.
        peer: implementation to compare ours with, if it is among them.
        num_bytes: least traffic in bytes between memory and the chip.
        flops: number of floating-point operations.
    """

    def rates(_seed: int) -> Values:
        values = {
            Key(row, "copy", "GB/s"): limits.copy_rate() / 1e9,
            Key(row, PRODUCT, "GFLOP/s"): limits.product_rate() / 1e9,
            Key(row, "traffic", "MB"): num_bytes / 1e6,
        }
        return values | ({Key(row, "operations", "GFLOP"): flops / 1e9} if flops else {})

    def derive(values: Mapping[str, Values]) -> Values:
        copy, product, *_ = values[LIMITS].values()
        floor_ms = max(num_bytes / copy, flops / product) / 1e6
        ours = values[OURS][Key(row, OURS, "ms")]
        percent = {Key(row, "ours, share of the floor", "%"): 100 * floor_ms / ours}
        return {**speed_ups(row, values, [peer]), **percent}

    candidates = {LIMITS: rates, **timers(row, works, device=limits.device)}
    return Group(candidates=candidates, derive=derive, warmup=2)


def timers(
    row: str, works: Mapping[str, Work], calls: int = 1, device: torch.device = CPU
) -> dict[str, Measure]:
    """Returns functions that time `works`, in milliseconds."""

    def timer(name: str, work: Work) -> Measure:
        return lambda _seed: {Key(row, name, "ms"): 1e3 * seconds_per_call(work, device, calls)}

    return {name: timer(name, work) for name, work in works.items()}


def speed_ups(row: str, values: Mapping[str, Values], peers: Iterable[str]) -> dict[Key, float]:
    """Returns how many times as fast as each peer ours is."""
    ours = values[OURS][Key(row, OURS, "ms")]
    return {
        Key(row, f"times as fast as {peer}", "x"): values[peer][Key(row, peer, "ms")] / ours
        for peer in peers
        if peer in values
    }


def check_error(case: str, result: Tensor, bound: Bounded) -> None:
    """Checks that a float32 result's error is within its rounding bound.

    Raises:
        ArithmeticError: the error of an element is larger.
    """
    excess = bound.excess(result)
    if excess > 1:
        raise ArithmeticError(f"{case}: the error is {excess:.3g} times the bound of rounding")


def id_batches(
    table_sizes: Sequence[int],
    batch_size: int,
    distribution: str,
    device: torch.device = CPU,
    count: int = NUM_BATCHES,
) -> list[Tensor]:
    """Draws `count` batches of ids, [B, F] int64, equal on every call."""
    generator = torch.Generator(device).manual_seed(1)
    sizes = torch.tensor(table_sizes, device=device)
    return [draw_ids(sizes, batch_size, distribution, generator) for _ in range(count)]


def table_major(ids: Tensor) -> tuple[Tensor, Tensor]:
    """Converts ids [B, F] to the layout of FBGEMM and TorchRec.

    Returns:
        (values [F * B], all ids of the first feature first; offsets [F * B + 1]).
    """
    values = ids.t().reshape(-1).contiguous()
    return values, torch.arange(values.numel() + 1, dtype=torch.int64)


def torchrec_columns(dim: int, num_vectors: int) -> Tensor:
    """Returns the column in our dot interaction of each of TorchRec's columns.

    After the D columns of vector 0, TorchRec orders pairs (i, j > i) by i, then j; we by j, then i.
    """
    i, j = torch.triu_indices(num_vectors, num_vectors, 1)
    return torch.cat([torch.arange(dim), dim + j * (j - 1) // 2 + i])


def interaction_flops(batch: int, num_vectors: int, dim: int) -> float:
    """Returns the FLOPs of the forward pass; backward needs twice as many."""
    return float(batch * num_vectors * (num_vectors - 1) * dim)
