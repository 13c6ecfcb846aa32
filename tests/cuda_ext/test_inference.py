# SPDX-License-Identifier: Apache-2.0
"""The kernels of inference on a CPU against their definitions: an MLP, a whole DLRM."""

import dataclasses
import itertools

import pytest
import torch

from cuda_ext import ops, reference
from tests.cuda_ext.conftest import plain_mlp, randn, spread
from tests.harness import refusal
from tests.tools import needs

pytestmark = needs("compiled cuda_ext kernels")

SIZES = [(1, 1), (13, 512, 16), (32, 8, 8, 1), (479, 129, 31, 1), (5, 33, 64, 7), (64, 100)]
SIZES += [(100, 64)]
BATCHES = [0, 1, 2, 3, 4, 7, 12, 32, 65, 139]


def layers(sizes):
    pairs = list(itertools.pairwise(sizes))
    return [randn(o, i, seed=i) / i**0.5 for i, o in pairs], [randn(o, seed=o) for _, o in pairs]


@pytest.mark.parametrize(
    ("sizes", "dtype", "final_relu"),
    spread(SIZES, [torch.float32, torch.bfloat16], [False, True]),
    ids=str,
)
def test_mlp_on_cpu_equals_its_definition(sizes, dtype, final_relu):
    weights, biases = layers(sizes)
    packed = ops.pack_mlp(weights, biases, dtype)
    rounded = [(w.to(dtype).double(), b.double()) for w, b in zip(weights, biases, strict=True)]
    for batch in BATCHES:
        x = randn(batch, sizes[0], seed=batch)
        found = ops.mlp_forward(x, packed, final_relu=final_relu)
        exact = plain_mlp(x.double(), rounded, final_relu)
        assert found.dtype == x.dtype
        tolerance = 2e-5
        torch.testing.assert_close(found.double(), exact, rtol=tolerance, atol=tolerance)
        defined = reference.mlp_forward(
            x, packed.weights, packed.biases, packed.sizes, final_relu=final_relu
        )
        torch.testing.assert_close(defined.double(), exact, rtol=tolerance, atol=tolerance)


def test_a_sample_of_cpu_kernels_depends_on_no_other_and_no_thread(cpu_backend):
    sizes = (479, 1024, 512, 1)
    packed = ops.pack_mlp(*layers(sizes))
    for batch in (2, 3, 8, 70):
        x = randn(batch, sizes[0])
        together = cpu_backend.check_order(lambda x=x: ops.mlp_forward(x, packed, final_relu=False))
        alone = torch.cat([ops.mlp_forward(row[None], packed, final_relu=False) for row in x])
        assert torch.equal(alone, together)


def test_nan_and_infinity_pass_through_cpu_kernels():
    weights, biases = layers((4, 40, 3))
    x = torch.tensor([[0.0, 1, 2, 3], [float("nan"), 1, 2, 3], [float("inf"), 1, 2, 3]])
    found = ops.mlp_forward(x, ops.pack_mlp(weights, biases), final_relu=True)
    assert found[0].isfinite().all()
    assert found[1].isnan().all()
    assert not found[2].isfinite().all()


@pytest.mark.parametrize(
    ("change", "facts"),
    [
        ({"x": torch.zeros(2, 5)}, ["input", "[B, 4]"]),
        ({"x": torch.zeros(2, 4, dtype=torch.bfloat16)}, ["input", "float32"]),
        ({"weights": torch.zeros(3)}, ["weights", 4 * 32]),
        ({"weights": torch.zeros(4 * 32).half()}, ["float16", "GPUs"]),
        ({"biases": torch.zeros(2)}, ["biases", 32]),
        ({"biases": torch.zeros(32, dtype=torch.float64)}, ["biases", "type"]),
        ({"sizes": (4,)}, ["sizes", "layer"]),
        ({"sizes": (4, 0, 6)}, ["sizes", 0]),
    ],
)
def test_what_does_not_fit_together_is_refused_on_cpu(change, facts):
    change = {"x": torch.zeros(2, 4)} | change
    x = change.pop("x")
    packed = dataclasses.replace(ops.pack_mlp(*layers((4, 6))), **change)
    with refusal(*facts, kind=RuntimeError):
        ops.mlp_forward(x, packed, final_relu=False)


TABLES = (5, 1, 300)


def network(dim, dtype=torch.float32, mlp_dtype=torch.float32):
    width = reference.interaction_width(1 + len(TABLES), dim)
    rows = randn(sum(TABLES), dim, seed=dim, dtype=dtype)
    table = ops.JointTable(rows, torch.tensor([0, 5, 6, 306]), hash_indices=False)
    bottom = ops.pack_mlp(*layers((7, 40, dim)), mlp_dtype)
    return table, bottom, ops.pack_mlp(*layers((width, 33, 1)), mlp_dtype)


def dlrm_input(batch, id_dtype=torch.int64):
    generator = torch.Generator().manual_seed(batch)
    ids = [torch.randint(min(n, 127), (batch,), generator=generator) for n in TABLES]
    return randn(batch, 7, seed=batch), torch.stack(ids, dim=1).to(id_dtype)


@pytest.mark.parametrize(
    ("batch", "dim", "table_dtype", "mlp_dtype"),
    spread([1, 3, 75, 0, 2], [1, 16, 33, 128], *[[torch.float32, torch.bfloat16]] * 2),
    ids=str,
)
def test_dlrm_on_cpu_equals_its_definition(batch, dim, table_dtype, mlp_dtype):
    """The definition computes in float64, from the weights as they are stored."""
    table, bottom, top = network(dim, table_dtype, mlp_dtype)
    for id_dtype in (torch.int8, torch.int32, torch.int64):
        numerical, ids = dlrm_input(batch, id_dtype)
        logits = ops.dlrm_forward(numerical, ids, table, bottom, top)
        expected = reference.dlrm_forward(
            *(numerical.double(), ids, table.offsets, False, table.rows.double()),
            *(bottom.weights.double(), bottom.biases.double(), bottom.sizes),
            *(top.weights.double(), top.biases.double(), top.sizes),
        )
        assert logits.dtype == torch.float32
        torch.testing.assert_close(logits.double(), expected, rtol=1e-4, atol=1e-4)


def test_a_prediction_on_cpu_is_the_same_in_every_batch(cpu_backend):
    table, bottom, top = network(16)
    numerical, ids = dlrm_input(75)
    together = cpu_backend.check_order(lambda: ops.dlrm_forward(numerical, ids, table, bottom, top))
    for begin, end in ((0, 1), (1, 3), (3, 20), (20, 75)):
        rows = slice(begin, end)
        alone = ops.dlrm_forward(numerical[rows], ids[rows], table, bottom, top)
        assert torch.equal(alone, together[rows])


def test_ids_outside_their_table_on_cpu():
    table, bottom, top = network(16)
    numerical, ids = dlrm_input(2)
    ids[1, 2] = 300
    with pytest.raises((RuntimeError, ValueError), match="feature 2, sample 1: id 300"):
        ops.dlrm_forward(numerical, ids, table, bottom, top)
    hashed = dataclasses.replace(table, hash_indices=True)
    taken = ops.dlrm_forward(numerical, ids, hashed, bottom, top)
    ids[1, 2] = 0
    assert torch.equal(taken, ops.dlrm_forward(numerical, ids, hashed, bottom, top))


def test_sizes_that_do_not_fit_on_cpu():
    table, bottom, top = network(16)
    numerical, ids = dlrm_input(2)
    with refusal("input", "[B, 7]", kind=(RuntimeError, ValueError)):
        ops.dlrm_forward(numerical[:, :6], ids, table, bottom, top)
    with refusal("bottom", kind=(RuntimeError, ValueError)):
        ops.dlrm_forward(numerical[:1], ids, table, bottom, top)
    wide = ops.pack_mlp(*layers((top.sizes[0], 3)))
    with refusal("top", 3, kind=(RuntimeError, ValueError)):
        ops.dlrm_forward(numerical, ids, table, bottom, wide)
