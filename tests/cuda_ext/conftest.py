# SPDX-License-Identifier: Apache-2.0
"""The implementations of the ops that the tests compare with the reference."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from cuda_ext import library
from cuda_ext.emu import build
from cuda_ext.ops.update import call_update_rows
from cuda_ext.row_rules import RowOptimizer, RowStep
from tests.tools import require


def spread(shapes: Sequence[Any], *choices: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Deals the combinations of choices out to shapes: each of both at least once."""
    combinations = list(itertools.product(*choices))

    def turned(values: Sequence[Any], i: int) -> Any:
        # One further at each round: lists of equal length would meet in the same pairs for ever.
        return values[(i + i // len(values)) % len(values)]

    count = max(len(shapes), len(combinations))
    return [(turned(shapes, i), *turned(combinations, i)) for i in range(count)]


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

    def joint_rows(
        self,
        ids: Tensor,
        offsets: Tensor,
        *,
        bag_offsets: Tensor | None = None,
        hash_indices: bool = False,
        dtype: torch.dtype = torch.int64,
    ) -> Tensor:
        """As `reference.joint_rows`."""
        return self.run("joint_rows", ids, offsets, bag_offsets, hash_indices, dtype)

    def embedding_gather(self, table: Tensor, rows: Tensor, dtype: torch.dtype) -> Tensor:
        """As `reference.embedding_gather`."""
        return self.run("embedding_gather", table, rows, None, dtype)

    def embedding_bag(
        self,
        table: Tensor,
        rows: Tensor,
        bag_offsets: Tensor,
        dtype: torch.dtype,
        *,
        scale: Tensor | None = None,
    ) -> Tensor:
        """As `reference.embedding_bag`."""
        return self.run("embedding_bag", table, rows, bag_offsets, scale, None, dtype)

    def embedding_bag_scale_backward(
        self, gradient: Tensor, table: Tensor, rows: Tensor, source: Tensor
    ) -> Tensor:
        """[L]: dot product of each lookup's row with the gradient of its bag."""
        return self.run("embedding_bag_scale_backward", gradient, table, rows, source)

    def sort_rows(self, rows: Tensor, num_table_rows: int) -> tuple[Tensor, Tensor]:
        """Rows in ascending order, and the position of each."""
        return self.run("sort_rows", rows, num_table_rows)

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
        ordered = self.sort_rows(rows, table.shape[0])
        call_update_rows(ops, optimizer, table, state, ordered, gradients, step, **lookups)


def _compiled(device: str) -> Backend:
    require("compiled cuda_ext kernels")
    return Backend(device, library.NAMESPACE, device)


@pytest.fixture(params=["cpu", "emulated", pytest.param("cuda", marks=pytest.mark.gpu)])
def backend(request: pytest.FixtureRequest) -> Backend:
    """Each implementation of the ops; `emulated` runs the CUDA kernels on the CPU."""
    if request.param == "emulated":
        require("C++ compiler")
        build.load()
        return Backend("emulated", build.NAMESPACE, "cpu")
    if request.param == "cuda":
        require("CUDA device")
    return _compiled(request.param)


@pytest.fixture
def emulated() -> Any:
    """The ops, run by the CUDA kernels in the emulator."""
    require("C++ compiler")
    build.load()
    return getattr(torch.ops, build.NAMESPACE)


@pytest.fixture
def cpu_backend() -> Backend:
    """The CPU kernels, which check rows before they read them."""
    return _compiled("cpu")


@pytest.fixture
def each_thread_count() -> Iterator[Callable[[Callable[[], Tensor]], list[Tensor]]]:
    """Runs something with one thread, one again, two and three; gives all results."""
    threads = torch.get_num_threads()

    def run(body: Callable[[], Tensor]) -> list[Tensor]:
        results = []
        for count in (1, 1, 2, 3):
            torch.set_num_threads(count)
            results.append(body())
        return results

    yield run
    torch.set_num_threads(threads)


@pytest.fixture(params=["emulated", pytest.param("cuda", marks=pytest.mark.gpu)])
def device_ops(request):
    """The ops that a GPU alone has, and the device of their tensors."""
    if request.param == "emulated":
        return request.getfixturevalue("emulated"), torch.device("cpu")
    require("CUDA device")
    return torch.ops.cuda_ext, torch.device("cuda")
