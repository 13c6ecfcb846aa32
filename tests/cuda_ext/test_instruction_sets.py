# SPDX-License-Identifier: Apache-2.0
"""The CPU kernels of the instruction sets that this CPU has, but would not choose."""

from pathlib import Path

import pytest
import torch

from tests import harness

HERE = Path(__file__).parent
MODULES = [
    *("test_dot_interaction.py", "test_embedding_lookup.py", "test_embedding_update.py"),
    "test_mlp.py",
    "test_dlrm_forward.py",
    "test_products.py",
    "test_linear.py",
    "test_attention.py",
    "test_dropout.py",
    "test_search.py",
]
NAME_KERNELS = "import torch, cuda_ext.ops; print(torch.ops.cuda_ext.cpu_instruction_set())"
BEST_LAST = ["portable", "avx2", "avx512"]
NAME_OF_CAPABILITY = {"AVX512": "avx512", "AVX2": "avx2"}


def other_instruction_sets():
    """Returns what lies below the best one; torch names it the same way. One is for every run."""
    best = NAME_OF_CAPABILITY.get(torch.backends.cpu.get_cpu_capability(), "portable")
    lower = BEST_LAST[: BEST_LAST.index(best)]
    return [pytest.param(s, marks=[pytest.mark.release] * (s != lower[-1])) for s in lower]


def run_with(kernels, *arguments, **options):
    return harness.python(*arguments, RECSYS_CPU_KERNELS=kernels, **options)


@pytest.mark.slow
@pytest.mark.parametrize("kernels", other_instruction_sets())
def test_other_instruction_sets_pass_the_same_tests(cpu_backend, kernels):
    """The kernel tests, in a process that was told to use these kernels."""
    assert run_with(kernels, "-c", NAME_KERNELS).stdout.strip() == kernels
    options = ("-m", "pytest", "-q", "-k", "cpu", "-p", "no:cacheprovider")
    done = run_with(kernels, *options, *(HERE / name for name in MODULES))
    assert " passed" in done.stdout


def test_an_unknown_instruction_set_is_refused(cpu_backend):
    done = run_with("avx1024", "-c", NAME_KERNELS, status=1)
    assert "RECSYS_CPU_KERNELS=avx1024: expected portable, avx2 or avx512" in done.stderr
