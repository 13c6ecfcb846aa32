# SPDX-License-Identifier: Apache-2.0
"""Disassembles the CUDA kernels and checks how they read and write memory.

    python -m cuda_ext.instruction_report [architecture]

Prints a Markdown table of each kernel's instructions: accesses of global memory by their width,
loads that are under way together, products of tensor cores. Needs nvcc and nvdisasm. Exit status 1:
a kernel breaks one of `RULES`; 2: it does not compile.
"""

import argparse
import dataclasses
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from cuda_ext.compile_report import CSRC, KERNELS, nvcc, readable_name

_INSTRUCTION = re.compile(r"\s+/\*[0-9a-f]+\*/\s+(@!?\w+\s+)?([A-Z][A-Z0-9_.]*)\s*([^;]*)")
_REGISTER = re.compile(r"\bR(\d+)(\.64)?")
_CODE = ".text."


@dataclasses.dataclass(frozen=True, slots=True)
class Instruction:
    """An instruction of a GPU.

    Attributes:
        name: with its modifiers, such as LDG.E.128.
        is_predicated: runs in some threads of a warp alone.
        operands: such as R4, desc[UR4][R2.64].
    """

    name: str
    is_predicated: bool = False
    operands: str = ""

    @property
    def operation(self) -> str:
        """Name without modifiers."""
        return self.name.partition(".")[0]

    @property
    def bits(self) -> int:
        """Width of a memory access by each thread."""
        widths = {"U8": 8, "S8": 8, "U16": 16, "S16": 16, "64": 64, "128": 128}
        return next((widths[m] for m in self.name.split(".")[1:] if m in widths), 32)

    @property
    def registers(self) -> set[int]:
        """Numbers of the registers that it names."""
        named = _REGISTER.findall(self.operands)
        return {int(first) + i for first, is_pair in named for i in range(2 if is_pair else 1)}

    @property
    def loaded(self) -> range:
        """Registers that a load fills."""
        target = _REGISTER.match(self.operands)
        return (
            range(int(target[1]), int(target[1]) + max(1, self.bits // 32)) if target else range(0)
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Rule:
    """Demands on the instructions of a kernel.

    Attributes:
        kernels: pattern of the names of kernels.
        stores: least number of stores to global memory of each width in bits.
        stores_only: whether there must be no other widths.
        loads_in_flight: see the function.
    """

    kernels: str
    stores: dict[int, int]
    stores_only: bool = False
    loads_in_flight: int = 0


RULES = (
    Rule(r"interact_vectors<", {128: 1}, True, loads_in_flight=16),
    # A byte is the overflow flag.
    Rule(r"interact_vectors_backward<", {128: 4, 8: 1}, True, loads_in_flight=8),
    Rule(r"gather_rows<(float, float|bfloat16, b?float16), [48]>", {128: 4}, True, 4),
    Rule(r"gather_rows<float, b?float16, 4>", {64: 4}, True, 4),
    Rule(r"sum_bags<(float, float, 4|bfloat16, b?float16, 8)>", {128: 1}, True, 4),
    # Sums of columns are written number by number, once for 128 samples.
    Rule(r"mask_gradient<.*, [48]>", {128: 4}, loads_in_flight=8),
    Rule(r"differentiate_output_layer<.*, [48]>", {128: 4}, loads_in_flight=3),
    Rule(r"apply_output_layer<.*, [48]>", {}, loads_in_flight=2),
    # Gradients of four lookups (two for Adam) and the rows and states that end among them.
    Rule(r"update_chunks<(Sgd|Adagrad|Adam), Float32Format, .*, 4>", {128: 6}, True, 8),
    Rule(r"update_chunks<(Sgd|Adagrad|Adam), (BFloat16|Split)Format, ", {128: 4, 64: 2}, True, 8),
    Rule(r"update_chunks<RowwiseAdagrad, ", {128: 4, 32: 4}, False, 8),  # one state a row
)


def nvdisasm() -> str:
    """Returns the disassembler, of the package nvidia-cuda-nvdisasm or on the path.

    Raises:
        FileNotFoundError: there is none.
    """
    packages = Path(sys.prefix).glob("lib/python*/site-packages/nvidia/cu*/bin/nvdisasm")
    program = next(map(str, packages), None) or shutil.which("nvdisasm")
    if program is None:
        raise FileNotFoundError("no nvdisasm: pip install nvidia-cuda-nvdisasm")
    return program


def disassemble(source: Path, architecture: str) -> str:
    """Compiles a source; returns the instructions of its kernels, with readable names.

    Raises:
        RuntimeError: it does not compile.
    """
    with tempfile.TemporaryDirectory() as folder:
        binary = f"{folder}/kernels.cubin"
        command = [nvcc(), "-std=c++17", "-O3", f"-arch=sm_{architecture}", "-cubin", "-o", binary]
        done = subprocess.run([*command, source], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"{source.name}: {done.stderr}")
        text = subprocess.run(
            [nvdisasm(), "-c", binary], capture_output=True, text=True, check=True
        ).stdout
    text = text.replace(_CODE, f"{_CODE} ")  # c++filt reads words
    return subprocess.run(
        ["c++filt"], input=text, capture_output=True, text=True, check=True
    ).stdout


def parse(text: str) -> dict[str, list[Instruction]]:
    """Returns {kernel: its instructions in order}, without kernels of CUB."""
    kernels: dict[str, list[Instruction]] = {}
    current: list[Instruction] | None = None
    for line in text.splitlines():
        if line.lstrip().startswith(".section"):
            name = line.partition(_CODE)[2]
            is_kernel = KERNELS in name
            current = kernels.setdefault(readable_name(name), []) if is_kernel else None
        elif current is not None and (match := _INSTRUCTION.match(line)):
            current.append(Instruction(match[2], match[1] is not None, match[3].strip()))
    return kernels


def widths(instructions: Iterable[Instruction], operation: str) -> Counter[int]:
    """Counts the accesses of global memory by their width in bits."""
    return Counter(i.bits for i in instructions if i.operation == operation)


def loads_in_flight(instructions: Iterable[Instruction]) -> int:
    """Counts the vector loads that are under way at once, at most.

    Instructions start in order: one that needs a loaded register waits, and what was loaded before
    has then come too.
    """
    pending: list[Instruction] = []
    most = 0
    for instruction in instructions:
        needed = instruction.registers
        arrived = (n for n, load in enumerate(pending, 1) if not needed.isdisjoint(load.loaded))
        del pending[: max(arrived, default=0)]
        if instruction.operation in {"BRA", "EXIT", "RET"} and not instruction.is_predicated:
            pending.clear()
        if instruction.operation == "LDG":
            pending.append(instruction)
        most = max(most, sum(load.bits >= 64 for load in pending))
    return most


def violations(kernels: dict[str, list[Instruction]]) -> list[str]:
    """Returns a line for each rule that a kernel breaks."""
    lines = []
    for kernel, instructions in kernels.items():
        operations = Counter(i.operation for i in instructions)
        for operation, meaning in {
            "LDL": "reads local memory",
            "STL": "writes local memory",
            "LD": "reads memory of an unknown kind",
            "ST": "writes memory of an unknown kind",
        }.items():
            if operations[operation]:
                lines.append(f"{kernel}: {meaning}, {operations[operation]} {operation}")
        if any(i.operation == "HMMA" and i.is_predicated for i in instructions):
            lines.append(f"{kernel}: a product of a tensor core is predicated")
        stores = widths(instructions, "STG")
        for rule in (rule for rule in RULES if re.match(rule.kernels, kernel)):
            missing = any(stores[bits] < least for bits, least in rule.stores.items())
            others = set(stores) - set(rule.stores) if rule.stores_only else set()
            if missing or others:
                lines.append(f"{kernel}: stores by width {dict(stores)}, expected {rule.stores}")
            if (loads := loads_in_flight(instructions)) < rule.loads_in_flight:
                lines.append(f"{kernel}: {loads} loads in flight, expected {rule.loads_in_flight}")
    return lines


def table(kernels: dict[str, list[Instruction]]) -> str:
    """Returns the instructions of each kernel as a Markdown table."""
    lines = [
        "| kernel | instructions | loads by bits | stores by bits | loads in flight | products |",
        "|---|---|---|---|---|---|",
    ]
    for kernel, instructions in sorted(kernels.items()):
        by_bits = [
            ", ".join(f"{bits}: {n}" for bits, n in sorted(widths(instructions, op).items()))
            for op in ("LDG", "STG")
        ]
        products = sum(i.operation == "HMMA" for i in instructions)
        columns = [len(instructions), *by_bits, loads_in_flight(instructions), products]
        lines.append(f"| `{kernel}` | {' | '.join(map(str, columns))} |")
    return "\n".join(lines)


def main(architecture: str) -> int:
    """Disassembles all kernels, prints the table, and returns the exit status."""
    kernels: dict[str, list[Instruction]] = {}
    try:
        for source in sorted(CSRC.rglob("*.cu")):
            kernels |= parse(disassemble(source, architecture))
    except (FileNotFoundError, RuntimeError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    sys.stdout.write(table(kernels) + "\n")
    broken = violations(kernels)
    sys.stderr.write("".join(f"{line}\n" for line in broken))
    return 1 if broken else 0


if __name__ == "__main__":
    _parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    _parser.add_argument("architecture", nargs="?", default="90", help="such as 90")
    sys.exit(main(_parser.parse_args().architecture))
