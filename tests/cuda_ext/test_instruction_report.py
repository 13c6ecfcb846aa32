# SPDX-License-Identifier: Apache-2.0
"""The instructions of the compiled kernels, and what the report reads of them."""

import pytest

from cuda_ext import instruction_report
from cuda_ext.instruction_report import Instruction
from tests.tools import needs

TEXT = """\
\t.section\t.text. void recsys::kernels::gather_rows<float, float, 4>(recsys::Lookup),"ax",@progbits
        /*0000*/                   LDG.E.128 R4, desc[UR4][R2.64] ;
        /*0010*/              @!P0 LDG.E.64.CONSTANT R4, desc[UR4][R2.64] ;
        /*0020*/               @P1 HMMA.16816.F32 R4, R8, R12, R4 ;
        /*0030*/                   STG.E.U16 desc[UR4][R2.64], R5 ;
\t.section\t.text. void cub::sort<4>(int),"ax",@progbits
        /*0000*/                   STL.64 [R1], R4 ;
"""
STORE = Instruction("STG.E.128")


def load(register: int, name: str = "LDG.E.128") -> Instruction:
    return Instruction(name, operands=f"R{register}, desc[UR4][R2.64]")


LOADS = [load(4 * n) for n in range(1, 9)]


def test_own_kernels_are_read():
    assert instruction_report.parse(TEXT) == {
        "gather_rows<float, float, 4>": [
            Instruction("LDG.E.128", operands="R4, desc[UR4][R2.64]"),
            Instruction("LDG.E.64.CONSTANT", True, "R4, desc[UR4][R2.64]"),
            Instruction("HMMA.16816.F32", True, "R4, R8, R12, R4"),
            Instruction("STG.E.U16", operands="desc[UR4][R2.64], R5"),
        ]
    }


def test_table_has_a_line_for_each_kernel():
    table = instruction_report.table(instruction_report.parse(TEXT))
    assert table.splitlines()[2:] == [
        "| `gather_rows<float, float, 4>` | 4 | 64: 1, 128: 1 | 16: 1 | 1 | 1 |"
    ]


@pytest.mark.parametrize(
    ("instructions", "expected"),
    [
        (LOADS, 8),
        ([*LOADS[:3], Instruction("FADD", operands="R40, R41, R15"), *LOADS[3:]], 5),
        ([*LOADS[:3], Instruction("FADD", operands="R40, R41, R11"), *LOADS[3:]], 6),
        ([load(4), load(4, "LDG.E.64"), load(4)], 1),  # what is overwritten has come before
        ([load(8, "LDG.E"), LOADS[0], load(12, "LDG.E"), LOADS[7]], 2),
        # The address of the third load waits for the second, a row number.
        (
            [load(4), load(8, "LDG.E"), Instruction("LDG.E.128", operands="R12, desc[UR4][R8.64]")],
            1,
        ),
        ([load(4), Instruction("BRA", operands="`(.L_1)"), load(8)], 1),
        ([load(4), Instruction("BRA", True, "`(.L_1)"), load(8)], 2),
        ([], 0),
    ],
)
def test_loads_are_under_way_until_one_is_needed(instructions, expected):
    assert instruction_report.loads_in_flight(instructions) == expected


@pytest.mark.parametrize(
    ("kernel", "instructions", "message"),
    [
        ("any", [Instruction("STL.64")], "any: writes local memory, 1 STL"),
        ("any", [Instruction("LD.E")], "any: reads memory of an unknown kind, 1 LD"),
        ("any", [Instruction("HMMA", True)], "any: a product of a tensor core is predicated"),
        (
            "mask_gradient<float, float, 4>",
            [*LOADS, *[Instruction("STG.E")] * 16],
            "mask_gradient<float, float, 4>: stores by width {32: 16}, expected {128: 4}",
        ),
        (
            "mask_gradient<float, float, 4>",
            [*[load(4), STORE] * 8],
            "mask_gradient<float, float, 4>: 1 loads in flight, expected 8",
        ),
        (
            "sum_bags<float, float, 4>",
            [*LOADS[:4], STORE, Instruction("STG.E")],
            "sum_bags<float, float, 4>: stores by width {128: 1, 32: 1}, expected {128: 1}",
        ),
    ],
)
def test_what_breaks_a_rule_is_named(kernel, instructions, message):
    assert instruction_report.violations({kernel: instructions}) == [message]


@needs("CUDA compiler", "nvdisasm")
@pytest.mark.release
def test_all_kernels_keep_the_rules(capsys):
    assert instruction_report.main("90") == 0, capsys.readouterr().err
    kernels = capsys.readouterr().out
    for rule in instruction_report.RULES:
        names = [line.split("`")[1] for line in kernels.splitlines()[2:]]
        assert any(instruction_report.re.match(rule.kernels, name) for name in names), rule
