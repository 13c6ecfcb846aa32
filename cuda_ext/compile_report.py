# SPDX-License-Identifier: Apache-2.0
"""Compiles the CUDA kernels for every architecture and checks their registers.

    python -m cuda_ext.compile_report [architecture ...]

Prints a Markdown table of registers and shared memory per kernel. Exits 1 if a kernel spills
registers to memory or needs more of them than `REGISTER_LIMITS` allows, 2 if one does not compile.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

CSRC = Path(__file__).with_name("csrc")
ARCHITECTURES = ("80", "90", "100", "120")
KERNELS = "recsys::kernels::"

REGISTER_LIMITS = (
    # Up to 64 vectors a sample: two blocks of four warps on a multiprocessor.
    (r"interact_vectors<.*, 4> ", 232),
    (r"interact_vectors_backward<.*, 4> ", 255),
    # Up to 32 vectors: three such blocks; in the backward pass two, three on Hopper.
    (r"interact_vectors<", 136),
    (r"interact_vectors_backward<.* sm_90", 168),
    (r"interact_vectors_backward<", 208),
    (r"", 128),
)
"""Pattern of "kernel sm_architecture", and the registers it may use; the first match counts."""


class KernelUsage(NamedTuple):
    """Resources of a kernel on an architecture."""

    kernel: str
    architecture: str
    registers: int
    shared_bytes: int
    spilled_bytes: int


def nvcc() -> str:
    """Returns the path of nvcc, in CUDA_HOME or on the PATH.

    Raises:
        FileNotFoundError: nvcc is not found.
    """
    home = os.environ.get("CUDA_HOME")
    compiler = shutil.which("nvcc", path=f"{home}/bin" if home else None)
    if compiler is None:
        raise FileNotFoundError("nvcc not found: set CUDA_HOME to the folder of the CUDA toolkit")
    return compiler


def compile_source(source: Path, architectures: Sequence[str]) -> str:
    """Compiles a source; returns ptxas's report with readable names.

    Raises:
        RuntimeError: the source does not compile.
    """
    flags = [f"-gencode=arch=compute_{arch},code=sm_{arch}" for arch in architectures]
    with tempfile.TemporaryDirectory() as folder:
        command = [nvcc(), "-std=c++17", "-O3", "-Xptxas=-v", *flags]
        command += ["-c", str(source), "-o", f"{folder}/kernels.o"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{source.name}: {done.stderr}")
    return subprocess.run(
        ["c++filt"], input=done.stderr, capture_output=True, text=True, check=True
    ).stdout


def readable_name(signature: str) -> str:
    """Returns the short name of one of our kernels from its signature."""
    name = signature.partition(KERNELS)[2].rpartition("(")[0].replace("recsys::", "")
    return name.replace("<kernels::DeviceMath>", "").replace("kernels::", "")


def parse_usage(text: str) -> list[KernelUsage]:
    """Parses ptxas's report, leaving out kernels of CUB."""
    usages = []
    for section in text.split("Compiling entry function '")[1:]:
        name, _, rest = section.partition("' for 'sm_")
        if KERNELS not in name:
            continue
        registers = re.search(r"Used (\d+) registers", rest)
        assert registers is not None
        shared = re.search(r"(\d+) bytes smem", rest)
        spilled = re.findall(r"(\d+) bytes spill", rest)
        usages.append(
            KernelUsage(
                readable_name(name),
                rest.partition("'")[0],
                int(registers[1]),
                int(shared[1]) if shared else 0,
                sum(map(int, spilled)),
            )
        )
    return usages


def register_limit(kernel: str, architecture: str) -> int:
    """Returns how many registers a kernel may use."""
    name = f"{kernel} sm_{architecture}"
    return next(limit for pattern, limit in REGISTER_LIMITS if re.match(pattern, name))


def violations(usages: Iterable[KernelUsage]) -> list[str]:
    """Returns a line for each kernel that spills or exceeds its limit."""
    lines = []
    for usage in usages:
        where = f"{usage.kernel}, sm_{usage.architecture}"
        if usage.spilled_bytes:
            lines.append(f"{where}: spills {usage.spilled_bytes} bytes of registers")
        limit = register_limit(usage.kernel, usage.architecture)
        if usage.registers > limit:
            lines.append(f"{where}: {usage.registers} registers, the limit is {limit}")
    return lines


def table(usages: Sequence[KernelUsage]) -> str:
    """Returns registers per kernel and architecture as a Markdown table."""
    architectures = sorted({usage.architecture for usage in usages}, key=int)
    lines = [
        "| kernel | static shared memory, bytes | "
        + " | ".join(f"registers, sm_{arch}" for arch in architectures)
        + " |",
        "|---|---|" + "---|" * len(architectures),
    ]
    for kernel in sorted({usage.kernel for usage in usages}):
        of_kernel = {usage.architecture: usage for usage in usages if usage.kernel == kernel}
        shared = max(usage.shared_bytes for usage in of_kernel.values())
        registers = [str(of_kernel[arch].registers) for arch in architectures]
        lines.append(f"| `{kernel}` | {shared} | {' | '.join(registers)} |")
    return "\n".join(lines)


def main(architectures: Sequence[str]) -> int:
    """Compiles, prints the table, and returns the exit status."""
    usages = []
    try:
        for source in sorted(CSRC.rglob("*.cu")):
            usages += parse_usage(compile_source(source, architectures))
    except (FileNotFoundError, RuntimeError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    sys.stdout.write(table(usages) + "\n")
    broken = violations(usages)
    sys.stderr.write("".join(f"{line}\n" for line in broken))
    return 1 if broken else 0


if __name__ == "__main__":
    _parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    _parser.add_argument(
        "architectures", nargs="*", default=ARCHITECTURES, help="CUDA architectures, such as 90"
    )
    sys.exit(main(_parser.parse_args().architectures))
