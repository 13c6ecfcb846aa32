# SPDX-License-Identifier: Apache-2.0
"""Defines the row optimizers: the state, hyperparameters and formula of each.

The kernels of a row optimizer are in `csrc/update/rules.h`; everything else about it is here.
Letters: U distinct rows of a step, R rows of a table, D columns.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor

from cuda_ext import RowOptimizer
from cuda_ext.pages import use_huge_pages


class RowStep(NamedTuple):
    """The scalars of one optimizer step, the same for every row.

    Attributes:
        lr: scalar float32 tensor on the table's device.
        step: scalar float32 tensor: optimizer steps including this one.
        weight_decay: applies only to rows that occur: weight_decay * w is added to the gradient;
            decoupled for adam (AdamW).
        inverse_scale: scalar float32 tensor, 1 / loss scale; None for 1.
        overflow: scalar bool tensor; True leaves the table and the state unchanged. None for False.
        rounding_seed: seed of the stochastic rounding of bfloat16 tables.
    """

    lr: Tensor
    step: Tensor
    weight_decay: float = 0.0
    inverse_scale: Tensor | None = None
    overflow: Tensor | None = None
    rounding_seed: int = 0


State = dict[str, Tensor]
"""Named tensors: of a table, with R rows; in a formula, with the U rows of a step."""

Allocate = Callable[[torch.Size], Tensor]
"""Returns a zeroed float32 tensor of a shape."""

Formula = Callable[[Tensor, Tensor, State, RowStep], tuple[Tensor, State]]
"""(old rows [U, D], gradients [U, D], old state, step) to (new rows, new state)."""


@dataclass(frozen=True)
class RowRule:
    """One row optimizer.

    Attributes:
        apply: the formula, in plain PyTorch.
        row_state: names of the float32 tensors with one number per row.
        element_state: names of the float32 tensors with one number per element.
        hyperparameters: names and values, in the order in which `csrc/update/rules.h` reads them.
    """

    apply: Formula
    row_state: tuple[str, ...] = ()
    element_state: tuple[str, ...] = ()
    hyperparameters: Mapping[str, float] = field(default_factory=dict)

    def new_state(self, table: Tensor, allocate: Allocate | None = None) -> State:
        """Returns zeroed state for a table [R, D], in kernel order.

        Args:
            table: the table, on the device of the state.
            allocate: see `Allocate`, for the state of elements; None puts it into memory.
        """
        shapes = dict.fromkeys(self.row_state, table.shape[:1])
        shapes |= dict.fromkeys(self.element_state, table.shape)
        return {
            name: use_huge_pages(table.new_empty(shape, dtype=torch.float32)).zero_()
            if allocate is None or name in self.row_state
            else allocate(shape)
            for name, shape in shapes.items()
        }

    def state_bytes_per_row(self, dim: int) -> int:
        """Returns the bytes of state that belong to one row of `dim` columns."""
        return 4 * (len(self.row_state) + len(self.element_state) * dim)


ADAGRAD = MappingProxyType({"eps": 1e-8})
ADAM = MappingProxyType({"beta1": 0.9, "beta2": 0.999, "eps": 1e-8})


def _sgd(old: Tensor, gradients: Tensor, state: State, step: RowStep) -> tuple[Tensor, State]:
    """Plain SGD: w -= lr * (g + weight_decay * w)."""
    return old - step.lr * (gradients + step.weight_decay * old), state


def _adagrad(old: Tensor, gradients: Tensor, state: State, step: RowStep) -> tuple[Tensor, State]:
    """Adagrad with an accumulator per element, or per row ([U] state).

    Sources: Duchi et al. 2011; row-wise: Gupta et al. 2014 (arXiv:1409.4246), the form that FBGEMM
    calls EXACT_ROWWISE_ADAGRAD (the mean of the squared row gradient).
    """
    gradients = gradients + step.weight_decay * old
    total = state["sum_of_squares"]
    if total.ndim == 1:
        total = total + gradients.square().mean(1)
        root = total.sqrt().unsqueeze(1)
    else:
        total = total + gradients.square()
        root = total.sqrt()
    return old - step.lr * gradients / (root + ADAGRAD["eps"]), {"sum_of_squares": total}


def _adam(old: Tensor, gradients: Tensor, state: State, step: RowStep) -> tuple[Tensor, State]:
    """Lazy Adam with decoupled decay: moments move with their rows only.

    Sources: Kingma and Ba 2015 (arXiv:1412.6980), algorithm 1; rows as torch.optim.SparseAdam.
    """
    beta1, beta2 = ADAM["beta1"], ADAM["beta2"]
    first = torch.lerp(gradients, state["first_moment"], beta1)
    second = torch.lerp(gradients.square(), state["second_moment"], beta2)
    root = (second / (1 - beta2**step.step)).sqrt() + ADAM["eps"]
    change = first / (1 - beta1**step.step) / root + step.weight_decay * old
    return old - step.lr * change, {"first_moment": first, "second_moment": second}


ROW_RULES: Mapping[RowOptimizer, RowRule] = MappingProxyType(
    {
        "sgd": RowRule(_sgd),
        "rowwise_adagrad": RowRule(
            _adagrad, row_state=("sum_of_squares",), hyperparameters=ADAGRAD
        ),
        "adagrad": RowRule(_adagrad, element_state=("sum_of_squares",), hyperparameters=ADAGRAD),
        "adam": RowRule(
            _adam, element_state=("first_moment", "second_moment"), hyperparameters=ADAM
        ),
    }
)
"""Name -> row optimizer."""
