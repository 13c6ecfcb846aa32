# SPDX-License-Identifier: Apache-2.0
"""Thread-safe reads and writes at an offset of a file."""

import ctypes
import errno
import math
import mmap
import os
import threading
import weakref
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from recsys.data.errors import DatasetError
from recsys.errors import MORE_FILES


class DiskSync:
    """Waits until files are on disk; after one failure, every call fails.

    The kernel reports a page that it could not write to only one caller, and then forgets the page.
    The page may hold rows of other threads too.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._failed: OSError | None = None

    def sync(self, fds: Iterable[int]) -> None:
        """Waits until open files are on disk; thread-safe.

        Raises:
            OSError: nothing written since the last success can be relied on.
        """
        with self._lock:
            if self._failed is not None:
                raise self._failed
            for fd in fds:
                try:
                    os.fsync(fd)
                except OSError as error:
                    path = Path(f"/proc/self/fd/{fd}").readlink()
                    self._failed = OSError(error.errno, error.strerror, str(path))
                    raise self._failed from error


def require_regular(path: Path) -> None:
    """Refuses a FIFO, folder or device, on which a reader may wait forever.

    Raises:
        OSError: the path exists and is not a regular file.
    """
    if path.exists() and not path.is_file():
        raise OSError("is not a regular file")


def open_for_reading(path: Path) -> int:
    """Opens a file to read and returns its descriptor.

    Raises:
        DatasetError: the file cannot be opened.
    """
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        remedy = "make it readable, or prepare the dataset again"
        remedy = MORE_FILES if error.errno == errno.EMFILE else remedy
        raise DatasetError(f"{path}: {error.strerror or error}; {remedy}", path=path) from error


def close_all(fds: dict[str, int]) -> None:
    """Closes all descriptors and empties the dict."""
    while fds:
        os.close(fds.popitem()[1])


def read_array(
    fd: int,
    path: Path,
    dtype: np.dtype[np.generic],
    offset: int,
    count: int,
    into: npt.NDArray[Any] | None = None,
) -> npt.NDArray[Any]:
    """Reads an array that starts at byte `offset`.

    Args:
        fd: descriptor from `open_for_reading`.
        path: path of the file, for the message.
        dtype: dtype of a value.
        offset: bytes before the first value.
        count: number of values.
        into: contiguous memory of `dtype` to fill; None allocates it.

    Raises:
        DatasetError: the file ends too early, because it shrank after it was opened.
    """
    values = np.empty(count, dtype) if into is None else into
    assert (values.dtype, values.size, values.flags.c_contiguous) == (dtype, count, True)
    view = values.reshape(-1).view(np.uint8).data if count else memoryview(b"")
    while view:
        done = os.preadv(fd, [view], offset)
        if done == 0:
            raise _cut(path, offset, len(view))
        view, offset = view[done:], offset + done
    return values


def check_not_cut(fd: int, path: Path, end: int) -> None:
    """Refuses a file that ends before byte `end`.

    Raises:
        DatasetError: the file shrank after it was opened.
    """
    size = os.fstat(fd).st_size
    if size < end:
        raise _cut(path, size, end - size)


def _cut(path: Path, end: int, missing: int) -> DatasetError:
    return DatasetError(
        f"{path}: ends at byte {end}, {missing} bytes before the end of the requested rows; the "
        "file was cut while it was being read: prepare the dataset again",
        path=path,
    )


def map_array(
    path: Path,
    dtype: np.dtype[Any],
    shape: tuple[int, ...] | None = None,
    offset: int = 0,
) -> npt.NDArray[Any]:
    """Memory-maps an array to read, without keeping a file descriptor.

    `np.memmap` keeps a descriptor for each file, and a process may have as few as a thousand.

    Args:
        path: file to map.
        dtype: dtype of a value.
        shape: shape of the array; None maps the whole file.
        offset: bytes before the first value.

    Raises:
        OSError: the file cannot be opened or mapped, or does not hold whole values.
        ValueError: the file is too small.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size = os.fstat(fd).st_size
        if size == 0:
            return np.empty((0,) if shape is None else shape, dtype)
        if shape is None and (size - offset) % dtype.itemsize:
            text = f"its {size:,} bytes are not whole values of {dtype.itemsize} bytes"
            raise OSError(errno.EINVAL, text, str(path))
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mmap.restype = ctypes.c_void_p
        libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)
        address = libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0)
    finally:
        os.close(fd)
    if address == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(path))
    memory = (ctypes.c_char * size).from_address(address)
    libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    # Not at exit, because threads may still be reading.
    weakref.finalize(memory, libc.munmap, address, size).atexit = False
    count = -1 if shape is None else math.prod(shape)
    values: npt.NDArray[Any] = np.frombuffer(memoryview(memory), dtype, count, offset)
    values.flags.writeable = False
    return values if shape is None else values.reshape(shape)


def write_at(fd: int, values: npt.NDArray[Any], offset: int) -> None:
    """Writes an array of any shape and strides at byte `offset`."""
    data = np.ascontiguousarray(values).reshape(-1).view(np.uint8).data
    while data:
        written = os.pwrite(fd, data, offset)
        data, offset = data[written:], offset + written
