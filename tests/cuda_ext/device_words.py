# SPDX-License-Identifier: Apache-2.0
"""Results of the device functions in intrinsics.cuh: computed, emulated, and those of a GPU."""

import subprocess
import tempfile
from pathlib import Path

import torch
from torch import Tensor

from cuda_ext.emu import build

SOURCE = Path(__file__).with_name("drivers") / "device_words.cu"
CONVERSIONS = 4096

Words = dict[str, Tensor]
"""32-bit words, as int64, of each part of the program's output."""


def parse(text: str) -> Words:
    """Reads the output of the program."""
    words: dict[str, list[int]] = {}
    for line in text.splitlines():
        name, index, word = line.split()
        assert int(index) == len(words.setdefault(name, []))
        words[name].append(int(word, 16))
    return {name: torch.tensor(found) for name, found in words.items()}


def run_program(program: Path) -> str:
    """Returns what a build of the program prints."""
    return subprocess.run([program], capture_output=True, text=True, check=True, timeout=600).stdout


def emulated() -> str:
    """Returns what the emulator prints."""
    objects = build.compile_sources([SOURCE, *build.SCHEDULER], build.FOLDER)
    return run_program(build.link(objects, build.FOLDER / "device_words"))


def on_device() -> str:
    """Returns what the CUDA device of this machine prints."""
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "device_words"
        major, minor = torch.cuda.get_device_capability()
        subprocess.run(
            [
                *("nvcc", "-std=c++17", f"-arch=sm_{major}{minor}"),
                *(f"-I{build.PACKAGE / 'csrc'}", str(SOURCE), "-o", str(program)),
            ],
            check=True,
        )
        return run_program(program)


def _bits(values: Tensor) -> Tensor:
    return values.to(torch.float32).view(torch.int32).to(torch.int64) & 0xFFFFFFFF


def _integers(registers: Tensor, per_register: int) -> Tensor:
    """The operands of multiply_add, [..., per_register]."""
    index = registers.unsqueeze(-1) * per_register + torch.arange(per_register)
    return ((index * 37 + index // 11) % 17 - 8).to(torch.float64)


def _product(per_register: int) -> Tensor:
    """A B + C by matrix product, from the register layout in the PTX manual.

    PTX ISA, matrix fragments of mma.m16n8k8 and mma.m16n8k16: lane = 4 group + place; register i
    of A holds row group + 8 (i % 2), columns from place * per_register + (K / 2) (i // 2) on;
    register i of B holds rows from place * per_register + (K / 2) i on of column `group`; number i
    of C is row group + 8 (i // 2), column 2 place + i % 2.
    """
    depth = 8 * per_register
    a, b, c = torch.zeros(16, depth), torch.zeros(depth, 8), torch.zeros(16, 8)
    for lane in range(32):
        group, place = divmod(lane, 4)
        first = place * per_register
        for i in range(4):
            column = first + depth // 2 * (i // 2)
            numbers = _integers(torch.tensor(lane * 4 + i), per_register)
            a[group + 8 * (i % 2), column : column + per_register] = numbers
            c[group + 8 * (i // 2), 2 * place + i % 2] = lane * 4 + i
        for i in range(2):
            row = first + depth // 2 * i
            numbers = _integers(torch.tensor(1000 + lane * 2 + i), per_register)
            b[row : row + per_register, group] = numbers
    product = a.double() @ b.double() + c.double()
    return torch.stack(
        [
            product[lane // 4 + 8 * (i // 2), 2 * (lane % 4) + i % 2]
            for lane in range(32)
            for i in range(4)
        ]
    )


def _patterns() -> Tensor:
    i = torch.arange(CONVERSIONS)
    spread = i * 0x9E3779B9 & 0xFFFFFFFF
    near_halfway = (spread & 0xFFFFF000) | torch.where(i % 4 == 1, 0, 0x1000)
    bits = torch.where(i % 2 == 0, spread, near_halfway)
    return torch.where(bits >= 1 << 31, bits - (1 << 32), bits).to(torch.int32).view(torch.float32)


def _half_bits(values: Tensor, dtype: torch.dtype) -> Tensor:
    bits = values.to(dtype).view(torch.int16).to(torch.int64) & 0xFFFF
    return torch.where(values.isnan(), 0x7FFF, bits)


def _tf32_bits(values: Tensor) -> Tensor:
    """Rounds to 10 bits after the leading one, halves away from zero; NaN is left out."""
    exact = values.double()
    unit = torch.exp2(torch.floor(torch.log2(exact.abs())).clamp(min=-126) - 10)
    rounded = torch.floor(exact.abs() / unit + 0.5) * unit * exact.sign()
    return _bits(torch.where(values.isfinite(), rounded, exact))


def computed() -> Words:
    """Returns what the program has to print, computed in PyTorch."""
    patterns = _patterns()
    i = torch.arange(CONVERSIONS)
    halves = (i * 16 + i // 256) & 0xFFFF
    halves = torch.where(halves >= 1 << 15, halves - (1 << 16), halves).to(torch.int16)
    bfloat16 = _half_bits(patterns, torch.bfloat16)
    float16 = _half_bits(patterns, torch.float16)
    return {
        "multiply_bfloat16": _bits(_product(2)),
        "multiply_float16": _bits(_product(2)),
        "multiply_tf32": _bits(_product(1)),
        "pack_bfloat16": bfloat16 | 0x3F80 << 16,
        "pack_float16": float16 | 0x3C00 << 16,
        "round_to_tf32": _tf32_bits(patterns),
        "to_bfloat16": bfloat16,
        "to_float16": float16,
        "from_float16": _bits(halves.view(torch.float16)),
        "add_vectors": _bits(torch.arange(1.0, 5).repeat(4) * 16),
    }


def check_same(found: Words, expected: Words) -> None:
    """Fails where words differ.

    NaN of float32 may have any bits.
    """
    assert found.keys() == expected.keys()
    for name, words in found.items():
        other = expected[name]
        either_nan = torch.zeros_like(words, dtype=torch.bool)
        if name in ("round_to_tf32", "from_float16"):
            nans = [(w & 0x7FFFFFFF) > 0x7F800000 for w in (words, other)]
            assert torch.equal(*nans), name
            either_nan = nans[0]
        different = (words != other) & ~either_nan
        assert not different.any(), f"{name} {int(different.nonzero()[0, 0])}"
