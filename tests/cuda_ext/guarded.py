# SPDX-License-Identifier: Apache-2.0
"""The tests of the CUDA kernels, emulated, on memory that AddressSanitizer guards.

    LD_PRELOAD="libasan.so libstdc++.so" python -m tests.cuda_ext.guarded [FOLDER SOURCE]

With a folder it holds a changed copy of the kernels' sources, of which SOURCE is compiled.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from cuda_ext.emu import build
from tests.cuda_ext import test_dot_interaction as interaction
from tests.cuda_ext import test_embedding_lookup as lookup
from tests.cuda_ext import test_embedding_update as update
from tests.cuda_ext import test_linear as linear
from tests.cuda_ext import test_output_layer as output_layer
from tests.cuda_ext.conftest import open_backend

FLAGS = ("-O0", "-fsanitize=address", "-g1")  # most of the time goes into compiling
FLOAT, HALF, BRAIN = torch.float32, torch.float16, torch.bfloat16
INT, LONG = torch.int32, torch.int64

CASES = {
    interaction.test_bounds_of_sums: [
        ((13, 17, 24), BRAIN),
        ((2, 32, 8), HALF),
        ((5, 1, 16), BRAIN),
        ((5, 9, 33), FLOAT),
        ((2, 64, 5), FLOAT),
    ],
    interaction.test_gathered_rows: [
        ((3, 5, 40), BRAIN, BRAIN, INT),
        ((2, 17, 72), BRAIN, FLOAT, INT),
        ((1, 48, 72), BRAIN, FLOAT, INT),
        ((5, 9, 33), FLOAT, FLOAT, LONG),
        ((4, 3, 13), BRAIN, FLOAT, INT),
    ],
    interaction.test_tf32_is_used_and_within_its_bound: [((2, 30, 36),), ((1, 64, 20),)],
    interaction.test_rows_outside_the_table_read_as_zeros_on_a_device: [(16,), (10,)],
    lookup.test_joint_rows: [((5, 26), True, torch.int8, INT)],
    lookup.test_joint_rows_names_the_bag_of_a_bad_id: [()],
    lookup.test_stack_ids: [(65, 26, lookup.INTEGERS)],
    lookup.test_gather_equals_the_reference: [(1, FLOAT, HALF), (130, BRAIN, FLOAT)],
    lookup.test_bag: [(n, True, FLOAT, FLOAT) for n in (1, 4, 10, 16, 128, 130, 132)],
    lookup.test_sort_is_stable: [(n, 2**31 - 1, INT) for n in (1, 300, 8193)],
    update.test_rules: [
        ((count, dim), rule, "float32")
        for rule, dim in (("sgd", 3), ("rowwise_adagrad", 12), ("adam", 128), ("adagrad", 132))
        for count in (1, 31, 33, 64, 300)
    ],
    update.test_one_row_in_every_lookup: [((20_000, 4), INT)],
    update.test_overflow_writes_nothing: [("sgd", "float32"), ("rowwise_adagrad", "bfloat16")],
    update.test_rows_outside_the_table_on_a_device: [(6, INT), (256, LONG)],
    linear.test_relu_backward_equals_its_definition: [((130, 17), FLOAT)],
    output_layer.test_output_equals_the_reference: [((130, 17), HALF)],
    output_layer.test_gradients_equal_the_reference: [((130, 17), HALF, True)],
    output_layer.test_cross_entropy_equals_the_reference: [(1025,)],
}
"""Arguments of each test besides the backend."""


def compile_with(package: Path, changed: str) -> None:
    """Has one source of the kernels compiled from a changed copy."""
    compile_own = build.compile_sources

    def compile_sources(
        sources: Sequence[Path], folder: Path, flags: Sequence[str] = ()
    ) -> list[Path]:
        own = [source for source in sources if not source.match(changed)]
        objects = compile_own(own, folder, flags)
        if len(own) < len(sources):
            source = package / "csrc" / changed
            objects += compile_own([source], package / "objects", flags, package=package)
        return objects

    build.compile_sources = compile_sources


if __name__ == "__main__":
    build.FOLDER /= "address_sanitizer"
    build._FLAGS += FLAGS
    if len(sys.argv) > 1:
        compile_with(Path(sys.argv[1]), sys.argv[2])
    backend = open_backend("emulated")
    for check, cases in CASES.items():
        for arguments in cases:
            check(backend, *arguments)
