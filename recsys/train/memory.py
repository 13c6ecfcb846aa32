# SPDX-License-Identifier: Apache-2.0
"""Memory of a run: limits, release of freed memory, copies to the device."""

import abc
import contextlib
import ctypes
import dataclasses
import gc
import os
import resource
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from recsys.errors import UserError
from recsys.resources import MemoryLimit, memory_limits
from recsys.sizes import format_bytes
from recsys.train.processes import ALONE, Processes

_USABLE = 0.95
"""Fraction of the available memory for the model; batches and the process need the rest."""
_LARGEST = 3
_TOO_MANY = 2**63
_CPU = torch.device("cpu")
_DRAWN = (Tensor.normal_, Tensor.uniform_)
_M_TRIM_THRESHOLD = -1
_M_MMAP_MAX = -4


class OutOfMemoryError(UserError):
    """A model needs more memory than there is."""


@dataclasses.dataclass(frozen=True, slots=True)
class ModelMemory:
    """Memory that a process will allocate for a model.

    Attributes:
        parts: purpose -> bytes.
        tables: name of a table -> its bytes, including optimizer state.
        remedies: settings that would reduce the memory.
    """

    parts: Mapping[str, int]
    tables: Mapping[str, int]
    remedies: Sequence[str]

    @property
    def total(self) -> int:
        """Bytes of all parts together."""
        return sum(self.parts.values())


class _Undrawn(TorchFunctionMode):
    """Leaves new tensors uninitialised: drawing values on `meta` would import torch._dynamo."""

    def __torch_function__(
        self,
        function: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        named = kwargs or {}
        if function in _DRAWN or getattr(function, "__module__", "") == "torch.nn.init":
            return args[0] if args else named["tensor"]
        return function(*args, **named)


@contextlib.contextmanager
def shapes_alone() -> Iterator[None]:
    """Gives the tensors of new modules only shapes, without memory and values."""
    with torch.device("meta"), _Undrawn():
        yield


def count_bytes(build: Callable[[], nn.Module]) -> int:
    """Returns the bytes of a module's parameters and buffers, without allocating them.

    Args:
        build: builds the module on the default device.
    """
    try:
        with shapes_alone():
            module = build()
    except (RuntimeError, TypeError):  # more elements than 64 bits can count
        return _TOO_MANY
    return sum(t.numel() * t.element_size() for t in (*module.parameters(), *module.buffers()))


def require_memory(
    needed: ModelMemory, device: torch.device = _CPU, processes: Processes = ALONE
) -> None:
    """Refuses a model that does not fit in memory; every process must call it.

    The needs of all processes of a machine or a control group are added up.

    Args:
        needed: memory that this process needs.
        device: device of the model.

    Raises:
        OutOfMemoryError: names what needs the memory and what to change.
    """
    limits = memory_limits() if device.type == "cpu" else [_gpu_limit(device)]
    shared: dict[tuple[object, ...], list[tuple[MemoryLimit, ModelMemory]]] = {}
    for their_limits, theirs in processes.gather_values((limits, needed)):
        for limit in their_limits:
            shared.setdefault(limit.key, []).append((limit, theirs))
    for sharing in shared.values():
        limit = min((limit for limit, _ in sharing), key=lambda limit: limit.available)
        total = sum(theirs.total for _, theirs in sharing)
        if total > limit.available * _USABLE:
            largest = max((theirs for _, theirs in sharing), key=lambda theirs: theirs.total)
            raise OutOfMemoryError(_message(largest, total, len(sharing), limit))


def _gpu_limit(device: torch.device) -> MemoryLimit:
    free, _ = torch.cuda.mem_get_info(device)
    unique = str(torch.cuda.get_device_properties(device).uuid)
    return MemoryLimit(f"free on {torch.cuda.get_device_name(device)}", (unique,), free)


def _message(needed: ModelMemory, total: int, processes: int, limit: MemoryLimit) -> str:
    parts = [f"{format_bytes(size)} of {name}" for name, size in needed.parts.items() if size]
    tables = sorted(needed.tables.items(), key=lambda table: -table[1])[:_LARGEST]
    largest = ", ".join(f"{name} {format_bytes(size)}" for name, size in tables)
    whose, each = "the model needs", ": "
    if processes > 1:
        whose, each = f"the model's {processes} processes here need", ", the largest of them "
    return (
        f"{whose} {format_bytes(total)} of memory{each}{', '.join(parts)}; "
        f"{format_bytes(max(limit.available, 0))} are {limit.name}. "
        + (f"Largest tables: {largest}. " if largest else "")
        + f"To change: {', '.join(needed.remedies)}"
    )


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Copies a host tensor to a device without waiting for the copy.

    The copy goes through pinned memory: a copy from other memory ends only when all work queued
    before it has ended.

    Args:
        tensor: tensor on the host.
        device: device for the copy; a CPU gets the tensor itself.
    """
    if device.type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


class HostBatch(abc.ABC):
    """A batch on the host that can be copied to a device."""

    __slots__ = ()

    @abc.abstractmethod
    def map(self, change: Callable[[Tensor], Tensor]) -> Self:
        """Returns the batch with each tensor changed."""

    def pinned(self) -> Self:
        """Copies the batch into new pinned memory."""
        return self.map(Tensor.pin_memory)

    def to(self, device: torch.device) -> Self:
        """Queues the copy to a device on the current stream."""
        return self.map(lambda tensor: tensor.to(device, non_blocking=True))

    def tensors(self) -> list[Tensor]:
        """Returns the tensors that `map` changes, in the same order."""
        tensors: list[Tensor] = []

        def note(tensor: Tensor) -> Tensor:
            tensors.append(tensor)
            return tensor

        self.map(note)
        return tensors

    def record_stream(self, stream: torch.Stream) -> None:
        """Tells the allocator that `stream` reads the tensors."""
        for tensor in self.tensors():
            tensor.record_stream(stream)


HostBatchT = TypeVar("HostBatchT", bound=HostBatch)


def copy_ahead(host: Iterator[HostBatchT], device: torch.device) -> Iterator[HostBatchT]:
    """Copies batches to a GPU while the model computes.

    Args:
        host: batches in pinned memory; they are copied on a separate stream.
        device: device for the copies; each copy starts while the batch before it is in use.
    """
    copies = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def start_copy(batch: HostBatchT) -> tuple[HostBatchT, torch.cuda.Event]:
        with torch.cuda.stream(copies):
            return batch.to(device), copies.record_event()

    def finish(batch: HostBatchT, copied: torch.cuda.Event) -> HostBatchT:
        stream = torch.cuda.current_stream(device)
        stream.wait_event(copied)  # does not wait for the next batch, whose copy has begun
        batch.record_stream(stream)
        return batch

    ahead: tuple[HostBatchT, torch.cuda.Event] | None = None
    for batch in host:
        current, ahead = ahead, start_copy(batch)
        if current is not None:
            yield finish(*current)
    if ahead is not None:
        yield finish(*ahead)


def keep_freed_memory() -> bool:
    """Makes glibc keep freed memory for the next step.

    By default, glibc returns each block above 32 MiB to the kernel. The next step faults it in
    again, page by page, and takes 1.02 to 1.6 times as long on a CPU. Other software can set the
    same, so a comparison must say which side did.

    Returns:
        False if the C library is not glibc, or refused.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(_M_MMAP_MAX, 0)) and bool(mallopt(_M_TRIM_THRESHOLD, 2**31 - 1))


def reset_peak_memory(device: torch.device) -> None:
    """Makes `peak_memory` start again from the memory in use."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    with contextlib.suppress(OSError):  # not Linux
        Path("/proc/self/clear_refs").write_text("5")


def peak_memory(device: torch.device) -> int:
    """Returns the largest number of bytes in use since `reset_peak_memory`.

    Args:
        device: on CUDA, tensors on the GPU count; on a CPU, the memory resident in the process.
    """
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:
        status = Path("/proc/self/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) * 1024
    except (OSError, IndexError):  # not Linux
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def release_unused_memory(device: torch.device) -> None:
    """Collects garbage, and returns freed memory to the system or the GPU.

    This undoes `keep_freed_memory` once: the next step faults its memory in again.

    Args:
        device: device of the model.
    """
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # only glibc has it
    if trim is not None:
        trim(0)


def keep_few_primitives() -> None:
    """Makes oneDNN cache code for only a few shapes, for batches of varying size.

    By default, oneDNN keeps generated code for the last 1,024 shapes, which such a run never meets
    again. It fragments the heap: a third of a GiB in a thousand steps. Call this before the first
    operation of torch.
    """
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "32")
