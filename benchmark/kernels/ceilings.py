# SPDX-License-Identifier: Apache-2.0
"""Measures a device's copy and matrix-product rates, limits of kernels."""

import contextlib
import dataclasses
import statistics
from collections.abc import Iterator

import torch

from benchmark.kernels.stopwatch import CPU, seconds_per_call
from cuda_ext import ops


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Ceilings:
    """Measured limits of a device.

    Attributes:
        copy_bytes_per_s: rate of a large copy, bytes read plus bytes written.
        matmul_flops_per_s: dtype or mode -> rate of a large square matrix product.
        l2_read_bytes_per_s: rate of a sum over a tensor in the L2 cache; CUDA only.
    """

    copy_bytes_per_s: float
    matmul_flops_per_s: dict[str, float]
    l2_read_bytes_per_s: float | None = None

    def floor_s(self, num_bytes: float, flops: float, matmul: str) -> float:
        """Returns the shortest possible time of an op, in seconds.

        Args:
            num_bytes: bytes between memory and the chip.
            flops: floating-point operations.
            matmul: dtype or mode whose matrix-product rate limits the operations.
        """
        return max(num_bytes / self.copy_bytes_per_s, flops / self.matmul_flops_per_s[matmul])


def copy_rate(num_bytes: int, device: torch.device = CPU, repeats: int = 5) -> float:
    """Measures bytes per second, read plus written, of a copy."""
    source = torch.ones(num_bytes // 4, device=device)
    target = torch.zeros_like(source)
    times = [seconds_per_call(lambda: target.copy_(source), device) for _ in range(repeats + 1)]
    return 2 * num_bytes / statistics.median(times[1:])


def read_rate(num_bytes: int, device: torch.device, repeats: int = 5) -> float:
    """Measures bytes per second of repeated sums over `num_bytes`."""
    source = torch.ones(num_bytes // 4, device=device)
    result = torch.zeros((), device=device)
    dims = (0,)
    times = [
        seconds_per_call(lambda: torch.sum(source, dims, out=result), device, calls=10)
        for _ in range(repeats + 1)
    ]
    return num_bytes / statistics.median(times[1:])


def matmul_rate(
    size: int, dtype: torch.dtype, device: torch.device = CPU, repeats: int = 3
) -> float:
    """Measures the FLOP/s of a product of [size, size] matrices.

    On a CPU by the faster library in torch.
    """
    a = torch.ones(size, size, dtype=dtype, device=device)
    b = torch.ones_like(a)
    times = [seconds_per_call(lambda: ops.product(a, b), device) for _ in range(repeats + 1)]
    return 2 * size**3 / statistics.median(times[1:])


@contextlib.contextmanager
def tf32_matmul() -> Iterator[None]:
    """Allows TF32 in float32 matrix products on a CUDA device."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def measure_cpu(copy_bytes: int = 256 << 20, matmul_size: int = 2048) -> Ceilings:
    """Measures copy and float32 matrix product on the CPU."""
    return Ceilings(
        copy_bytes_per_s=copy_rate(copy_bytes),
        matmul_flops_per_s={"float32": matmul_rate(matmul_size, torch.float32)},
    )


def measure_cuda(device: torch.device, copy_bytes: int = 1 << 30, size: int = 8192) -> Ceilings:
    """Measures copy, L2 reads and matrix products of a CUDA device.

    A CPU device, to test the program, has no L2 reads.
    """
    rates = {"float32": matmul_rate(size, torch.float32, device)}
    with tf32_matmul():
        rates["tf32"] = matmul_rate(size, torch.float32, device)
    rates |= {
        name: matmul_rate(size, dtype, device)
        for name, dtype in (("bfloat16", torch.bfloat16), ("float16", torch.float16))
    }
    l2_read = read_rate(16 << 20, device) if device.type == "cuda" else None
    return Ceilings(
        copy_bytes_per_s=copy_rate(copy_bytes, device),
        matmul_flops_per_s=rates,
        l2_read_bytes_per_s=l2_read,
    )
