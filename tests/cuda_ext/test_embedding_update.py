# SPDX-License-Identifier: Apache-2.0
"""The updates of table rows on every backend: each rule, table format and gradient type.

They are compared with float64, within the bounds of rounding errors.
"""

from dataclasses import dataclass, field
from functools import partial

import pytest
import torch
from torch import Tensor

from cuda_ext import error_bounds, ops, reference
from cuda_ext.error_bounds import Bounded
from cuda_ext.row_rules import ROW_RULES, RowStep
from tests.cuda_ext.conftest import randn, spread

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

    def run(self, update_rows):
        """Returns the new weights and state."""
        state = {name: tensor.clone() for name, tensor in self.state.items()}
        table = self.weights().to(getattr(torch, self.format))
        scalars = {"lr": torch.tensor(0.25), "step": torch.tensor(3.0)}
        update_rows(
            *(self.rule, table, state, self.rows, self.gradients),
            RowStep(**scalars, **{n: v for n, v in self.options.items() if n in RowStep._fields}),
            **{n: v for n, v in self.options.items() if n not in RowStep._fields},
        )
        return table, state

    def weights(self):
        """The weights as the table holds them."""
        return self.table.bfloat16().float() if self.format == "bfloat16" else self.table.clone()


def make_update(
    rule,
    table_format,
    count,
    dim,
    dtype=torch.float32,
    *,
    num_rows=NUM_ROWS,
    shared=False,
    **options,
):
    """Rows as a power law draws them: the first occurs in a third of all lookups.

    `shared` makes bags: three lookups have one row of gradients, and each a factor.
    """
    generator = torch.Generator().manual_seed(count + dim)
    rows = (torch.rand(count, generator=generator) ** 3 * num_rows).long()
    table = randn(num_rows, dim)
    state = ops.row_optimizer_state(rule, table)
    for seed, tensor in enumerate(state.values()):
        tensor.copy_(randn(*tensor.shape, seed=seed).square())
    gradients = randn(count, dim, seed=3).to(dtype)
    if shared:
        gradients = gradients[: -(-count // 3)]
        source = torch.arange(count, dtype=torch.int32) // 3
        options |= {"source": source, "scale": randn(count, seed=9)}
    return Update(rule, table_format, table, state, rows, gradients, options)


def bounds(update, in_chunks):
    """Returns weights and state in float64, and bounds of their errors."""
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
        **({"lr": 0.25, "step": 3.0, "in_chunks": in_chunks} | options),
    )
    if update.format == "bfloat16":
        weights = weights.rounded_either_way(torch.bfloat16)
    return weights, state


def check(update, found, in_chunks=True):
    """Compares weights and state with float64."""
    weights, state = found
    bound, state_bounds = bounds(update, in_chunks)
    assert bound.excess(weights) <= 1
    for name, tensor in state.items():
        assert state_bounds[name].excess(tensor) <= 1
    absent = torch.ones(len(weights), dtype=torch.bool)
    absent[update.rows] = False
    assert torch.equal(weights[absent].float(), update.weights()[absent])
    for name, tensor in state.items():
        assert torch.equal(tensor[absent], update.state[name][absent])


def unsorted_sgd(backend, _rule, table, _state, rows, gradients, step, source=None, scale=None):
    """SGD without a sort, with the arguments of update_rows."""
    arguments = (table, rows, gradients, source, scale)
    backend.run("sgd_rows_unsorted", *arguments, step.lr, step.inverse_scale, step.overflow)


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
            shared=True,
            weight_decay=0.125,
            inverse_scale=torch.tensor(2.0**-3),
            overflow=torch.tensor(False),
        )
        check(update, update.run(backend.update_rows))


@pytest.mark.parametrize(
    ("size", "dtype", "shared"),
    spread(
        [(1000, 16, 5), (5000, 33, 400), (9000, 128, 12_000), (7, 3, 2), (0, 4, 3), (1, 1, 1)],
        *(GRADIENTS, [False, True]),
    ),
    ids=str,
)
def test_unsorted_sgd(cpu_backend, size, dtype, shared):
    count, dim, num_rows = size
    update = make_update(
        *("sgd", "float32", count, dim, cpu_backend.taken(dtype)),
        num_rows=num_rows,
        shared=shared,
        inverse_scale=torch.tensor(0.5),
    )
    for row_type in (torch.int32, torch.int64):
        update.rows = update.rows.to(row_type)
        check(update, update.run(partial(unsorted_sgd, cpu_backend)), in_chunks=False)


@pytest.mark.parametrize("weight_decay", [0.0, 0.125])
@pytest.mark.parametrize("table_format", FORMATS)
def test_sgd_takes_the_kernel_that_does_what_it_is_asked(table_format, weight_decay):
    """The one that needs no sort neither decays weights nor rounds to bfloat16."""
    update = make_update("sgd", table_format, 700, 33, weight_decay=weight_decay)
    is_sorted = bool(weight_decay) or table_format != "float32"
    check(update, update.run(ops.update_rows), in_chunks=is_sorted)


@pytest.mark.parametrize(
    ("size", "row_type"),
    # Chunks are of 256 lookups on a CPU, of 32 on CUDA, where the last ones are more than the teams
    # of threads that a block has.
    spread(
        [*((n, 20) for n in (31, 32, 33, 255, 256, 257, 513)), (20_000, 4), (2000, 128), (4000, 3)],
        [torch.int32, torch.int64],
    ),
    ids=str,
)
def test_one_row_in_every_lookup(backend, size, row_type):
    """The row begins and ends with a chunk, or one lookup beside it."""
    update = make_update("rowwise_adagrad", "float32", *size)
    update.rows = torch.full((size[0],), 7, dtype=row_type)
    check(update, update.run(backend.update_rows))


@pytest.mark.parametrize("lengths", [(256, 256, 1), (1, 255, 256, 3), (255, 2, 255), (600, 424)])
def test_rows_that_end_where_chunks_do(backend, lengths):
    rows = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    update = make_update("sgd", "float32", sum(lengths), 16)
    update.rows = rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(1))]
    check(update, update.run(backend.update_rows))


@pytest.mark.parametrize("length", [1, 2, 255, 256, 257, 700])
@pytest.mark.parametrize("before", [0, 1, 100, 255, 256, 300])
def test_the_bits_of_a_row_depend_only_on_its_own_lookups(cpu_backend, length, before):
    lookups = torch.randn(length, 17, generator=torch.Generator().manual_seed(length))
    alone = make_update("adagrad", "float32", length, 17)
    alone.rows, alone.gradients = torch.full((length,), 7), lookups
    (expected, _), others = alone.run(cpu_backend.update_rows), randn(before + 50, 17)
    beside = make_update("adagrad", "float32", length + before + 50, 17)
    beside.table, beside.state = alone.table, alone.state
    beside.rows = torch.cat([torch.full((before,), 3), alone.rows, torch.full((50,), 9)])
    beside.gradients = torch.cat([others[:before], lookups, others[before:]])
    found = beside.run(cpu_backend.update_rows)
    check(beside, found)
    assert torch.equal(found[0][7], expected[7])


@pytest.mark.parametrize(("rule", "table_format"), spread(RULES, FORMATS))
def test_overflow_writes_nothing(backend, rule, table_format):
    update = make_update(rule, table_format, 600, 16, overflow=torch.tensor(True))
    update.gradients[5] = torch.inf
    runs = [update.run(backend.update_rows)]
    if (backend.name, rule, table_format) == ("cpu", "sgd", "float32"):
        runs.append(update.run(partial(unsorted_sgd, backend)))
    for weights, state in runs:
        assert torch.equal(weights.float(), update.weights())
        assert all(torch.equal(state[name], update.state[name]) for name in state)


@pytest.mark.parametrize(
    ("dim", "rule", "table_format"), spread([24, 128, 3, 256], RULES, FORMATS), ids=str
)
def test_same_bits_in_any_order(backend, dim, rule, table_format):
    update = make_update(rule, table_format, 1500, dim, rounding_seed=5)
    backend.check_order(lambda: update.run(backend.update_rows))


def test_unsorted_sgd_has_the_same_bits_for_every_number_of_threads(cpu_backend):
    update = make_update("sgd", "float32", 20_000, 24, num_rows=300)
    cpu_backend.check_order(lambda: update.run(partial(unsorted_sgd, cpu_backend)))


@pytest.mark.parametrize(
    ("dim", "dtype"), spread([6, 16, 256], [torch.int32, torch.int64]), ids=str
)
def test_rows_outside_the_table_on_a_device(emulated, dim, dtype):
    """They read as zeros, sort last, and leave the rows whose low bits they share alone."""
    update = make_update("adagrad", "float32", 200, dim)
    rows = update.rows.to(dtype)
    bad = torch.arange(200) % 7 == 3
    outside = torch.tensor([NUM_ROWS, -1, 64, -64, 2**30], dtype=dtype)
    rows[bad] = outside.repeat(12)[: int(bad.sum())]
    read = emulated.run("embedding_gather", update.table, rows, None, torch.float32)
    assert torch.equal(read[bad], torch.zeros_like(read[bad]))
    assert torch.equal(read[~bad], update.table[rows[~bad].long()])

    by_row, positions = emulated.run("sort_rows", rows, NUM_ROWS)
    kept = int((~bad).sum())
    assert torch.equal(by_row[:kept], rows[~bad].sort(stable=True).values)
    assert torch.equal(by_row[kept:], torch.full_like(by_row[kept:], -1))
    assert torch.equal(positions[kept:].long(), bad.nonzero().flatten())

    update.rows = rows
    found = update.run(emulated.update_rows)
    update.rows, update.gradients = rows[~bad], update.gradients[~bad]
    check(update, found)


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
    gradients = randn(count, dim).to(dtype)
    summed = ops.sum_by_row(rows, gradients, 41)
    expected = torch.zeros(41, dim, dtype=torch.float64).index_add(0, rows, gradients.double())
    assert summed.dtype == torch.promote_types(dtype, torch.float32)
    torch.testing.assert_close(summed.double(), expected, rtol=1e-5, atol=1e-4)
    assert torch.equal(summed, ops.sum_by_row(rows, gradients, 41))
