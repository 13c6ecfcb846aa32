# SPDX-License-Identifier: Apache-2.0
"""The MLP kernel for few samples against its definition."""

import itertools

import pytest
import torch

from cuda_ext import ops, reference
from tests.cuda_ext.conftest import spread
from tests.tools import needs

pytestmark = needs("compiled cuda_ext kernels")

SIZES = [(1, 1), (13, 512, 16), (32, 8, 8, 1), (479, 129, 31, 1), (5, 33, 64, 7), (64, 100)]
SIZES += [(100, 64)]
BATCHES = [0, 1, 3, 4, 7, 32, 65]


def layers(sizes, dtype=torch.float32):
    generator = torch.Generator().manual_seed(sum(sizes))
    draw = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)  # noqa: E731
    weights = [draw(o, i) / i**0.5 for i, o in itertools.pairwise(sizes)]
    return [w.to(dtype) for w in weights], [draw(o).to(dtype) for o in sizes[1:]]


def samples(batch, sizes, dtype=torch.float32):
    generator = torch.Generator().manual_seed(batch)
    return torch.randn(batch, sizes[0], generator=generator, dtype=torch.float64).to(dtype)


def plain(x, weights, biases, final_relu):
    """Linear layers and ReLU, without packing."""
    for number, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
        x = torch.nn.functional.linear(x, weight, bias)
        x = torch.relu(x) if final_relu or number < len(weights) - 1 else x
    return x


@pytest.mark.parametrize(
    ("sizes", "dtype", "final_relu"),
    spread(SIZES, [torch.float32, torch.bfloat16, torch.float64], [False, True]),
    ids=str,
)
def test_kernel_on_cpu_equals_the_definition(sizes, dtype, final_relu):
    weights, biases = layers(sizes, torch.float64 if dtype == torch.float64 else torch.float32)
    packed = ops.pack_mlp(weights, biases, dtype)
    rounded = [w.to(dtype).double() for w in weights]
    for batch in BATCHES:
        x = samples(batch, sizes, weights[0].dtype)
        found = ops.mlp_forward(x, packed, final_relu=final_relu)
        exact = plain(x.double(), rounded, [b.double() for b in biases], final_relu)
        assert found.dtype == x.dtype
        tolerance = 1e-12 if dtype == torch.float64 else 2e-5
        torch.testing.assert_close(found.double(), exact, rtol=tolerance, atol=tolerance)
        defined = reference.mlp_forward(
            x, packed.weights, packed.biases, packed.sizes, final_relu=final_relu
        )
        torch.testing.assert_close(defined.double(), exact, rtol=tolerance, atol=tolerance)


def test_a_sample_of_cpu_kernels_depends_on_no_other_and_no_thread():
    sizes = (479, 1024, 512, 1)
    packed = ops.pack_mlp(*layers(sizes))
    x = samples(8, sizes)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = ops.mlp_forward(x, packed, final_relu=False)
        torch.set_num_threads(3)
        assert torch.equal(ops.mlp_forward(x, packed, final_relu=False), one)
    finally:
        torch.set_num_threads(threads)
    alone = torch.cat([ops.mlp_forward(row[None], packed, final_relu=False) for row in x])
    torch.testing.assert_close(alone, one, rtol=1e-5, atol=1e-5)


def test_nan_and_infinity_pass_through_cpu_kernels():
    weights, biases = layers((4, 40, 3))
    x = torch.tensor([[0.0, 1, 2, 3], [float("nan"), 1, 2, 3], [float("inf"), 1, 2, 3]])
    found = ops.mlp_forward(x, ops.pack_mlp(weights, biases), final_relu=True)
    assert found[0].isfinite().all()
    assert found[1].isnan().all()
    assert not found[2].isfinite().all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": torch.zeros(2, 5)}, r"input must be \[B, 4\]"),
        ({"x": torch.zeros(2, 4, dtype=torch.float64)}, "input must be float32"),
        ({"weights": torch.zeros(3)}, "weights must be packed"),
        ({"weights": torch.zeros(32 * 6).half()}, "float16 is for GPUs"),
        ({"biases": torch.zeros(2)}, "biases must be 6 numbers"),
        ({"biases": torch.zeros(6, dtype=torch.float64)}, "biases must have the type"),
        ({"sizes": (4,)}, "sizes must name the input and a layer"),
        ({"sizes": (4, 0, 6)}, "sizes must be positive"),
    ],
)
def test_what_does_not_fit_together_is_refused_on_cpu(change, message):
    packed = ops.pack_mlp(*layers((4, 6)))
    given = {"x": torch.zeros(2, 4), "weights": packed.weights, "biases": packed.biases,
             "sizes": packed.sizes} | change  # fmt: skip
    x = given.pop("x")
    with pytest.raises(RuntimeError, match=message):
        ops.mlp_forward(x, ops.PackedMlp(**given), final_relu=False)
