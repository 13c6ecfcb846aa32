# SPDX-License-Identifier: Apache-2.0
"""Small cases of every family of kernels, checked against float64.

A case yields its name and its largest error relative to what rounding can make: 1 or less is right,
0 where the result must be exact and is.
"""

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from cuda_ext import error_bounds, ops, reference
from cuda_ext.error_bounds import Bounded
from cuda_ext.ops.registration import kernels
from cuda_ext.row_rules import ROW_RULES, RowStep

Case = tuple[str, float]

FLOATS = (torch.float32, torch.float16, torch.bfloat16)
INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64)
TABLES = (torch.float32, torch.bfloat16)

_SIZES = (3, 100, 40_000, 1, 17, 120)
_BATCH = 300
_DIMS = (128, 16, 17)
"""Columns: rows of whole vectors, short ones, and those that are not aligned."""


def check_lookup(device: torch.device) -> Iterator[Case]:
    """Checks `stack_ids`, `joint_rows`, `embedding_gather` and `embedding_bag`."""
    offsets = _offsets(_SIZES)
    ids = _integers(_SIZES)
    columns = ids.t().contiguous()
    groups = [columns[i::2].to(dtype) for i, dtype in enumerate((torch.int32, torch.int64))]
    order = [*range(len(_SIZES))[::2], *range(len(_SIZES))[1::2]]
    stacked = ops.stack_ids([group.to(device) for group in groups], order)
    yield "stack_ids", _exact(stacked, ids)
    for dtype in INTEGERS:
        sizes = [min(size, torch.iinfo(dtype).max) for size in _SIZES]
        given, starts = _integers(sizes).to(dtype), _offsets(sizes)
        rows = ops.joint_rows(given.to(device), starts.to(device), dtype=torch.int32)
        name = str(dtype).removeprefix("torch.")
        yield f"joint_rows, {name}", _exact(rows, reference.joint_rows(given, starts))
    rows = reference.joint_rows(ids, offsets, dtype=torch.int32)
    bags = torch.arange(0, rows.numel() + 1, 6)
    scale = _random(rows.numel(), seed=3)
    for table_dtype, dtype, dim in itertools.product(TABLES, _floats(device), _DIMS):
        table = _random(int(offsets[-1]), dim).to(table_dtype)
        name = f"{_name(table_dtype)} to {_name(dtype)}, D={dim}"
        gathered = ops.embedding_gather(table.to(device), rows.to(device), dtype)
        yield f"embedding_gather, {name}", _exact(gathered, table[rows.long()].to(dtype))
        summed = ops.embedding_bag(
            table.to(device), rows.reshape(-1).to(device), bags.to(device), dtype,
            scale=scale.to(device),
        )  # fmt: skip
        bound = error_bounds.embedding_bag(table, rows.reshape(-1), bags, dtype, scale=scale)
        yield f"embedding_bag, {name}", bound.excess(summed.cpu())


def check_interaction(device: torch.device) -> Iterator[Case]:
    """Checks `dot_interaction` and `gather_dot_interaction`, forward and backward."""
    for dtype, dim, vectors in itertools.product(_floats(device), _DIMS, (7, 27, 40)):
        table = _random(1000, dim)
        rows = torch.randint(1000, (_BATCH, vectors - 1), generator=_generator(vectors))
        features = table[rows].to(dtype)
        bottom = _random(_BATCH, dim, seed=1).to(dtype)
        width = reference.interaction_width(vectors, dim)
        gradient = _random(_BATCH, width, seed=2).to(dtype)
        bounds = error_bounds.dot_interaction(features, bottom, gradient)
        name = f"{_name(dtype)}, N={vectors}, D={dim}"

        given = [t.to(device).requires_grad_() for t in (features, bottom)]
        output = ops.dot_interaction(*given)
        results = [output, *torch.autograd.grad(output, given, gradient.to(device))]
        yield f"dot_interaction, {name}", _largest(bounds, results)

        anchor = ops.row_gradient_anchor(features.shape, dtype, device)
        first = bottom.to(device).requires_grad_()
        output = ops.gather_dot_interaction(table.to(device), rows.to(device), first, anchor=anchor)
        torch.autograd.backward(output, gradient.to(device))
        results = [output, anchor.grad, first.grad]  # type: ignore[list-item]
        yield f"gather_dot_interaction, {name}", _largest(bounds, results)


def check_update(device: torch.device) -> Iterator[Case]:
    """Checks `sort_rows`, and `update_rows` with every rule and storage."""
    num_rows, lookups = 500, 4000
    # The first row has a third of the lookups: it reaches over many chunks.
    rows = (torch.rand(lookups, generator=_generator(4)) ** 3 * num_rows).to(torch.int32)
    ascending, positions = ops.sort_rows(rows.to(device), num_rows)
    expected, order = rows.sort(stable=True)
    yield "sort_rows", max(_exact(ascending, expected), _exact(positions, order))
    storages = ("float32", "bfloat16")
    for rule, storage, dtype, dim in itertools.product(ROW_RULES, storages, _floats(device), _DIMS):
        weights = _random(num_rows, dim)
        weights = weights.bfloat16().float() if storage == "bfloat16" else weights
        state = ops.row_optimizer_state(rule, weights)
        for seed, tensor in enumerate(state.values()):
            tensor.copy_(_random(*tensor.shape, seed=seed).square())
        gradients = _random(lookups, dim, seed=5).to(dtype)
        bound, of_state = error_bounds.updated(
            rule,
            Bounded.exact(weights),
            {name: Bounded.exact(tensor) for name, tensor in state.items()},
            rows,
            Bounded.exact(gradients),
            lr=0.25,
            step=3.0,
        )
        bound = bound.rounded_either_way(torch.bfloat16) if storage == "bfloat16" else bound
        table = weights.to(device, getattr(torch, storage))
        there = {name: tensor.to(device) for name, tensor in state.items()}
        step = _step(0.25, 3.0, device)
        ops.update_rows(rule, table, there, rows.to(device), gradients.to(device), step)
        excess = [bound.excess(table.float().cpu())]
        excess += [of_state[name].excess(tensor.cpu()) for name, tensor in there.items()]
        yield f"update_rows, {rule}, {storage}, {_name(dtype)}, D={dim}", max(excess)


def check_linear(device: torch.device) -> Iterator[Case]:
    """Checks `linear` with bias and ReLU, forward and backward."""
    for dtype, (inputs, outputs) in itertools.product(FLOATS, ((13, 512), (480, 256), (64, 1))):
        x, weight = _random(_BATCH, inputs).to(dtype), _random(outputs, inputs, seed=1).to(dtype)
        # Positive and negative sums by their bias, far from zero: rounding changes no ReLU.
        bias = 100 * torch.where(torch.arange(outputs) % 2 == 0, 1.0, -1.0).to(dtype)
        gradient = _random(_BATCH, outputs, seed=2).to(dtype)
        given = [t.to(device).requires_grad_() for t in (x, weight, bias)]
        if ops.takes_perceptron(given[0]):
            output = ops.perceptron(given[0], [(given[1], given[2])], final_relu=True)
        else:
            output = ops.linear(*given, relu=True)
        results = [output, *torch.autograd.grad(output, given, gradient.to(device))]
        bounds = _linear_bounds(x, weight, bias, gradient)
        yield f"linear, {_name(dtype)}, {inputs} to {outputs}", _largest(bounds, results)
    if ops.takes_perceptron(torch.empty(1, 1, device=device)):
        yield from output_layer_cases(kernels, device)


def output_layer_cases(ops: Any, device: torch.device) -> Iterator[Case]:
    """Checks the output layer and the loss of a library's ops.

    Args:
        ops: with `output_layer`, `output_layer_backward` and `cross_entropy`.
        device: of the tensors.
    """
    for dtype, inputs in itertools.product(FLOATS, (13, 256)):
        x, weight = _random(_BATCH, inputs).relu().to(dtype), _random(1, inputs, seed=1).to(dtype)
        bias, gradient = _random(1, seed=2).to(dtype), _random(_BATCH, 1, seed=3)
        there = [tensor.to(device) for tensor in (x, weight, bias, gradient)]
        output = ops.output_layer(*there[:3])
        delta, sums = ops.output_layer_backward(there[3], *there[:2], True)
        values, magnitudes = (
            _output_layer(*(kind(tensor.double()) for tensor in (x, weight, bias, gradient)))
            for kind in (torch.Tensor.clone, torch.abs)
        )
        terms = (inputs + 1, 1, _BATCH + 1)
        results = [output, delta, sums]
        bounds = [
            error_bounds.sum_of_products(value, magnitude, count, result.dtype)
            for value, magnitude, count, result in zip(
                values, magnitudes, terms, results, strict=True
            )
        ]
        name = f"output layer, {_name(dtype)}, {inputs} to 1"
        yield name, _largest(bounds, results)
    logits, labels = _random(_BATCH), (_random(_BATCH, seed=1) > 0).float()
    loss, gradient = ops.cross_entropy(logits.to(device), labels.to(device), 1.0)
    exact, of_logits = reference.cross_entropy(logits.double(), labels.double(), 1.0)
    bounds = [
        error_bounds.sum_of_products(value, scale, 2 * terms, torch.float32)
        for value, scale, terms in ((exact, exact, _BATCH), (of_logits, 1 + of_logits.abs(), 4))
    ]
    yield "cross entropy", _largest(bounds, [loss, gradient])


def _output_layer(
    x: Tensor, weight: Tensor, bias: Tensor, gradient: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Computes the output of the layer, and its gradients behind a ReLU."""
    delta, sums = reference.output_layer_backward(gradient, x, weight, True)
    return reference.output_layer(x, weight, bias), delta, sums


def check_epilogues(device: torch.device) -> Iterator[Case]:
    """Checks products that apply a ReLU and its gradient; none without cuBLASLt."""
    if device.type != "cuda" or not ops.has_relu_products():
        return
    sizes = ((300, 64, 256, 64), (1000, 480, 1024, 512), (64, 16, 512, 256))
    for dtype, (rows, inputs, columns, outputs) in itertools.product(FLOATS, sizes):
        x, weight = _random(rows, inputs).to(dtype), _random(columns, inputs, seed=1).to(dtype)
        bias = 100 * torch.where(torch.arange(columns) % 2 == 0, 1.0, -1.0).to(dtype)
        gradient = _random(rows, outputs, seed=2).to(dtype)
        after = _random(outputs, columns, seed=3).to(dtype)
        output, mask = kernels.linear_relu(*(t.to(device) for t in (x, weight, bias)), False)
        name = f"{_name(dtype)}, {rows} x {inputs} to {columns}"
        if not len(output):
            yield f"linear_relu has no product, {name}", math.inf
            continue
        yield (
            f"linear_relu, {name}",
            _linear_bounds(x, weight, bias, torch.zeros_like(output.cpu()))[0].excess(output.cpu()),
        )
        positive = (output.cpu() > 0).double()
        delta, sums = kernels.linear_relu_backward(
            gradient.to(device), after.to(device), mask, False
        )
        values, magnitudes = (
            (kind(gradient.double()) @ kind(after.double())) * positive
            for kind in (torch.Tensor.clone, torch.abs)
        )
        bound = error_bounds.sum_of_products(values, magnitudes, outputs, dtype)
        # The library adds what it has rounded.
        of_sums = bound.sum(0).rounded(dtype).reshape(columns)
        yield f"linear_relu_backward, {name}", _largest([bound, of_sums], [delta, sums])


def _linear_bounds(x: Tensor, weight: Tensor, bias: Tensor, gradient: Tensor) -> list[Bounded]:
    """Bounds a linear layer with ReLU and its gradients."""

    def run(*tensors: Tensor) -> list[Tensor]:
        given, weights, added, upstream = (tensor.double() for tensor in tensors)
        sums = given @ weights.t() + added
        delta = upstream * positive
        return [sums * positive, delta @ weights, delta.t() @ given, delta.sum(0)]

    positive = (x.double() @ weight.double().t() + bias.double() > 0).double()
    values = run(x, weight, bias, gradient)
    magnitudes = run(x.abs(), weight.abs(), bias.abs(), gradient.abs())
    terms = (x.shape[1] + 1, weight.shape[0], len(x), len(x))
    return [
        error_bounds.sum_of_products(*sums, x.dtype)
        for sums in zip(values, magnitudes, terms, strict=True)
    ]


def check_graph(device: torch.device) -> Iterator[Case]:
    """Checks an update in a captured graph against an eager one.

    On a CPU there is nothing to capture.
    """
    if device.type != "cuda":
        return
    rows = torch.randint(100, (1000,), generator=_generator(6)).to(device)
    gradients = _random(1000, 16).to(device)
    step = _step(1.0, 1.0, device)
    eager = _random(100, 16, seed=1).to(device)
    captured = eager.clone()
    for _ in range(2):
        ops.update_rows("sgd", eager, {}, rows, gradients, step)
    ops.update_rows("sgd", captured.clone(), {}, rows, gradients, step)  # loads the kernels
    torch.cuda.synchronize(device)
    graph = torch.cuda.CUDAGraph()
    side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        current = torch.cuda.current_stream(device)
        side.wait_stream(current)
        with torch.cuda.stream(side):
            ordered = ops.sort_rows(rows, 100)
        current.wait_stream(side)
        ops.update_rows("sgd", captured, {}, rows, gradients, step, sorted_rows=ordered)
    graph.replay()
    graph.replay()
    yield "update_rows in a graph", _exact(captured, eager)


FAMILIES: dict[str, Callable[[torch.device], Iterator[Case]]] = {
    "lookup": check_lookup,
    "interaction": check_interaction,
    "update": check_update,
    "linear": check_linear,
    "epilogues": check_epilogues,
    "graph": check_graph,
}
"""Each family of kernels, and its cases on a device."""


def _floats(device: torch.device) -> tuple[torch.dtype, ...]:
    """Returns the types that kernels take; float16 is for GPUs."""
    return FLOATS if device.type == "cuda" else (torch.float32, torch.bfloat16)


def _step(lr: float, number: float, device: torch.device) -> RowStep:
    return RowStep(torch.full((), lr, device=device), torch.full((), number, device=device))


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=_generator(seed))


def _offsets(sizes: tuple[int, ...] | list[int]) -> Tensor:
    return torch.tensor([0, *itertools.accumulate(sizes)])


def _integers(sizes: tuple[int, ...] | list[int]) -> Tensor:
    """Returns ids [B, F], each within its size."""
    drawn = torch.randint(10**9, (_BATCH, len(sizes)), generator=_generator(7))
    return drawn % torch.tensor(sizes)


def _exact(result: Tensor, expected: Tensor) -> float:
    result, expected = result.cpu(), expected.cpu()
    return 0.0 if torch.equal(result, expected.to(result.dtype)) else math.inf


def _largest(bounds: tuple[Bounded, ...] | list[Bounded], results: list[Tensor]) -> float:
    pairs = zip(bounds, results, strict=True)
    return max(bound.excess(result.detach().cpu()) for bound, result in pairs)
