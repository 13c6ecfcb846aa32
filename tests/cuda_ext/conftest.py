# SPDX-License-Identifier: Apache-2.0
"""The implementations of the ops that the tests compare with the reference."""

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from cuda_ext import RowOptimizer, library
from cuda_ext.emu import build
from cuda_ext.ops.update import call_update_rows
from cuda_ext.row_rules import RowStep
from tests.tools import require


def spread(shapes: Sequence[Any], *choices: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Deals the combinations of choices out to shapes: each of both at least once."""
    combinations = list(itertools.product(*choices))

    def turned(values: Sequence[Any], i: int) -> Any:
        # One further at each round: lists of equal length would meet in the same pairs for ever.
        return values[(i + i // len(values)) % len(values)]

    count = max(len(shapes), len(combinations))
    return [(turned(shapes, i), *turned(combinations, i)) for i in range(count)]


def randn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    """Returns the normal numbers of a seed."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def plain_mlp(x: Tensor, layers: Sequence[tuple[Tensor, Tensor]], final_relu: bool) -> Tensor:
    """Runs linear layers and ReLU by torch's functions."""
    for number, (weight, bias) in enumerate(layers, 1):
        x = torch.nn.functional.linear(x, weight, bias)
        x = torch.relu(x) if number < len(layers) or final_relu else x
    return x


class Backend:
    """The ops of one library on one device, for tensors that lie on the CPU."""

    def __init__(self, name: str, namespace: str, device: str) -> None:
        self.name = name
        self.ops = getattr(torch.ops, namespace)
        self.device = device

    def taken(self, dtype: torch.dtype) -> torch.dtype:
        """Returns a type, or bfloat16 for float16 on a CPU, whose kernels do not take it."""
        return torch.bfloat16 if (self.name, dtype) == ("cpu", torch.float16) else dtype

    def run(self, op: str, *arguments: Any) -> Any:
        """Calls an op with its tensors on the device; its results lie on the CPU."""
        there = tree_map_only(Tensor, lambda tensor: tensor.to(self.device), list(arguments))
        found = getattr(self.ops, op)(*there)
        if self.device != "cpu":
            for here, used in zip(tree_leaves(list(arguments)), tree_leaves(there), strict=True):
                if isinstance(here, Tensor):
                    here.detach().copy_(used.detach())
        if isinstance(found, Tensor):
            return found.cpu()
        return None if found is None else tuple(tensor.cpu() for tensor in found)

    def check_order(self, body: Callable[[], Any]) -> Any:
        """Runs something with its threads in several orders; returns its only result.

        On the CPU with one thread, one again, two and three.
        """
        threads = torch.get_num_threads()
        choose, choices = {
            "cpu": (torch.set_num_threads, (1, 1, 2, 3)),
            "emulated": (build.set_seed, (7, 99, 1)),
        }.get(self.name, (lambda _: None, range(3)))
        results = []
        try:
            for choice in choices:
                choose(choice)
                results.append(body())
        finally:
            torch.set_num_threads(threads)
        for result in results[1:]:
            for value, expected in zip(tree_leaves(result), tree_leaves(results[0]), strict=True):
                assert torch.equal(value, expected)
        return results[0]

    def update_rows(
        self,
        optimizer: RowOptimizer,
        table: Tensor,
        state: dict[str, Tensor],
        rows: Tensor,
        gradients: Tensor,
        step: RowStep,
        **lookups: Tensor | None,
    ) -> None:
        """As `reference.update_rows`."""
        ops = SimpleNamespace(update_rows=partial(self.run, "update_rows"))
        ordered = self.run("sort_rows", rows, table.shape[0])
        call_update_rows(ops, optimizer, table, state, ordered, gradients, step, **lookups)


def open_backend(name: str) -> Backend:
    """Returns one of `cpu`, `cuda` and `emulated`, which runs the CUDA kernels on the CPU."""
    if name == "emulated":
        require("C++ compiler")
        build.load()
        return Backend(name, build.NAMESPACE, "cpu")
    if name == "cuda":
        require("CUDA device")
    require("compiled cuda_ext kernels")
    return Backend(name, library.NAMESPACE, name)


ON_A_GPU = pytest.param("cuda", marks=pytest.mark.gpu)


@pytest.fixture(params=["cpu", "emulated", ON_A_GPU])
def backend(request: pytest.FixtureRequest) -> Backend:
    """Each implementation of the ops."""
    return open_backend(request.param)


@pytest.fixture(params=["emulated", ON_A_GPU])
def device_backend(request: pytest.FixtureRequest) -> Backend:
    """Each implementation of the ops that a GPU alone has."""
    return open_backend(request.param)


@pytest.fixture
def emulated() -> Backend:
    """The CUDA kernels in the emulator."""
    return open_backend("emulated")


@pytest.fixture
def cpu_backend() -> Backend:
    """The CPU kernels, which check rows before they read them."""
    return open_backend("cpu")
