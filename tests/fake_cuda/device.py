# SPDX-License-Identifier: Apache-2.0
"""Python's side of the fake device: what torch.cuda answers, streams and graphs."""

import contextlib
import dataclasses
import itertools
import threading
import types
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy.typing as npt
import pytest
import torch
from torch import Tensor
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.library import register_fake
from torch.utils._python_dispatch import _disable_current_modes

from cuda_ext import library
from recsys.train.optimizers import rows

MEMORY_BYTES = 141 * 10**9
DEVICE = torch.device("cuda", 0)
PROPERTIES = types.SimpleNamespace(uuid="fake", major=9, minor=0, total_memory=MEMORY_BYTES)


def is_loaded() -> bool:
    """Returns True if this process has the fake device."""
    return torch.version.cuda is None and torch._C._get_accelerator().type == "cuda"


Clock = dict[int, int]
"""Number of a stream -> ops of it that are known to be over."""


@dataclasses.dataclass(frozen=True, slots=True)
class Event:
    """A moment of a stream.

    Attributes:
        clock: what was over for it.
    """

    clock: Clock

    def synchronize(self) -> None:
        """Makes the host wait for it."""
        Capture.refuse("synchronize")
        PinnedMemory.seen |= {n: max(c, PinnedMemory.seen.get(n, 0)) for n, c in self.clock.items()}


class Stream:
    """A stream that has nothing to do, and knows what it has waited for.

    Attributes:
        current: the stream of the ops that follow.
        recorded: memory that is not used again before the streams recorded with it are done.
        number: its own.
    """

    current: "Stream"
    recorded: ClassVar[set[int]] = set()
    device = DEVICE
    _numbers = itertools.count()

    def __init__(self, *_: object, **__: object) -> None:
        self.number = next(self._numbers)
        self._clock: Clock = {}

    def begin_op(self) -> tuple[int, int]:
        """Counts an op; returns the stream's number and that of the op."""
        self._clock[self.number] = self._clock.get(self.number, 0) + 1
        return self.number, self._clock[self.number]

    def last_op(self) -> tuple[int, int]:
        """Returns the stream's number and that of its last op."""
        return self.number, self._clock[self.number]

    def has_seen(self, op: tuple[int, int]) -> bool:
        """Returns True if an op is over before whatever comes next here."""
        number, count = op
        return self._clock.get(number, 0) >= count

    def wait_stream(self, other: "Stream") -> None:
        """Orders what follows after all that the other stream has."""
        self.wait_event(other.record_event())

    def wait_event(self, event: Event) -> None:
        """Orders what follows after an event."""
        for number, count in event.clock.items():
            self._clock[number] = max(self._clock.get(number, 0), count)

    def record_event(self) -> Event:
        """Returns this moment."""
        return Event(dict(self._clock))

    def synchronize(self) -> None:
        """Returns at once."""

    @classmethod
    @contextlib.contextmanager
    def use(cls, stream: "Stream") -> Iterator[None]:
        """Puts the ops of the context on a stream."""
        before, cls.current = cls.current, stream
        try:
            yield
        finally:
            cls.current = before


class PinnedMemory:
    """Pinned memory with data, and the copies from it.

    Attributes:
        allocated: address -> a tensor of all the memory there.
        copies: address -> copies from it, as (number of the stream, number of the op).
        seen: what the host has waited for.
    """

    allocated: ClassVar[dict[int, Tensor]] = {}
    copies: ClassVar[dict[int, list[tuple[int, int]]]] = {}
    seen: ClassVar[Clock] = {}

    @classmethod
    def pin(cls, tensor: Tensor) -> Tensor:
        """Copies a tensor into pinned memory; a fake one has no data to copy."""
        with _disable_current_modes():
            is_fake = isinstance(tensor, FakeTensor)
            pinned = torch.zeros(tensor.shape, dtype=tensor.dtype) if is_fake else tensor.clone()
        cls.allocated[pinned.data_ptr()] = pinned
        return pinned

    @classmethod
    def check_write(cls, address: int) -> bool:
        """Refuses a write of the host to memory that may still be copied.

        Returns:
            Whether the memory is pinned.
        """
        for start, tensor in cls.allocated.items():
            if start <= address < start + tensor.nbytes:
                late = [op for op in cls.copies.get(start, []) if cls.seen.get(op[0], 0) < op[1]]
                assert not late, "a pinned buffer is filled again before it was copied"
                return True
        return False


for _op in ("_fused_sgd_.tensor_lr", "_fused_adamw_.tensor_lr"):
    # PyTorch registers fakes of these with a rate that is a Python number alone.
    register_fake(f"aten::{_op}", lambda *_, **__: None)


class Capture:
    """The capture of a graph, and what CUDA refuses meanwhile.

    Calls that may wait, such as the pinning of memory, break a capture of mode `global` from any
    thread, one of mode `thread_local` from its own.
    """

    under_way: "Capture | None" = None

    def __init__(self, graph: "Graph", capture_error_mode: str = "global", **_: object) -> None:
        self._graph = graph
        self._mode = capture_error_mode
        self._thread = threading.get_ident()

    def __enter__(self) -> None:
        Capture.under_way = self

    def __exit__(self, *_: object) -> None:
        Capture.under_way = None

    @classmethod
    def refuse(cls, call: str) -> None:
        """Refuses a call that breaks the capture under way.

        Raises:
            RuntimeError: it does.
        """
        capture = cls.under_way
        if capture is None:
            return
        if capture._mode == "global" or capture._thread == threading.get_ident():
            raise RuntimeError(f"{call}: operation not permitted when stream is capturing")

    @classmethod
    def check_generator(cls, generator: torch.Generator | None) -> None:
        """Refuses draws whose state the graph under way would not continue.

        Raises:
            RuntimeError: the generator was not registered with the graph.
        """
        capture = cls.under_way
        if capture is None or generator is None or generator._cdata in capture._graph.generators:
            return
        raise RuntimeError("a generator draws that is not registered with the graph")


class Graph:
    """A captured graph, replayed by doing nothing.

    Attributes:
        generators: addresses of random generators registered with it, besides the global one.
        replays: number of replays of all graphs.
    """

    replays: ClassVar[int] = 0

    def __init__(self) -> None:
        self.generators: set[int] = set()

    def register_generator_state(self, generator: torch.Generator) -> None:
        """Makes each replay draw from the generator's present state."""
        self.generators.add(generator._cdata)

    def replay(self) -> None:
        """Counts the replay."""
        Graph.replays += 1


def _record_stream(tensor: Tensor, _: Stream) -> None:
    Stream.recorded.add(tensor.untyped_storage()._cdata)


def _pin_memory(tensor: Tensor, *_: object) -> Tensor:
    Capture.refuse("pin_memory")
    return PinnedMemory.pin(tensor)


_as_numpy = Tensor.numpy


def _numpy(tensor: Tensor) -> npt.NDArray[Any]:
    """Returns the memory of a tensor with data, where the mode would make it a fake one."""
    with contextlib.nullcontext() if isinstance(tensor, FakeTensor) else _disable_current_modes():
        return _as_numpy(tensor)


@contextlib.contextmanager
def fake_cuda() -> Iterator[FakeTensorMode]:
    """Makes every tensor a fake one and CUDA available, until the context ends."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Stream, "current", Stream(), raising=False)
        patch.setattr(rows, "_sort_streams", {})
        for name in ("allocated", "copies", "seen"):
            patch.setattr(PinnedMemory, name, {})
        answers = {
            "is_available": lambda: True,
            "device_count": lambda: 1,
            "current_device": lambda: 0,
            "set_device": lambda _: None,
            "is_bf16_supported": lambda *_: True,
            "mem_get_info": lambda *_: (MEMORY_BYTES, MEMORY_BYTES),
            "get_device_name": lambda *_: "a fake device",
            "get_device_properties": lambda *_: PROPERTIES,
            "Stream": Stream,
            "current_stream": lambda *_: Stream.current,
            "stream": Stream.use,
            "synchronize": lambda *_: Capture.refuse("synchronize"),
            "is_current_stream_capturing": lambda: Capture.under_way is not None,
            "graph": Capture,
            "CUDAGraph": Graph,
            "graph_pool_handle": lambda: (0, 1),
        }
        for name, answer in answers.items():
            patch.setattr(torch.cuda, name, answer)
        generator = torch.Generator
        patch.setattr(torch, "Generator", lambda *_: generator("cpu"))
        patch.setattr(Tensor, "record_stream", _record_stream)
        patch.setattr(Tensor, "pin_memory", _pin_memory)
        patch.setattr(Tensor, "numpy", _numpy)
        # Numbers that fake tensors remember would be copied to a real device.
        patch.setattr(fake_tensor, "CONSTANT_NUMEL_LIMIT", -1)
        patch.setattr(library, "COMPILED_FOR", frozenset({"cpu", "cuda"}))
        lifted = torch._C._only_lift_cpu_tensors()
        # torch.tensor(..., device="cuda") makes a CPU tensor and has it moved by an op.
        torch._C._set_only_lift_cpu_tensors(True)
        try:
            with FakeTensorMode(allow_non_fake_inputs=True, allow_fallback_kernels=False) as mode:
                yield mode
        finally:
            torch._C._set_only_lift_cpu_tensors(lifted)
