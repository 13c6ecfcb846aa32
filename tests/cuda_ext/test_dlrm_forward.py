# SPDX-License-Identifier: Apache-2.0
"""A whole DLRM in one native call against its definition."""

import pytest
import torch

from cuda_ext import ops, reference
from tests.cuda_ext.conftest import spread
from tests.cuda_ext.test_mlp import layers
from tests.tools import needs

pytestmark = needs("compiled cuda_ext kernels")

TABLES = (5, 1, 300)


def network(dim, dtype=torch.float32, mlp_dtype=torch.float32):
    width = reference.interaction_width(1 + len(TABLES), dim)
    float_dtype = torch.float64 if dtype == torch.float64 else torch.float32
    bottom = ops.pack_mlp(*layers((7, 40, dim), float_dtype), mlp_dtype)
    top = ops.pack_mlp(*layers((width, 33, 1), float_dtype), mlp_dtype)
    generator = torch.Generator().manual_seed(dim)
    rows = torch.randn(sum(TABLES), dim, generator=generator, dtype=torch.float64).to(dtype)
    return rows, torch.tensor([0, 5, 6, 306]), bottom, top


def samples(batch, id_dtype, dtype=torch.float32):
    generator = torch.Generator().manual_seed(batch)
    numerical = torch.randn(batch, 7, generator=generator, dtype=torch.float64).to(dtype)
    ids = [torch.randint(min(n, 127), (batch,), generator=generator) for n in TABLES]
    return numerical, torch.stack(ids, dim=1).to(id_dtype)


def exact(numerical, ids, rows, offsets, bottom, top):
    """Computes in float64, from the weights as they are stored."""
    wide = [t.double() for t in (bottom.weights, bottom.biases, top.weights, top.biases)]
    return reference.dlrm_forward(
        *(numerical.double(), ids, offsets, False, rows.double()),
        *(wide[0], wide[1], bottom.sizes, wide[2], wide[3], top.sizes),
    )


@pytest.mark.parametrize(
    ("batch", "dim", "table_dtype", "mlp_dtype"),
    spread([1, 3, 32, 0, 2], [1, 16, 33, 128], *[[torch.float32, torch.bfloat16]] * 2),
    ids=str,
)
def test_kernel_on_cpu_equals_the_definition(batch, dim, table_dtype, mlp_dtype):
    rows, offsets, bottom, top = network(dim, table_dtype, mlp_dtype)
    for id_dtype in (torch.int8, torch.int32, torch.int64):
        numerical, ids = samples(batch, id_dtype)
        table = ops.JointTable(rows, offsets, hash_indices=False)
        logits = ops.dlrm_forward(numerical, ids, table, bottom, top)
        expected = exact(numerical, ids, rows, offsets, bottom, top)
        assert logits.dtype == torch.float32
        torch.testing.assert_close(logits.double(), expected, rtol=1e-4, atol=1e-4)


def test_float64_on_cpu():
    rows, offsets, bottom, top = network(16, torch.float64, torch.float64)
    numerical, ids = samples(5, torch.int64, torch.float64)
    table = ops.JointTable(rows, offsets, hash_indices=False)
    logits = ops.dlrm_forward(numerical, ids, table, bottom, top)
    expected = exact(numerical, ids, rows, offsets, bottom, top)
    torch.testing.assert_close(logits, expected, rtol=1e-12, atol=1e-12)


def test_ids_outside_their_table_on_cpu():
    rows, offsets, bottom, top = network(16)
    numerical, ids = samples(2, torch.int64)
    ids[1, 2] = 300
    table = ops.JointTable(rows, offsets, hash_indices=False)
    with pytest.raises((RuntimeError, ValueError), match="feature 2, sample 1: id 300"):
        ops.dlrm_forward(numerical, ids, table, bottom, top)
    hashed = ops.JointTable(rows, offsets, hash_indices=True)
    taken = ops.dlrm_forward(numerical, ids, hashed, bottom, top)
    ids[1, 2] = 0
    assert torch.equal(taken, ops.dlrm_forward(numerical, ids, hashed, bottom, top))


def test_sizes_that_do_not_fit_on_cpu():
    rows, offsets, bottom, top = network(16)
    numerical, ids = samples(2, torch.int64)
    table = ops.JointTable(rows, offsets, hash_indices=False)
    with pytest.raises((RuntimeError, ValueError), match=r"input must be \[B, 7\]"):
        ops.dlrm_forward(numerical[:, :6], ids, table, bottom, top)
    with pytest.raises((RuntimeError, ValueError), match="bottom must be"):
        ops.dlrm_forward(numerical[:1], ids, table, bottom, top)
