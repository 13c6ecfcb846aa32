# SPDX-License-Identifier: Apache-2.0
"""Optimizers of dense parameters, with learning rate and overflow flag on the device.

They call the kernels of torch.optim, but not its classes: those import `torch._dynamo`, which costs
every run 5 seconds.
"""

import abc
from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from cuda_ext import RowOptimizer
from cuda_ext.row_rules import ADAGRAD, ADAM
from recsys.errors import UserError

DenseRule = Literal["sgd", "adagrad", "adam"]


_DENSE_RULES: Mapping[RowOptimizer, DenseRule] = {
    "sgd": "sgd",
    "rowwise_adagrad": "adagrad",
    "adagrad": "adagrad",
    "adam": "adam",
}
"""Row optimizer -> dense optimizer to use with it."""


def dense_rule_beside(rule: RowOptimizer) -> DenseRule:
    """Returns the dense optimizer to use with a row optimizer.

    Raises:
        UserError: `_DENSE_RULES` names no dense optimizer for it.
    """
    if rule not in _DENSE_RULES:
        raise UserError(
            f"`optimizer` {rule}: name the optimizer that the MLPs get with it in _DENSE_RULES",
            setting="optimizer",
        )
    return _DENSE_RULES[rule]


class DenseOptimizer(abc.ABC):
    """Updates parameters with their gradients, without waiting for the device.

    Args:
        params: parameters, in the same order in every run.
        weight_decay: weight decay of every parameter.

    Attributes:
        state_tensors: number of state tensors of the size of a parameter.
    """

    state_tensors: ClassVar[int]

    def __init__(self, params: Sequence[nn.Parameter], weight_decay: float) -> None:
        self._params = params
        self._weight_decay = weight_decay

    @abc.abstractmethod
    def step(self, lr: Tensor, loss_scale: float, overflow: Tensor | None) -> None:
        """Applies the `grad` of every parameter.

        Args:
            lr: learning rate, scalar float32 tensor on the device.
            loss_scale: divisor of the gradients.
            overflow: scalar bool tensor on the device; True skips the step, None never does.
        """

    @abc.abstractmethod
    def state(self) -> dict[str, Tensor]:
        """Returns the state tensors by name; copying into them restores the state."""


class _Sgd(DenseOptimizer):
    """SGD, with torch's fused kernel."""

    state_tensors = 0

    @torch.no_grad()
    def step(self, lr: Tensor, loss_scale: float, overflow: Tensor | None) -> None:
        params, gradients = _with_gradients(self._params)
        divisor, flag = _divisor_and_flag(lr, loss_scale, overflow)
        if params:
            torch._fused_sgd_(
                params,
                gradients,
                [],
                weight_decay=self._weight_decay,
                momentum=0.0,
                lr=lr,
                dampening=0.0,
                nesterov=False,
                maximize=False,
                is_first_step=False,
                grad_scale=divisor,
                found_inf=flag,
            )

    def state(self) -> dict[str, Tensor]:
        return {}


class _AdamW(DenseOptimizer):
    """AdamW, with torch's fused kernel.

    Source: Loshchilov and Hutter 2019 (arXiv:1711.05101), algorithm 2.
    """

    state_tensors = 2

    def __init__(self, params: Sequence[nn.Parameter], weight_decay: float) -> None:
        super().__init__(params, weight_decay)
        self._moments: dict[int, dict[str, Tensor]] = {}

    @torch.no_grad()
    def step(self, lr: Tensor, loss_scale: float, overflow: Tensor | None) -> None:
        divisor, flag = _divisor_and_flag(lr, loss_scale, overflow)
        params, gradients = _with_gradients(self._params)
        if not params:
            return
        moments = [self._moments_of(i) for i, p in enumerate(self._params) if p.grad is not None]
        steps = [of_parameter["step"] for of_parameter in moments]
        torch._foreach_add_(steps, 1)
        torch._fused_adamw_(
            params,
            gradients,
            [of_parameter["exp_avg"] for of_parameter in moments],
            [of_parameter["exp_avg_sq"] for of_parameter in moments],
            [],
            steps,
            lr=lr,
            beta1=ADAM["beta1"],
            beta2=ADAM["beta2"],
            weight_decay=self._weight_decay,
            eps=ADAM["eps"],
            amsgrad=False,
            maximize=False,
            grad_scale=divisor,
            found_inf=flag,
        )
        if flag is not None:
            torch._foreach_sub_(steps, [flag] * len(steps))

    def _moments_of(self, number: int) -> dict[str, Tensor]:
        if number not in self._moments:  # at the first step: until then the parameters may move
            parameter = self._params[number]
            self._moments[number] = {
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
                "step": torch.zeros((), device=parameter.device),
            }
        return self._moments[number]

    def state(self) -> dict[str, Tensor]:
        return {
            f"{number}.{name}": tensor
            for number in range(len(self._params))
            for name, tensor in self._moments_of(number).items()
        }


def _with_gradients(params: Sequence[nn.Parameter]) -> tuple[list[Tensor], list[Tensor]]:
    """Returns the parameters that have a gradient, and their gradients."""
    pairs = [(p, p.grad) for p in params if p.grad is not None]
    return [p for p, _ in pairs], [gradient for _, gradient in pairs]


def _divisor_and_flag(
    lr: Tensor, loss_scale: float, overflow: Tensor | None
) -> tuple[Tensor | None, Tensor | None]:
    """Returns the divisor of the gradients, and the flag that skips the step."""
    if overflow is None:
        return None, None
    return torch.full_like(lr, loss_scale), overflow.to(torch.float32)


class _Adagrad(DenseOptimizer):
    """Adagrad in multi-tensor operations; torch's fused kernel does not support every device.

    Source: Duchi, Hazan and Singer 2011, with a diagonal matrix.
    """

    state_tensors = 1

    def __init__(self, params: Sequence[nn.Parameter], weight_decay: float) -> None:
        super().__init__(params, weight_decay)
        self._sums = [torch.zeros_like(p) for p in params]

    @torch.no_grad()
    def step(self, lr: Tensor, loss_scale: float, overflow: Tensor | None) -> None:
        params, gradients = _with_gradients(self._params)
        sums = [s for p, s in zip(self._params, self._sums, strict=True) if p.grad is not None]
        if overflow is not None:
            gradients = [torch.where(overflow, 0, g / loss_scale) for g in gradients]
            lr = torch.where(overflow, 0, lr)
        if self._weight_decay:
            decayed = torch._foreach_add(gradients, params, alpha=self._weight_decay)
            gradients = (
                list(decayed)
                if overflow is None
                else [torch.where(overflow, 0, g) for g in decayed]
            )
        torch._foreach_addcmul_(sums, gradients, gradients)
        roots = torch._foreach_sqrt(sums)
        torch._foreach_add_(roots, ADAGRAD["eps"])
        changes = list(torch._foreach_div(gradients, roots))
        torch._foreach_mul_(changes, -lr)
        torch._foreach_add_(params, changes)

    def state(self) -> dict[str, Tensor]:
        return {f"{i}.sum_of_squares": s for i, s in enumerate(self._sums)}


_OPTIMIZERS: Mapping[DenseRule, type[DenseOptimizer]] = {
    "sgd": _Sgd,
    "adagrad": _Adagrad,
    "adam": _AdamW,
}


def count_state_tensors(rule: DenseRule) -> int:
    """Returns how many state tensors a rule keeps for each parameter."""
    return _OPTIMIZERS[rule].state_tensors


def build_dense_optimizer(
    rule: DenseRule, params: Sequence[nn.Parameter], weight_decay: float = 0.0
) -> DenseOptimizer:
    """Builds an optimizer; the weight decay of Adam is decoupled (AdamW)."""
    return _OPTIMIZERS[rule](params, weight_decay)
