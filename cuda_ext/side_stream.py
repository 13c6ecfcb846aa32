# SPDX-License-Identifier: Apache-2.0
"""A second stream of a GPU, for work beside the current one."""

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor


class SideStream:
    """Runs kernels beside those of the current stream of a GPU.

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
            inputs: what they read and the caller may free before `join`. It is kept until then:
                its memory would otherwise go to the next tensor of the current stream, which is
                written while they read.
        """
        self._has_work = True
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        self._inputs += inputs
        with torch.cuda.stream(self._stream):
            yield

    def join(self) -> None:
        """Makes the current stream wait for this one's kernels.

        What was made here needs no `record_stream`: the next `after` waits for whatever read it.
        """
        if self._has_work:
            torch.cuda.current_stream(self._device).wait_stream(self._stream)
            self._has_work = False
            self._inputs.clear()
