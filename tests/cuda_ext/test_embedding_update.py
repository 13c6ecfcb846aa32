# SPDX-License-Identifier: Apache-2.0
"""update_rows on every backend: each rule, table format and gradient type against the reference."""

from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor

from cuda_ext import error_bounds, ops, reference
from cuda_ext.error_bounds import Bounded
from cuda_ext.row_rules import ROW_RULES, RowStep
from tests.cuda_ext.conftest import spread

RULES = list(ROW_RULES)
FORMATS = ["float32", "bfloat16"]
GRADIENTS = [torch.float32, torch.float16, torch.bfloat16]
NUM_ROWS = 40

# Lookups and columns: none, alone, in pairs, rows that reach over several chunks of any backend.
SHAPES = [
    (1000, 100),
    (1500, 16),
    (2, 3),
    (2000, 128),
    (300, 17),
    (31, 1),
    (1500, 130),
    (1000, 256),
]
SHAPES += [(1500, 4), (0, 16), (1, 128), (1500, 3)]


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@dataclass
class Update:
    """One call of update_rows; `run` leaves the tensors here as they are."""

    rule: str
    format: str
    table: Tensor  # float32, also where the format is another
    state: dict[str, Tensor]
    rows: Tensor
    gradients: Tensor
    options: dict = field(default_factory=dict)

    def run(self, update_rows, dtype=None):
        """Returns the new weights and state; `dtype` computes a float table in that type."""
        state = {name: tensor.clone() for name, tensor in self.state.items()}
        scalars = {"lr": torch.tensor(0.25), "step": torch.tensor(3.0)}
        if dtype is not None:
            table = self.weights().to(dtype)
            state = {name: tensor.to(dtype) for name, tensor in state.items()}
            scalars = {name: tensor.to(dtype) for name, tensor in scalars.items()}
        else:
            table = self.weights().to(getattr(torch, self.format))
        update_rows(
            *(self.rule, table, state, self.rows, self.gradients),
            RowStep(**scalars, **{n: v for n, v in self.options.items() if n in RowStep._fields}),
            **{n: v for n, v in self.options.items() if n not in RowStep._fields},
        )
        return table, state

    def weights(self):
        """The weights as the table holds them."""
        return self.table.bfloat16().float() if self.format == "bfloat16" else self.table.clone()


def make_update(rule, table_format, count, dim, dtype=torch.float32, **options):
    """Rows as a power law draws them: the first occurs in a third of all lookups."""
    generator = torch.Generator().manual_seed(count + dim)
    rows = (torch.rand(count, generator=generator) ** 3 * NUM_ROWS).long()
    table = random(NUM_ROWS, dim)
    state = ops.row_optimizer_state(rule, table)
    for seed, tensor in enumerate(state.values()):
        tensor.copy_(random(*tensor.shape, seed=seed).square())
    return Update(
        rule, table_format, table, state, rows, random(count, dim, seed=3).to(dtype), options
    )


def bounds(update):
    """Returns what weights and state may be: the truth in float64, and a bound of the error."""
    options = dict(update.options)
    options.pop("overflow", None)
    if "inverse_scale" in options:
        options["inverse_scale"] = float(options["inverse_scale"])
    weights, state = error_bounds.updated(
        update.rule,
        Bounded.exact(update.weights()),
        {name: Bounded.exact(tensor) for name, tensor in update.state.items()},
        update.rows,
        Bounded.exact(update.gradients),
        **({"lr": 0.25, "step": 3.0} | options),
    )
    if update.format == "bfloat16":
        weights = weights.rounded_either_way(torch.bfloat16)
    return weights, state


def check(update, found):
    """Compares weights and state with float64."""
    weights, state = found
    bound, state_bounds = bounds(update)
    assert bound.excess(weights) <= 1
    for name, tensor in state.items():
        assert state_bounds[name].excess(tensor) <= 1
    absent = torch.ones(NUM_ROWS, dtype=torch.bool)
    absent[update.rows] = False
    assert torch.equal(weights[absent].float(), update.weights()[absent])
    for name, tensor in state.items():
        assert torch.equal(tensor[absent], update.state[name][absent])


@pytest.mark.parametrize(("shape", "rule", "table_format"), spread(SHAPES, RULES, FORMATS), ids=str)
def test_rules(backend, shape, rule, table_format):
    count, dim = shape
    update = make_update(rule, table_format, count, dim)
    check(update, update.run(backend.update_rows))


@pytest.mark.parametrize(
    ("dtype", "rule", "table_format"), spread(GRADIENTS, RULES, FORMATS), ids=str
)
def test_gradient_types_with_every_option(backend, rule, table_format, dtype):
    """Weight decay, a loss scale, and bags: several lookups share a gradient row."""
    for count, dim in [(900, 16), (700, 33), (3, 130)]:
        update = make_update(
            *(rule, table_format, count, dim, backend.taken(dtype)),
            weight_decay=0.125,
            inverse_scale=torch.tensor(2.0**-3),
            overflow=torch.tensor(False),
            source=torch.arange(count, dtype=torch.int32) // 3,
            scale=random(count, seed=9),
        )
        update.gradients = update.gradients[: -(-count // 3)]
        check(update, update.run(backend.update_rows))


@pytest.mark.parametrize(
    ("count", "row_type"),
    # Chunks are of 256 lookups on a CPU, of 32 on CUDA.
    spread([31, 32, 33, 255, 256, 257, 513, 1024], [torch.int32, torch.int64]),
    ids=str,
)
def test_one_row_in_every_lookup(backend, count, row_type):
    """The row begins and ends with a chunk, or one lookup beside it."""
    update = make_update("rowwise_adagrad", "float32", count, 20)
    update.rows = torch.full((count,), 7, dtype=row_type)
    check(update, update.run(backend.update_rows))


@pytest.mark.parametrize("lengths", [(256, 256, 1), (1, 255, 256, 3), (255, 2, 255), (600, 424)])
def test_rows_that_end_where_chunks_do(backend, lengths):
    rows = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    update = make_update("sgd", "float32", sum(lengths), 16)
    update.rows = rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(1))]
    check(update, update.run(backend.update_rows))


@pytest.mark.parametrize(("rule", "table_format"), spread(RULES, FORMATS))
def test_overflow_writes_nothing(backend, rule, table_format):
    update = make_update(rule, table_format, 600, 16, overflow=torch.tensor(True))
    update.gradients[5] = torch.inf
    weights, state = update.run(backend.update_rows)
    assert torch.equal(weights.float(), update.weights())
    assert all(torch.equal(state[name], update.state[name]) for name in state)


@pytest.mark.parametrize(("rule", "table_format"), spread(RULES, FORMATS))
def test_same_bits_for_every_number_of_threads(cpu_backend, each_thread_count, rule, table_format):
    update = make_update(rule, table_format, 3000, 24, rounding_seed=5)

    def run():
        weights, state = update.run(cpu_backend.update_rows)
        return torch.cat(
            [weights.double(), *(s.double().reshape(NUM_ROWS, -1) for s in state.values())], dim=1
        )

    first, *others = each_thread_count(run)
    assert all(torch.equal(first, other) for other in others)


@pytest.mark.parametrize("seed", [0, -1, 2**32 + 7])
def test_stochastic_rounding_has_the_bits_of_the_reference(backend, seed):
    """All sums are exact: small integers, and a step size that is a power of two."""
    for count, dim in [(1, 3), (400, 16), (900, 65)]:
        update = make_update("sgd", "bfloat16", count, dim, rounding_seed=seed)
        update.gradients = (update.gradients * 16).round()
        update.table = (update.table * 64).round() * 2.0**-6
        found, _ = update.run(backend.update_rows)
        expected, _ = update.run(reference.update_rows)
        assert torch.equal(found, expected)


def test_stochastic_rounding_is_unbiased(backend):
    """Each step is 1/16 of the distance of two numbers: rounding to nearest would never move."""
    rows = torch.arange(50)
    table = torch.ones(50, 64, dtype=torch.bfloat16)
    gradients = torch.full((50, 64), 2.0**-12)
    for step in range(256):
        backend.update_rows(
            *("sgd", table, {}, rows, gradients),
            RowStep(torch.tensor(1.0), torch.tensor(float(step)), rounding_seed=11),
        )
    moved = 1.0 - table.double()
    # 256 draws of probability 1/16, each worth 2^-8; the mean is over 3200 elements.
    deviation = (256 * (1 / 16) * (15 / 16)) ** 0.5 * 2**-8
    assert abs(float(moved.mean()) - 2**-4) < 5 * deviation / 3200**0.5
    assert float(moved.std()) == pytest.approx(deviation, rel=0.1)


def test_infinite_gradients_reach_the_row_they_belong_to(backend):
    update = make_update("sgd", "bfloat16", 300, 16)
    update.gradients[7, 2] = torch.inf
    weights, _ = update.run(backend.update_rows)
    infinite = weights.isinf().nonzero().tolist()
    assert infinite == [[int(update.rows[7]), 2]]


@pytest.mark.parametrize("rule", RULES)
def test_a_table_without_rows_is_left_alone(rule):
    """A rank on which no table lies, say, beside tables that lie on every rank."""
    table = torch.empty(0, 16)
    state = ops.row_optimizer_state(rule, table)
    nothing = torch.empty(0, dtype=torch.int64)
    update = Update(rule, "float32", table, state, nothing, torch.empty(0, 16))
    weights, _ = update.run(ops.update_rows)
    assert weights.shape == (0, 16)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize(("count", "dim"), [(0, 4), (1, 3), (900, 17), (3000, 129)])
def test_gradients_are_summed_by_row(count, dim, dtype):
    rows = (torch.rand(count, generator=torch.Generator().manual_seed(2)) ** 3 * 40).int()
    gradients = random(count, dim).to(dtype)
    summed = ops.sum_by_row(rows, gradients, 41)
    expected = torch.zeros(41, dim, dtype=torch.float64).index_add(0, rows, gradients.double())
    assert summed.dtype == torch.promote_types(dtype, torch.float32)
    torch.testing.assert_close(summed.double(), expected, rtol=1e-5, atol=1e-4)
    assert torch.equal(summed, ops.sum_by_row(rows, gradients, 41))
