# SPDX-License-Identifier: Apache-2.0
"""The bounds of rounding errors: plain PyTorch keeps them, a wrong result does not."""

import pytest
import torch

from cuda_ext import error_bounds, ops, reference
from cuda_ext.error_bounds import Bounded
from cuda_ext.row_rules import ROW_RULES, RowStep
from tests.cuda_ext.conftest import randn

RULES = list(ROW_RULES)


def interaction(features, bottom, gradient):
    """Returns output and gradients of the definition."""
    inputs = [tensor.detach().requires_grad_() for tensor in (features, bottom)]
    output = reference.dot_interaction(*inputs)
    return [output.detach(), *torch.autograd.grad(output, inputs, gradient)]


def excesses(bounds, results):
    return [bound.excess(result) for bound, result in zip(bounds, results, strict=True)]


@pytest.mark.parametrize("shape", [(9, 27, 128), (2, 5, 256)], ids=str)
def test_interaction_without_a_term_or_summed_in_bfloat16_is_refused(shape):
    batch, vectors, dim = shape
    features, bottom = randn(batch, vectors - 1, dim), randn(batch, dim, seed=1)
    gradient = randn(batch, reference.interaction_width(vectors, dim), seed=2)
    bounds = error_bounds.dot_interaction(features, bottom, gradient)
    assert max(excesses(bounds, interaction(features, bottom, gradient))) <= 1

    shorter, fewer = features.clone(), gradient.clone()
    shorter[:, :, -1] = 0  # the output lacks the last product of each sum
    fewer[:, dim] = 0  # the gradients lack the pair of the first two vectors
    without = [interaction(shorter, bottom, gradient)[0], *interaction(features, bottom, fewer)[1:]]
    assert min(excesses(bounds, without)) > 10
    halves = (tensor.bfloat16() for tensor in (features, bottom, gradient))
    assert min(excesses(bounds, [t.float() for t in interaction(*halves)])) > 10


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_a_result_rounded_to_nearest_may_not_be_off_by_a_unit(dtype):
    value = randn(1000).double()
    bound = Bounded.exact(value).rounded(dtype)
    nearest = value.to(dtype)
    assert bound.excess(nearest) <= 1
    next_up = nearest.double() * (1 + 1.001 * torch.finfo(dtype).eps)
    assert bound.excess(next_up.to(dtype)) > 1
    assert bound.rounded_either_way(dtype).excess(next_up.to(dtype)) <= 2


@pytest.mark.parametrize("rule", RULES)
def test_updates_without_a_lookup_summed_in_bfloat16_or_at_another_rate_are_refused(rule):
    """The faults are planted in float64 results: nothing else of them is off."""
    table, gradients = randn(40, 16), randn(2000, 16, seed=1)
    rows = (torch.rand(2000, generator=torch.Generator().manual_seed(2)) ** 3 * 40).long()
    state = {
        name: randn(*tensor.shape, seed=3).square()
        for name, tensor in ops.row_optimizer_state(rule, table).items()
    }
    bound, states = error_bounds.updated(
        *(rule, Bounded.exact(table), {name: Bounded.exact(t) for name, t in state.items()}),
        *(rows, Bounded.exact(gradients)),
        **{"lr": 0.25, "step": 3.0, "weight_decay": 0.125},
    )

    def excesses_with(rows, gradients, lr=0.25):
        weights, moved = table.double(), {name: t.double() for name, t in state.items()}
        step = RowStep(torch.tensor(lr).double(), torch.tensor(3.0).double(), weight_decay=0.125)
        reference.update_rows(rule, weights, moved, rows, gradients.double(), step)
        results = [tensor.float() for tensor in (weights, *moved.values())]
        return excesses([bound, *states.values()], results)

    assert max(excesses_with(rows, gradients)) < 0.2
    assert min(excesses_with(rows[1:], gradients[1:])) > 10
    unique, rounded = reference.sum_duplicate_rows(rows, gradients.bfloat16())
    assert min(excesses_with(unique, rounded)) > 10
    assert excesses_with(rows, gradients, lr=0.251)[0] > 1


def test_a_nan_and_a_change_where_nothing_may_err_are_refused():
    bound = Bounded.exact(torch.tensor([1.0, 0.0]))
    assert bound.excess(torch.tensor([1.0, 0.0])) == 0
    assert bound.excess(torch.tensor([1.0, float("nan")])) == torch.inf
    assert bound.excess(torch.tensor([1.0, 1e-30])) == torch.inf
