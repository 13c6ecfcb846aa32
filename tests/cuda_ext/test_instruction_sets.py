# SPDX-License-Identifier: Apache-2.0
"""The CPU kernels of the instruction sets that this CPU has, but would not choose."""

import inspect

import pytest
import torch

from tests import harness
from tests.cuda_ext import test_attention as attention
from tests.cuda_ext import test_dot_interaction as interaction
from tests.cuda_ext import test_embedding_lookup as lookup
from tests.cuda_ext import test_embedding_update as update
from tests.cuda_ext import test_inference as inference
from tests.cuda_ext import test_linear as linear
from tests.cuda_ext import test_products as products
from tests.cuda_ext import test_search as search

KERNELS = torch.ops.cuda_ext
BEST_LAST = ["portable", "avx2", "avx512"]
NAME_OF_CAPABILITY = {"AVX512": "avx512", "AVX2": "avx2"}
FLOAT, BRAIN = torch.float32, torch.bfloat16


def other_instruction_sets():
    """Returns the instruction sets below the best one, by their names in torch."""
    best = NAME_OF_CAPABILITY.get(torch.backends.cpu.get_cpu_capability(), "portable")
    return BEST_LAST[: BEST_LAST.index(best)]


CASES = [
    (attention.test_kernel_on_cpu_equals_the_definition, ("short", (3, 4), False, 0)),
    (attention.test_kernel_on_cpu_equals_the_definition, ("few queries", (1, 33), True, 100)),
    (inference.test_dlrm_on_cpu_equals_its_definition, (3, 33, FLOAT, BRAIN)),
    (inference.test_mlp_on_cpu_equals_its_definition, ((479, 129, 31, 1), BRAIN, True)),
    (products.test_transposed_product_on_cpu_equals_its_definition, ((130, 17, 40),)),
    (search.test_rows_on_cpu_are_those_of_the_definition, (65, 127)),
    (interaction.test_bounds_of_sums, ((33, 27, 128), FLOAT)),
    (interaction.test_bounds_of_sums, ((7, 17, 1), BRAIN)),
    (interaction.test_gathered_rows, ((7, 12, 20), BRAIN, FLOAT, torch.int32)),
    (lookup.test_gather_equals_the_reference, (129, BRAIN, FLOAT)),
    (lookup.test_bag, (100, True, BRAIN, FLOAT)),
    (update.test_rules, ((1500, 16), "sgd", "float32")),
    (update.test_rules, ((300, 17), "rowwise_adagrad", "bfloat16")),
    (update.test_rules, ((1000, 100), "adam", "float32")),
    (linear.test_relu_backward_equals_its_definition, ((130, 17), FLOAT)),
]
"""A test, and its arguments besides the backend."""


@pytest.mark.parametrize("kernels", other_instruction_sets())
@pytest.mark.parametrize(("test", "arguments"), CASES)
def test_other_instruction_sets_pass_the_same_tests(cpu_backend, kernels, test, arguments):
    if "backend" in inspect.signature(test).parameters:
        arguments = (cpu_backend, *arguments)
    KERNELS.use_cpu_kernels(kernels)
    try:
        assert KERNELS.cpu_instruction_set() == kernels
        test(*arguments)
    finally:
        KERNELS.use_cpu_kernels("")


def test_an_unknown_instruction_set_is_refused(cpu_backend):
    script = "import torch, cuda_ext.ops; print(torch.ops.cuda_ext.cpu_instruction_set())"
    done = harness.python("-c", script, RECSYS_CPU_KERNELS="avx1024", status=1)
    assert "RECSYS_CPU_KERNELS=avx1024: expected portable, avx2 or avx512" in done.stderr
