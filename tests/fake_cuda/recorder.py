# SPDX-License-Identifier: Apache-2.0
"""Records what a program asks of the fake device: kernels and bytes, op by op."""

import dataclasses
import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch._guards import detect_fake_mode
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from tests.fake_cuda.device import Capture, PinnedMemory, Stream

REPOSITORY = Path(__file__).resolve().parents[2]

_NO_KERNEL = {
    *("aten::detach", "aten::alias", "aten::empty", "aten::empty_like", "aten::empty_strided"),
    *("aten::new_empty", "aten::new_empty_strided", "aten::_unsafe_view", "aten::lift_fresh"),
    *("aten::_pin_memory", "aten::set_", "aten::is_pinned"),
}
"""Ops besides views that launch nothing."""

_KERNELS: dict[str, Callable[[Sequence[Tensor]], int]] = {
    # Blocks, then their sums.
    "cuda_ext::relu_backward": lambda _: 2,
    "cuda_ext::output_layer_backward": lambda _: 2,
    "cuda_ext::cross_entropy": lambda _: 2,
    # Keys, histogram, sums, and a pass for each 8 bits of a row number.
    "cuda_ext::sort_rows": lambda _: 7,
    "cuda_ext::update_rows": lambda _: 2,  # chunks, then rows that cross them
    "aten::binary_cross_entropy_with_logits": lambda _: 7,
    # Tensors of one type are one launch for the blocks and one for the sums, of several a few each.
    "aten::_foreach_norm": lambda tensors: 2 if _one_type(tensors) else 2 * len(tensors),
}
"""Op -> kernels that it launches, where that is not one."""

_COLLECTIVES = {
    "c10d::allreduce_": "tensors",
    "c10d::broadcast_": "tensors",
    "c10d::alltoall_base_": "output",
}
"""Collective -> its parameter that is written; its schema does not say so."""

_COPIES = {"aten::_to_copy", "aten::copy_"}


def _one_type(tensors: Sequence[Tensor]) -> bool:
    return len({t.dtype for t in tensors}) == 1


@dataclasses.dataclass(frozen=True, slots=True)
class Kernels:
    """The kernels of one op on one kind of stream.

    Attributes:
        op: its name, with namespace.
        is_beside: on another stream than that of the step.
        kernels: launches.
        num_bytes: read and written by all of them, as if every lookup had its own row of a table.
    """

    op: str
    is_beside: bool
    kernels: int
    num_bytes: int


class DeviceWaitError(AssertionError):
    """The host would wait for the device, or an op races or cannot be captured in a graph."""


class Recorder(TorchDispatchMode):
    """Records the kernels of every op on CUDA tensors, and refuses what makes the host wait.

    It refuses too what races: an op on a stream that has not waited for the op of another stream
    which wrote its input or used its output. Memory that is freed goes to what its stream makes
    next: refused too, where another stream may still use it then.

    Attributes:
        allocated_bytes: of all tensors made on the device, freed ones too.
    """

    def __init__(self) -> None:
        super().__init__()
        self.allocated_bytes = 0
        self._counts: dict[tuple[str, bool], list[int]] = {}
        self._default = Stream.current
        self._writes: dict[int, tuple[int, int]] = {}
        self._uses: dict[int, dict[int, tuple[int, int]]] = {}
        self._freed: dict[int, list[tuple[str, list[tuple[int, int]]]]] = {}

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: Any = (),
        kwargs: Any = None,
    ) -> Any:
        """Runs an op and records it."""
        args, kwargs = _pytree.tree_map_only(Tensor, _fake, (args, kwargs or {}))
        name = func._schema.name
        parameters = [parameter.name for parameter in func._schema.arguments]
        arguments = dict(zip(parameters, args, strict=False)) | kwargs
        given = _tensors(arguments)
        Capture.check_generator(arguments.get("generator"))
        try:
            result = func(*args, **kwargs)
        except torch._subclasses.fake_tensor.DynamicOutputShapeException as error:
            raise DeviceWaitError(f"{name}: a shape that depends on data, {_caller()}") from error
        except torch._subclasses.fake_tensor.DataDependentOutputException as error:
            raise DeviceWaitError(f"{name}: the host reads a result, {_caller()}") from error
        made = _tensors(result)
        if _is_view(func) and hasattr(given[0], "pinned_address"):
            made[0].is_in_pinned_memory = True  # type: ignore[attr-defined]
            made[0].pinned_address = given[0].pinned_address  # type: ignore[attr-defined]
        if func.namespace == "c10d" and (name not in _COLLECTIVES or not given[0].is_cuda):
            raise DeviceWaitError(f"{name}: the host waits for the other ranks, {_caller()}")
        if any(t.is_cuda for t in (*given, *made)):
            _check_devices(name, given, made, arguments)
            if func.namespace != "prim" and not _is_view(func):
                fresh = [t for t in made if t.is_cuda and not _is_among(t, given)]
                self.allocated_bytes += sum(map(_stored_bytes, fresh))
                on_device = [t for t in given if t.is_cuda]
                self._check_order(name, on_device, _written(func, arguments), fresh)
                for tensor in given if name in _COPIES else ():
                    self._note_copy(tensor)
                if name not in _NO_KERNEL:
                    self._count(func, arguments, made)
        return result

    def _count(self, func: Any, arguments: Mapping[str, Any], made: Sequence[Tensor]) -> None:
        name, given = func._schema.name, _tensors(arguments)
        counts = self._counts.setdefault((name, Stream.current is not self._default), [0, 0])
        counts[0] += _KERNELS.get(name, lambda _: 1)(given)
        counts[1] += _moved_bytes(name, given, _written(func, arguments), made)

    def _check_order(
        self, name: str, given: Sequence[Tensor], written: Sequence[Tensor], fresh: Sequence[Tensor]
    ) -> None:
        """Refuses an op that another stream's op may overlap, on memory that either writes."""
        stream = Stream.current
        op = stream.begin_op()
        for freed, uses in self._freed.pop(stream.number, []) if fresh else []:
            if not all(map(stream.has_seen, uses)):
                raise DeviceWaitError(
                    f"{name}: may get the memory of the {freed}, still in use on another stream, "
                    f"for which this one has not waited, {_caller()}"
                )
        for tensor in fresh:
            self._uses[_memory(tensor)] = {}
            self._writes[_memory(tensor)] = op
            result = f"{list(tensor.shape)} {tensor.dtype} of {name}"
            weakref.finalize(
                tensor.untyped_storage(), self._free, _memory(tensor), stream, result
            ).atexit = False
        for tensor in given:
            memory = _memory(tensor)
            before = [self._writes.get(memory, op)]
            if _is_among(tensor, written):
                before += self._uses.get(memory, {}).values()
                self._writes[memory] = op
            if not all(map(stream.has_seen, before)):
                raise DeviceWaitError(
                    f"{name}: {list(tensor.shape)} {tensor.dtype} is still in use on another "
                    f"stream, for which this one has not waited, {_caller()}"
                )
            self._uses.setdefault(memory, {})[stream.number] = op

    def _note_copy(self, tensor: Tensor) -> None:
        address = getattr(tensor, "pinned_address", None)
        if address is not None:
            PinnedMemory.copies.setdefault(address, []).append(Stream.current.last_op())

    def _free(self, memory: int, stream: Stream, result: str) -> None:
        uses = list(self._uses.pop(memory, {}).values())
        if memory in Stream.recorded:
            Stream.recorded.discard(memory)
        else:
            self._freed.setdefault(stream.number, []).append((result, uses))

    def kernels(self) -> list[Kernels]:
        """Returns the records, in the order of their first occurrence."""
        return [Kernels(*key, *totals) for key, totals in self._counts.items()]


def _fake(tensor: Tensor) -> Any:
    """Returns a tensor that another thread made as a fake one: modes are of one thread alone."""
    if isinstance(tensor, FakeTensor) or not tensor.ndim:
        return tensor
    with _disable_current_modes():
        whole = tensor.clone()  # a slice cannot be made a fake one
    fake: Any = detect_fake_mode().from_tensor(whole)  # type: ignore[union-attr]
    address = tensor.untyped_storage().data_ptr()
    if address in PinnedMemory.allocated:
        fake.is_in_pinned_memory, fake.pinned_address = True, address
    return fake


def _check_devices(
    name: str, given: Sequence[Tensor], made: Sequence[Tensor], options: Mapping[str, Any]
) -> None:
    """Refuses an op on the device that takes or makes tensors of the host.

    Legal are a number, which is an argument of the kernel, and a queued copy of pinned memory.
    """
    host = [t for t in (*given, *made) if not t.is_cuda]
    if name in _COPIES:
        is_queued = options.get("non_blocking", False)
        host = [t for t in host if not (is_queued and getattr(t, "is_in_pinned_memory", False))]
    else:
        host = [t for t in host if t.ndim]
    if host:
        shapes = ", ".join(f"{list(t.shape)} {t.dtype}" for t in host)
        raise DeviceWaitError(f"{name}: tensors of the host, {shapes}, {_caller()}")


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _written(func: Any, arguments: Mapping[str, Any]) -> list[Tensor]:
    collective = _COLLECTIVES.get(func._schema.name)
    return [
        tensor
        for parameter in func._schema.arguments
        if parameter.name == collective
        or (parameter.alias_info is not None and parameter.alias_info.is_write)
        for tensor in _tensors(arguments.get(parameter.name))
    ]


def _is_view(func: Any) -> bool:
    aliases = [a.alias_info for a in func._schema.arguments if a.alias_info is not None]
    return bool(aliases) and not any(alias.is_write for alias in aliases)


def _is_among(tensor: Tensor, others: Sequence[Tensor]) -> bool:
    return any(tensor is other for other in others)


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in _pytree.tree_leaves(tree) if isinstance(leaf, Tensor)]


def _stored_bytes(tensor: Tensor) -> int:
    """Bytes of a tensor, of repeated elements once."""
    elements = 1
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        elements *= size if stride else 1
    return elements * tensor.element_size()


def _moved_bytes(
    name: str, given: Sequence[Tensor], written: Sequence[Tensor], made: Sequence[Tensor]
) -> int:
    """Counts the bytes that an op reads and writes."""
    if name in _LOOKUPS:
        table, lookups = _LOOKUPS[name](given)
        by_rows = [t for t in given if t.shape[:1] == table.shape[:1]]  # with its states
        rows = sum(lookups * t[:1].numel() * t.element_size() for t in by_rows)
        rest = [t for t in given if t.shape[:1] != table.shape[:1]]
        is_written = _is_among(table, written)
        return sum(map(_stored_bytes, (*rest, *made))) + rows * (2 if is_written else 1)
    fresh = [t for t in made if not _is_among(t, given)]
    return sum(map(_stored_bytes, (*given, *written, *fresh)))


_LOOKUPS: dict[str, Callable[[Sequence[Tensor]], tuple[Tensor, int]]] = {
    "cuda_ext::embedding_gather": lambda given: (given[0], given[1].numel()),
    "cuda_ext::gather_dot_interaction": lambda given: (given[0], given[1].numel()),
    "cuda_ext::gather_dot_interaction_backward": lambda given: (given[1], given[2].numel()),
    "cuda_ext::update_rows": lambda given: (given[0], _row_numbers(given)),
}
"""Op -> the table among its tensors, and how many rows of it are looked up."""


def _row_numbers(given: Sequence[Tensor]) -> int:
    return next(t.numel() for t in given if t.ndim == 1 and t.dtype == torch.int32)


def _caller() -> str:
    """The innermost line of the project that is being run."""
    frame = sys._getframe(1)
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(REPOSITORY):
            inside = path.relative_to(REPOSITORY)
            if inside.parts[0] != "tests" and not inside.parts[0].startswith(".venv"):
                return f"at {inside}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return "in backward"
