# SPDX-License-Identifier: Apache-2.0
"""The emulator itself: barriers, exchanges, races, the layout of the tensor cores, conversions."""

import ctypes
from pathlib import Path

import pytest
import torch

from cuda_ext.emu import build
from tests import harness
from tests.tools import needs, require

DRIVERS = Path(__file__).with_name("drivers")
DEVICE_WORDS = DRIVERS / "device_words.cu"
CONVERSIONS = 4096

FAULTS = {
    "pass_in_warp": "race on shared memory",
    "pass_in_block": "race on shared memory",
    "overwrite_in_warp": "race on shared memory",
    "diverge_at_block_barrier": "deadlock, not all threads reach the same barrier",
    "diverge_in_operation": "__shfl_xor_sync [from thread 16] __ballot_sync",
    "shuffle_from_left_lane": "__shfl_sync reads lane 31, which has left the kernel",
    "leave_shared_memory": "thread 63 leaves dynamic shared memory at byte 256",
    "misalign_vector": "misaligned address of a vector",
    "read_unwritten": "NaN",
    "pass_in_global_memory": "race on global memory: thread",
    "write_from_two_blocks": "race on global memory: a thread of block",
    "read_from_two_blocks": "race on global memory: a thread of",
    "add_from_two_blocks": "race on global memory: ",
}


@pytest.fixture(scope="module")
def compiler() -> str:
    require("C++ compiler")
    return build.compiler()


@pytest.fixture(scope="module")
def verdicts(compiler) -> dict[str, str]:
    sources = [DRIVERS / "faulty_kernels.cpp", *build.SCHEDULER]
    program = build.link(build.compile_sources(sources, build.FOLDER), build.FOLDER / "faulty")
    return dict(line.split(": ", 1) for line in harness.run(program).stdout.splitlines())


@pytest.mark.parametrize("kernel", FAULTS)
def test_fault_is_named_and_the_right_form_runs(verdicts, kernel):
    assert FAULTS[kernel] in verdicts[f"wrong {kernel}"]
    assert verdicts[f"right {kernel}"].lstrip("-").isdigit()


def test_exchanges(verdicts):
    """Each of 64 threads counts the 32 lanes of its warp and sees the votes of the even ones."""
    assert verdicts["right count_lanes"] == str(64 * 33)


def bits_of(values):
    return values.to(torch.float32).view(torch.int32).to(torch.int64) & 0xFFFFFFFF


def operands(registers, per_register):
    """The operands of multiply_add, [..., per_register]."""
    index = registers.unsqueeze(-1) * per_register + torch.arange(per_register)
    return ((index * 37 + index // 11) % 17 - 8).to(torch.float64)


def product(per_register):
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
            numbers = operands(torch.tensor(lane * 4 + i), per_register)
            a[group + 8 * (i % 2), column : column + per_register] = numbers
            c[group + 8 * (i // 2), 2 * place + i % 2] = lane * 4 + i
        for i in range(2):
            row = first + depth // 2 * i
            numbers = operands(torch.tensor(1000 + lane * 2 + i), per_register)
            b[row : row + per_register, group] = numbers
    products = a.double() @ b.double() + c.double()
    return torch.stack(
        [
            products[lane // 4 + 8 * (i // 2), 2 * (lane % 4) + i % 2]
            for lane in range(32)
            for i in range(4)
        ]
    )


def numbers_to_convert():
    i = torch.arange(CONVERSIONS)
    spread = i * 0x9E3779B9 & 0xFFFFFFFF
    near_halfway = (spread & 0xFFFFF000) | torch.where(i % 4 == 1, 0, 0x1000)
    bits = torch.where(i % 2 == 0, spread, near_halfway)
    return torch.where(bits >= 1 << 31, bits - (1 << 32), bits).to(torch.int32).view(torch.float32)


def half_bits(values, dtype):
    bits = values.to(dtype).view(torch.int16).to(torch.int64) & 0xFFFF
    return torch.where(values.isnan(), 0x7FFF, bits)


def tf32_bits(values):
    """Rounds to 10 bits after the leading one, halves away from zero; NaN is left out."""
    exact = values.double()
    unit = torch.exp2(torch.floor(torch.log2(exact.abs())).clamp(min=-126) - 10)
    rounded = torch.floor(exact.abs() / unit + 0.5) * unit * exact.sign()
    return bits_of(torch.where(values.isfinite(), rounded, exact))


def computed_words():
    """Returns the 32-bit words, as int64, that device_words.cu has to give, by PyTorch."""
    patterns = numbers_to_convert()
    i = torch.arange(CONVERSIONS)
    halves = (i * 16 + i // 256) & 0xFFFF
    halves = torch.where(halves >= 1 << 15, halves - (1 << 16), halves).to(torch.int16)
    bfloat16 = half_bits(patterns, torch.bfloat16)
    float16 = half_bits(patterns, torch.float16)
    return {
        "multiply_bfloat16": bits_of(product(2)),
        "multiply_float16": bits_of(product(2)),
        "multiply_tf32": bits_of(product(1)),
        "pack_bfloat16": bfloat16 | 0x3F80 << 16,
        "pack_float16": float16 | 0x3C00 << 16,
        "round_to_tf32": tf32_bits(patterns),
        "to_bfloat16": bfloat16,
        "to_float16": float16,
        "from_float16": bits_of(halves.view(torch.float16)),
    }


def check_words(library):
    """Compares what a build of device_words.cu gives; NaN of float32 may have any bits."""
    expected = computed_words()
    words = torch.empty(sum(map(len, expected.values())), dtype=torch.int32)
    assert ctypes.CDLL(str(library)).device_words(ctypes.c_void_p(words.data_ptr())) == 0
    split = torch.split(words.to(torch.int64) & 0xFFFFFFFF, [len(w) for w in expected.values()])
    for (name, wanted), found in zip(expected.items(), split, strict=True):
        either_nan = torch.zeros(len(found), dtype=torch.bool)
        if name in ("round_to_tf32", "from_float16"):
            either_nan, nans = ((w & 0x7FFFFFFF) > 0x7F800000 for w in (found, wanted))
            assert torch.equal(either_nan, nans), name
        different = (found != wanted) & ~either_nan
        assert not different.any(), f"{name} {int(different.nonzero()[0, 0])}"


def test_words_of_the_emulator(compiler):
    objects = build.compile_sources([DEVICE_WORDS, *build.SCHEDULER], build.FOLDER)
    check_words(build.link(objects, build.FOLDER / "device_words", ("-shared",)))


@pytest.mark.gpu
@needs("CUDA device")
def test_words_of_the_device(tmp_path):
    major, minor = torch.cuda.get_device_capability()
    library = tmp_path / "device_words.so"
    harness.run(
        *("nvcc", "-std=c++17", f"-arch=sm_{major}{minor}", "-shared", "-Xcompiler", "-fPIC"),
        *(f"-I{build.PACKAGE / 'csrc'}", DEVICE_WORDS, "-o", library),
    )
    check_words(library)
