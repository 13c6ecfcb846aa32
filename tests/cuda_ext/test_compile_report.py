# SPDX-License-Identifier: Apache-2.0
"""The report on registers reads what ptxas prints."""

import pytest

from cuda_ext import compile_report
from tests.tools import needs

PTXAS = """\
ptxas info    : 8 bytes gmem
ptxas info    : Compiling entry function 'void cub::sort<int, 2>(int)' for 'sm_90'
    8 bytes stack frame, 16 bytes spill stores, 16 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers
ptxas info    : Compiling entry function 'void recsys::kernels::interact_vectors<recsys::float16, \
float, 2>(recsys::InteractionArguments)' for 'sm_80'
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 120 registers, used 0 barriers
ptxas info    : Compiling entry function 'void recsys::kernels::gather<4>(int)' for 'sm_90'
    8 bytes stack frame, 4 bytes spill stores, 8 bytes spill loads
ptxas info    : Used 130 registers, used 1 barriers, 48 bytes smem
"""


def test_own_kernels_are_read():
    assert compile_report.parse_usage(PTXAS) == [
        ("interact_vectors<float16, float, 2>", "80", 120, 0, 0),
        ("gather<4>", "90", 130, 48, 12),
    ]


def test_spills_and_too_many_registers_are_named():
    assert compile_report.violations(compile_report.parse_usage(PTXAS)) == [
        "gather<4>, sm_90: spills 12 bytes of registers",
        "gather<4>, sm_90: 130 registers, the limit is 128",
    ]


def test_table_has_a_column_for_each_architecture():
    usages = [
        compile_report.Usage("gather<4>", arch, int(arch) // 2, 48, 0) for arch in ("120", "80")
    ]
    assert compile_report.table(usages).splitlines()[-1] == "| `gather<4>` | 48 | 40 | 60 |"


@pytest.mark.release
@needs("CUDA compiler")
def test_lookup_kernels_compile_without_spills():
    text = compile_report.compile_source(
        compile_report.CSRC / "lookup" / "cuda" / "launch.cu", ["90"]
    )
    usages = compile_report.parse_usage(text)
    assert any(usage.kernel.startswith("gather_rows<") for usage in usages)
    assert compile_report.violations(usages) == []


@needs("CUDA compiler")
def test_error_of_the_compiler_is_shown(tmp_path):
    source = tmp_path / "broken.cu"
    source.write_text("int main() { return missing; }\n")
    with pytest.raises(RuntimeError, match="missing"):
        compile_report.compile_source(source, ["90"])
