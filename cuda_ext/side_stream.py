# SPDX-License-Identifier: Apache-2.0
"""A second stream of a GPU, for work that overlaps with the current one."""

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor


class SideStream:
    """Runs kernels concurrently with those of the current stream of a GPU.

    Args:
        device: a CUDA device.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._has_work = False
        self._inputs: list[Tensor] = []

    @contextlib.contextmanager
    def after(self, *inputs: Tensor) -> Iterator[None]:
        """Runs the kernels of the context after those queued so far.

        Args:
            inputs: tensors that these kernels read and that the caller may free before `join`. They
                are kept alive until then: otherwise the current stream could reuse and overwrite
                their memory while the kernels still read it.
        """
        self._has_work = True
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        self._inputs += inputs
        with torch.cuda.stream(self._stream):
            yield

    def join(self) -> None:
        """Makes the current stream wait for this one's kernels.

        Tensors made on this stream need no `record_stream`: the next `after` waits for every kernel
        that read them.
        """
        if self._has_work:
            torch.cuda.current_stream(self._device).wait_stream(self._stream)
            self._has_work = False
            self._inputs.clear()
