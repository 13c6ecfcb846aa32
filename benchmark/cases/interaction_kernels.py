# SPDX-License-Identifier: Apache-2.0
"""Dot interaction compared with PyTorch, torch.compile and TorchRec, checked in float64."""

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor

from benchmark.case import Group
from benchmark.peers.torchrec import has_torchrec, interaction_arch
from benchmark.side_by_side import (
    NUM_BATCHES,
    OURS,
    KernelSettings,
    Limits,
    check_error,
    interaction_flops,
    kernel_group,
    torchrec_columns,
)
from benchmark.stopwatch import in_turns
from cuda_ext import error_bounds, ops, reference
from recsys.settings import setting

PEER = "TorchRec"
_CHECKED = 512
"""Samples of the check."""
Interaction = Callable[[Tensor, Tensor], Tensor]


def plain_interaction(bottom: Tensor, vectors: Tensor) -> Tensor:
    """Maps [B, D] and [B, F, D] to [B, width] in PyTorch."""
    return reference.dot_interaction(torch.cat([bottom.unsqueeze(1), vectors], dim=1))


def our_interaction(bottom: Tensor, vectors: Tensor) -> Tensor:
    """Computes the same with the extension."""
    return ops.dot_interaction(vectors, bottom)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class InteractionKernels(KernelSettings):
    """The forward pass, and forward and backward passes together."""

    compile: bool = setting(True, "Measure torch.compile too (needs a C++ compiler)")

    def groups(self, folder: Path) -> Iterator[Group]:  # noqa: ARG002
        """Yields both passes at every size."""
        self.apply()
        limits = self.limits()
        for dim in self.dims:
            for batch_size in self.batch_sizes:
                yield from self._groups(dim, batch_size, limits)

    def _groups(self, dim: int, batch_size: int, limits: Limits) -> Iterator[Group]:
        generator = torch.Generator().manual_seed(2)
        shape = batch_size, self.tables, dim
        bottoms, vectors = (
            [torch.randn(of, generator=generator).to(self.on) for _ in range(NUM_BATCHES)]
            for of in ((batch_size, dim), shape)
        )
        implementations = self._implementations()
        _check(bottoms[0][:_CHECKED], vectors[0][:_CHECKED], implementations)
        num_vectors = self.tables + 1
        width = reference.interaction_width(num_vectors, dim)
        inputs, outputs = (4.0 * batch_size * columns for columns in (num_vectors * dim, width))
        flops = interaction_flops(batch_size, num_vectors, dim)
        pairs = list(zip(bottoms, vectors, strict=True))
        forward, both = (
            {name: in_turns(made(function), pairs) for name, function in implementations.items()}
            for made in (torch.no_grad(), _with_backward)
        )
        sizes = f"D={dim}, B={batch_size:,}"
        moved = inputs + outputs
        yield kernel_group(
            f"forward, {sizes}", forward, limits, peer=PEER, num_bytes=moved, flops=flops
        )
        for tensor in (*bottoms, *vectors):
            tensor.requires_grad_()
        row, moved = f"forward + backward, {sizes}", 3 * inputs + 2 * outputs
        yield kernel_group(row, both, limits, peer=PEER, num_bytes=moved, flops=3 * flops)

    def _implementations(self) -> dict[str, Interaction]:
        made: dict[str, Interaction] = {OURS: our_interaction, "PyTorch": plain_interaction}
        if self.compile:
            torch._dynamo.reset()
            made["torch.compile"] = torch.compile(plain_interaction, dynamic=False)
        if has_torchrec() and self.device == "cpu":
            made[PEER] = interaction_arch(self.tables)
        return made


def _with_backward(function: Interaction) -> Callable[..., object]:
    gradients: dict[torch.Size, Tensor] = {}

    def run(*inputs: Tensor) -> object:
        result = function(*inputs)
        gradient = gradients.setdefault(result.shape, torch.ones_like(result))
        return torch.autograd.grad(result, inputs, gradient)

    return run


def _check(bottom: Tensor, vectors: Tensor, implementations: dict[str, Interaction]) -> None:
    """Compares values and gradients of every implementation with float64."""
    dim, num_vectors = bottom.shape[1], vectors.shape[1] + 1
    order = torchrec_columns(dim, num_vectors)
    generator = torch.Generator().manual_seed(3)
    width = reference.interaction_width(num_vectors, dim)
    gradient = torch.randn(bottom.shape[0], width, generator=generator).to(bottom.device)
    gradient[:, order.numel() :] = 0  # Only ours pads its output.
    bounds = error_bounds.dot_interaction(vectors.detach(), bottom.detach(), gradient)
    for name, function in implementations.items():
        inputs = [tensor.detach().requires_grad_() for tensor in (vectors, bottom)]
        output = function(inputs[1], inputs[0])
        upstream = gradient[:, order] if name == PEER else gradient
        gradients = torch.autograd.grad(output, inputs, upstream)
        check_error(
            f"interaction, {name}, output",
            output.detach() if name == PEER else output.detach()[:, order],
            bounds[0][:, order],
        )
        check_error(f"interaction, {name}, gradient of vectors", gradients[0], bounds[1])
        check_error(f"interaction, {name}, gradient of bottom", gradients[1], bounds[2])


CASE = InteractionKernels
