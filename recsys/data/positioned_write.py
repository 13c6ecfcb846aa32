# SPDX-License-Identifier: Apache-2.0
"""Writes at an offset: safe from many threads."""

import os
from typing import Any

import numpy as np
import numpy.typing as npt


def write_at(fd: int, values: npt.NDArray[Any], offset: int) -> None:
    """Writes all values, whatever their shape and strides, from byte `offset` on."""
    data = np.ascontiguousarray(values).reshape(-1).view(np.uint8).data
    while data:
        written = os.pwrite(fd, data, offset)
        data, offset = data[written:], offset + written
