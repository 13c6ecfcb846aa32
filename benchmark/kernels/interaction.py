# SPDX-License-Identifier: Apache-2.0
"""Dot interaction, compared with PyTorch, torch.compile and TorchRec."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from benchmark.kernels.case import (
    NUM_BATCHES,
    OURS,
    KernelCase,
    Rotation,
    upper_triangle_columns,
)
from benchmark.kernels.check import check_error
from benchmark.kernels.stopwatch import Work
from benchmark.peers.torchrec_interaction import has_torchrec, interaction_arch
from cuda_ext import error_bounds, ops, reference

PEER = "TorchRec"
Interaction = Callable[[Tensor, Tensor], Tensor]


def plain_interaction(bottom: Tensor, vectors: Tensor) -> Tensor:
    """Maps [B, D] and [B, F, D] to [B, width] in PyTorch."""
    return reference.dot_interaction(torch.cat([bottom.unsqueeze(1), vectors], dim=1))


def our_interaction(bottom: Tensor, vectors: Tensor) -> Tensor:
    """Computes the same with the extension."""
    return ops.dot_interaction(vectors, bottom)


def interaction_flops(batch: int, num_vectors: int, dim: int) -> float:
    """Returns the FLOPs of the forward pass; backward needs twice as many."""
    return float(batch * num_vectors * (num_vectors - 1) * dim)


def interaction_cases(
    dim: int, batch_size: int, num_tables: int, *, compiled: bool
) -> Iterator[KernelCase]:
    """Yields the cases `forward` and `forward + backward`, checked in float64.

    Args:
        dim: D.
        batch_size: B.
        num_tables: F.
        compiled: measure torch.compile too.
    """
    generator = torch.Generator().manual_seed(2)
    bottoms = [torch.randn(batch_size, dim, generator=generator) for _ in range(NUM_BATCHES)]
    vectors = [
        torch.randn(batch_size, num_tables, dim, generator=generator) for _ in range(NUM_BATCHES)
    ]
    implementations: dict[str, Interaction] = {OURS: our_interaction, "PyTorch": plain_interaction}
    if compiled:
        torch._dynamo.reset()
        implementations["torch.compile"] = torch.compile(plain_interaction, dynamic=False)
    if has_torchrec():
        implementations[PEER] = interaction_arch(num_tables)
    num_vectors = num_tables + 1
    _check(bottoms[0], vectors[0], implementations)

    width = reference.interaction_width(num_vectors, dim)
    inputs, outputs = (4.0 * batch_size * columns for columns in (num_vectors * dim, width))
    flops = interaction_flops(batch_size, num_vectors, dim)
    sizes = f"D={dim}, B={batch_size:,}"
    forward: dict[str, Work] = {}
    both: dict[str, Work] = {}
    for name, function in implementations.items():
        pairs = Rotation(list(zip(bottoms, vectors, strict=True)))
        forward[name] = _forward(function, pairs)
        both[name] = _forward_backward(function, pairs)
    peer = PEER if has_torchrec() else None
    yield KernelCase(
        name=f"forward, {sizes}",
        candidates=forward,
        peer=peer,
        num_bytes=inputs + outputs,
        flops=flops,
    )
    for tensor in (*bottoms, *vectors):
        tensor.requires_grad_()
    yield KernelCase(
        name=f"forward + backward, {sizes}",
        candidates=both,
        peer=peer,
        num_bytes=3 * inputs + 2 * outputs,
        flops=3 * flops,
    )


def _forward(function: Interaction, pairs: Rotation[tuple[Tensor, Tensor]]) -> Work:
    def run() -> Tensor:
        with torch.no_grad():
            return function(*pairs())

    return run


def _forward_backward(function: Interaction, pairs: Rotation[tuple[Tensor, Tensor]]) -> Work:
    gradients: dict[torch.Size, Tensor] = {}

    def run() -> object:
        inputs = pairs()
        result = function(*inputs)
        gradient = gradients.setdefault(result.shape, torch.ones_like(result))
        return torch.autograd.grad(result, inputs, gradient)

    return run


def _check(bottom: Tensor, vectors: Tensor, implementations: dict[str, Interaction]) -> None:
    """Compares values and gradients of every implementation with float64."""
    dim, num_vectors = bottom.shape[1], vectors.shape[1] + 1
    columns = upper_triangle_columns(num_vectors)
    order = torch.cat([torch.arange(dim), dim + columns])  # TorchRec's columns among ours
    generator = torch.Generator().manual_seed(3)
    width = reference.interaction_width(num_vectors, dim)
    gradient = torch.randn(bottom.shape[0], width, generator=generator)
    gradient[:, order.numel() :] = 0  # Padding is no output of the others.
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
