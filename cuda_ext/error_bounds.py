# SPDX-License-Identifier: Apache-2.0
"""Computes bounds of the ops' rounding errors, from theory.

With u = eps / 2, the largest relative error of one rounding, a sum of n products, added in any
order, errs by at most n u / (1 - n u) times the sum of the magnitudes of the products (Higham 2002,
Accuracy and Stability of Numerical Algorithms, equation 3.5). The bounds here charge

    (n + 1) eps x sum |a| |b|,

a little more than twice that: tensor cores truncate where others round (2 u instead of u), and when
float64 itself is judged, the reference errs as well. If the result has a narrower type than the
sum, one more rounding adds eps / 2 of the result.

The operations after a sum (the optimizer rules) are bounded one by one, as in running error
analysis (Higham 2002, section 3.3): each operation passes on the errors of its operands, as much as
it can enlarge them, and `OPERATION` is added for its own rounding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from cuda_ext import RowOptimizer, reference
from cuda_ext.row_rules import ROW_RULES, RowStep

EPS = torch.finfo(torch.float32).eps

OPERATION = 4 * EPS
"""Relative error of one operation of a rule: its own rounding and those of a constant in it.

Eight roundings u = eps / 2. The longest constant is Adam's bias correction: 1 - beta (u), its log1p
(2 u on CUDA), a product (u), expm1 (2 u), and the quotient with it (u).
"""


@dataclass(frozen=True)
class Bounded:
    """A true value in float64, and a float32 kernel's allowed error.

    Attributes:
        value: the true value, float64.
        error: bound of |result - value|, element by element, float64.
    """

    value: Tensor
    error: Tensor

    @classmethod
    def exact(cls, value: Tensor) -> Bounded:
        """Wraps a value that kernels get without an error."""
        return cls(value.double(), torch.zeros_like(value, dtype=torch.float64))

    def excess(self, result: Tensor) -> float:
        """Returns the largest error relative to its bound; infinity for NaN."""
        assert result.shape == self.value.shape
        error = (result.double() - self.value).abs()
        if not error.numel():
            return 0.0
        ratio = torch.where(error == 0, 0.0, error / self.error)
        return float(ratio.nan_to_num(nan=torch.inf, posinf=torch.inf).amax())

    def rounded(self, dtype: torch.dtype) -> Bounded:
        """Allows one more rounding of the result, to a narrower type."""
        kind = torch.finfo(dtype)
        unit = kind.eps / 2
        subnormal = kind.smallest_normal * unit
        return Bounded(self.value, self.error + unit * (self.value.abs() + self.error) + subnormal)

    def rounded_either_way(self, dtype: torch.dtype) -> Bounded:
        """Allows for stochastic rounding, to either neighbour: eps of the larger magnitude."""
        largest = (self.value.abs() + self.error) * (1 + torch.finfo(dtype).eps)
        return Bounded(self.value, self.error + torch.finfo(dtype).eps * largest)

    def __getitem__(self, index: Any) -> Bounded:
        return Bounded(self.value[index], self.error[index])

    def reshape(self, *shape: int) -> Bounded:
        """As `Tensor.reshape`."""
        return Bounded(self.value.reshape(shape), self.error.reshape(shape))

    def unsqueeze(self, dim: int) -> Bounded:
        """As `Tensor.unsqueeze`."""
        return Bounded(self.value.unsqueeze(dim), self.error.unsqueeze(dim))

    @property
    def ndim(self) -> int:
        """As `Tensor.ndim`."""
        return self.value.ndim

    def __add__(self, other: Bounded | float) -> Bounded:
        other = _bounded(other)
        return _operation(self.value + other.value, self.error + other.error)

    def __radd__(self, other: float) -> Bounded:
        return self + other

    def __sub__(self, other: Bounded) -> Bounded:
        return _operation(self.value - other.value, self.error + other.error)

    def __mul__(self, other: Bounded | float) -> Bounded:
        other = _bounded(other)
        passed_on = self.value.abs() * other.error + self.error * other.value.abs()
        return _operation(self.value * other.value, passed_on + self.error * other.error)

    def __rmul__(self, other: float) -> Bounded:
        return self * other

    def __truediv__(self, other: Bounded | float) -> Bounded:
        other = _bounded(other)
        quotient = self.value / other.value
        passed_on = self.error + quotient.abs() * other.error
        return _operation(quotient, passed_on / (other.value.abs() - other.error).clamp(min=0))

    def __matmul__(self, other: Bounded) -> Bounded:
        passed_on = self.value.abs() @ other.error + self.error @ other.value.abs()
        passed_on = passed_on + self.error @ other.error
        magnitudes = (self.value.abs() + self.error) @ (other.value.abs() + other.error)
        terms = self.value.shape[-1]
        return Bounded(self.value @ other.value, passed_on + (terms + 1) * EPS * magnitudes)

    def t(self) -> Bounded:
        """As `Tensor.t`."""
        return Bounded(self.value.t(), self.error.t())

    def sum(self, dim: int) -> Bounded:
        """As `Tensor.sum`, with the dimension kept."""
        passed_on = self.error.sum(dim, keepdim=True)
        magnitudes = self.value.abs().sum(dim, keepdim=True) + passed_on
        added = (self.value.shape[dim] + 1) * EPS * magnitudes
        return Bounded(self.value.sum(dim, keepdim=True), passed_on + added)

    def exp(self) -> Bounded:
        """As `Tensor.exp`, steepest above the value."""
        return _operation(self.value.exp(), self.value.exp() * self.error.expm1())

    def log(self) -> Bounded:
        """As `Tensor.log`, steepest below the value."""
        return _operation(self.value.log(), -torch.log1p(-self.error / self.value))

    def square(self) -> Bounded:
        """As `Tensor.square`."""
        return self * self

    def sqrt(self) -> Bounded:
        """As `Tensor.sqrt`, steepest below the value."""
        root = self.value.sqrt()
        return _operation(root, root - (self.value - self.error).clamp(min=0).sqrt())

    def mean(self, dim: int) -> Bounded:
        """As `Tensor.mean`, for values that are nowhere negative."""
        mean, passed_on = self.value.mean(dim), self.error.mean(dim)
        added = (self.value.shape[dim] + 1) * EPS * (mean + passed_on)
        return _operation(mean, passed_on + added)

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Implements `torch.lerp`, with which the rules move Adam's moments."""
        del types, kwargs
        if func is not torch.lerp:
            return NotImplemented
        start, end, weight = args
        return start * (1 - weight) + end * weight


def _bounded(value: Bounded | float) -> Bounded:
    if isinstance(value, Bounded):
        return value
    return Bounded.exact(torch.tensor(value, dtype=torch.float64))


def _operation(value: Tensor, passed_on: Tensor) -> Bounded:
    return Bounded(value, passed_on + OPERATION * (value.abs() + passed_on))


def sum_of_products(
    value: Tensor, magnitudes: Tensor, terms: int | Tensor, dtype: torch.dtype
) -> Bounded:
    """Bounds a float32 sum of at most `terms` products, in any order.

    `value` and `magnitudes`, the sums of the products and of their magnitudes, are float64; `dtype`
    is the type of the result. Products of float64 are added in float64.
    """
    sums = torch.promote_types(dtype, torch.float32)
    bounded = Bounded(value, (terms + 1) * torch.finfo(sums).eps * magnitudes)
    return bounded if sums == dtype else bounded.rounded(dtype)


def dot_interaction(
    features: Tensor, bottom: Tensor, gradient: Tensor
) -> tuple[Bounded, Bounded, Bounded]:
    """Bounds the interaction and its gradients to `features` and `bottom`.

    A product sums D terms. The gradient of a vector sums its products with the N - 1 others, and
    for the first one the copied columns: at most N.
    """

    def run(*inputs: Tensor) -> list[Tensor]:
        first, second, upstream = (tensor.detach().double() for tensor in inputs)
        first.requires_grad_()
        second.requires_grad_()
        output = reference.dot_interaction(first, second)
        return [output.detach(), *torch.autograd.grad(output, (first, second), upstream)]

    values = run(features, bottom, gradient)
    magnitudes = run(features.abs(), bottom.abs(), gradient.abs())
    terms = (features.shape[2], features.shape[1] + 1, features.shape[1] + 1)
    output, to_features, to_bottom = (
        sum_of_products(*sums, features.dtype)
        for sums in zip(values, magnitudes, terms, strict=True)
    )
    return output, to_features, to_bottom


def updated(
    rule: RowOptimizer,
    table: Bounded,
    state: dict[str, Bounded],
    rows: Tensor,
    gradients: Bounded,
    *,
    lr: float,
    step: float,
    weight_decay: float = 0.0,
    inverse_scale: float = 1.0,
    source: Tensor | None = None,
    scale: Tensor | None = None,
    in_chunks: bool = True,
) -> tuple[Bounded, dict[str, Bounded]]:
    """Bounds table and state after `reference.update_rows`, whose arguments these are.

    A term of a row's gradient goes through n additions if the row has n lookups. Kernels with
    sorted rows add chunks of 32 to 256 lookups, then the sums of the chunks: at most 256 + n / 32.
    """
    if source is not None:
        gradients = gradients[source.long()]
    factor = torch.ones(len(rows), device=rows.device) if scale is None else scale
    factor = factor.double().unsqueeze(1)
    unique, sums = reference.sum_duplicate_rows(rows, gradients.value * factor)
    _, passed_on = reference.sum_duplicate_rows(rows, gradients.error * factor.abs())
    _, magnitudes = reference.sum_duplicate_rows(rows, (gradients.value * factor).abs())
    additions = torch.bincount(rows.long(), minlength=len(table.value))[unique].unsqueeze(1)
    if in_chunks:
        additions = torch.minimum(additions, 256 + additions // 32)
    error = passed_on + (additions + 1) * EPS * (magnitudes + passed_on)
    total = Bounded(sums, error) * inverse_scale
    apply, scalars = cast("Any", ROW_RULES[rule].apply), cast("Any", RowStep)
    old_state = {name: tensor[unique] for name, tensor in state.items()}
    new, new_state = apply(table[unique], total, old_state, scalars(lr, step, weight_decay))

    def write(into: Bounded, rows_of_it: Bounded) -> Bounded:
        return Bounded(
            into.value.index_copy(0, unique, rows_of_it.value),
            into.error.index_copy(0, unique, rows_of_it.error),
        )

    return write(table, new), {name: write(state[name], new_state[name]) for name in state}
