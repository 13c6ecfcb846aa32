# SPDX-License-Identifier: Apache-2.0
"""Optimizers of dense parameters, with rate and overflow flag on the device."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Literal, Protocol

import torch
from torch import Tensor, nn

from cuda_ext.row_rules import ADAGRAD, ADAM, RowOptimizer
from recsys.errors import UserError

DenseRule = Literal["sgd", "adagrad", "adam"]


_BESIDE: Mapping[RowOptimizer, DenseRule] = {
    "sgd": "sgd",
    "rowwise_adagrad": "adagrad",
    "adagrad": "adagrad",
    "adam": "adam",
}
"""The dense optimizer that goes with each row optimizer."""


def dense_rule_beside(rule: RowOptimizer) -> DenseRule:
    """Returns the dense optimizer that belongs to a row optimizer.

    Raises:
        UserError: there is none.
    """
    if rule not in _BESIDE:
        raise UserError(f"`optimizer` {rule} is for embeddings only: name `mlp_optimizer` too")
    return _BESIDE[rule]


class DenseOptimizer(Protocol):
    """Updates parameters by their gradients, without waiting for the device."""

    def step(self, lr: Tensor, loss_scale: float, overflow: Tensor | None) -> None:
        """Applies `grad` of every parameter.

        Args:
            lr: learning rate, a scalar float32 tensor on the device.
            loss_scale: divisor of the gradients.
            overflow: scalar bool tensor; True skips the step.
        """
        ...

    def state(self) -> dict[str, Tensor]:
        """Returns the state by name; copying into the tensors restores it."""
        ...


@dataclasses.dataclass(frozen=True, slots=True)
class Rates:
    """Rates of a group of parameters.

    Attributes:
        weight_decay: weight decay of each.
        lr_factor: factor of the learning rate.
    """

    weight_decay: float = 0.0
    lr_factor: float = 1.0


class _Fused:
    """torch.optim's fused kernels, which read their scalars on the device."""

    def __init__(
        self, optimizer: torch.optim.SGD | torch.optim.AdamW, params: Sequence[nn.Parameter]
    ) -> None:
        self._optimizer = optimizer
        self._params = params

    def step(self, lr: Tensor, loss_scale: float, overflow: Tensor | None) -> None:
        for group in self._optimizer.param_groups:
            factor = group.get("lr_factor", 1.0)
            group["lr"] = lr if factor == 1.0 else lr * factor
        if overflow is not None:
            # The two attributes that torch.amp.GradScaler sets for fused optimizers.
            self._optimizer.grad_scale = torch.full_like(lr, loss_scale)  # type: ignore[union-attr]
            self._optimizer.found_inf = overflow.to(torch.float32)  # type: ignore[union-attr]
        self._optimizer.step()

    def state(self) -> dict[str, Tensor]:
        if isinstance(self._optimizer, torch.optim.SGD):
            return {}
        tensors: dict[str, Tensor] = {}
        for i, p in enumerate(self._params):
            moments = self._optimizer.state[p]
            if not moments:  # torch makes none before the first step
                moments["step"] = torch.zeros((), device=p.device)
                moments["exp_avg"] = torch.zeros_like(p, memory_format=torch.preserve_format)
                moments["exp_avg_sq"] = torch.zeros_like(p, memory_format=torch.preserve_format)
            tensors |= {f"{i}.{name}": moments[name] for name in sorted(moments)}
        return tensors


class _Adagrad:
    """Adagrad in multi-tensor operations; torch's fused kernel lacks some devices.

    Source: Duchi, Hazan and Singer 2011, with a diagonal matrix.
    """

    def __init__(self, params: Sequence[nn.Parameter], weight_decay: float) -> None:
        self._params = params
        self._weight_decay = weight_decay
        self._sums = [torch.zeros_like(p) for p in params]

    @torch.no_grad()
    def step(self, lr: Tensor, loss_scale: float, overflow: Tensor | None) -> None:
        pairs = [
            (p, s) for p, s in zip(self._params, self._sums, strict=True) if p.grad is not None
        ]
        params: list[Tensor] = [p for p, _ in pairs]
        sums = [s for _, s in pairs]
        gradients = [p.grad for p in params if p.grad is not None]
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


def build_dense_optimizer(
    rule: DenseRule, params: Sequence[nn.Parameter], weight_decay: float = 0.0
) -> DenseOptimizer:
    """Builds an optimizer; Adam's weight decay is decoupled (AdamW).

    Args:
        rule: update rule.
        params: parameters, in the same order in every run.
        weight_decay: weight decay of every parameter.
    """
    if rule == "adagrad":
        return _Adagrad(params, weight_decay)
    if rule == "sgd":
        sgd = torch.optim.SGD(params, lr=0.0, weight_decay=weight_decay, fused=True)
        return _Fused(sgd, params)
    return build_adamw(params, [Rates(weight_decay)] * len(params))


def build_adamw(params: Sequence[nn.Parameter], rates: Sequence[Rates]) -> DenseOptimizer:
    """Builds AdamW with rates for each parameter.

    Args:
        params: parameters, in the same order in every run; their state is named by it.
        rates: rates of each.
    """
    groups: dict[Rates, list[nn.Parameter]] = {}
    for parameter, of_parameter in zip(params, rates, strict=True):
        groups.setdefault(of_parameter, []).append(parameter)
    adam = torch.optim.AdamW(
        [{"params": group, **dataclasses.asdict(key)} for key, group in groups.items()],
        lr=0.0,
        eps=ADAM["eps"],
        fused=True,
        capturable=params[0].is_cuda,  # or torch refuses to capture the step in a CUDA graph
    )
    return _Fused(adam, params)
