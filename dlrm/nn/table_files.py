# SPDX-License-Identifier: Apache-2.0
"""Tables in files on disk, of which a bounded part is in memory.

Each table is a file that is mapped into memory, so every operation on tables works and gives the
same bits as in memory. The operating system keeps the rows in use in memory and writes the others
back. Three things are done for speed and for the bound:

- The pages of a batch's rows are read while earlier batches are in training.
- A thread watches how much of the files is in the process. Above the limit, it removes the pages
  that no recent batch used. They stay in the system's cache as long as nothing else needs the
  space.
- The files have their full size from the start, so a full disk is an error at the start.
"""

import os
import shutil
import tempfile
import threading
import weakref
from pathlib import Path

import torch
from torch import Tensor

from cuda_ext import ops
from recsys.errors import UserError
from recsys.sizes import format_bytes

_POLL_S = 0.02
_STATM = Path("/proc/self/statm")
_PAGE = os.sysconf("SC_PAGE_SIZE")


class TableFiles:
    """Allocates tensors in files, and bounds the memory that they take.

    The files have no name: they disappear with the process, however it ends.

    Args:
        folder: folder of the files, on a disk.
        limit: bytes of the files that may be in the process.
        num_bytes: bytes of all tensors that will be allocated.

    Raises:
        UserError: the disk has no space for them, or the folder cannot be made.
    """

    def __init__(self, folder: Path, limit: int, num_bytes: int) -> None:
        self._folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
            free = shutil.disk_usage(folder).free
        except OSError as error:
            raise self._refused(num_bytes, error.strerror or "") from error
        if free < num_bytes:
            raise self._refused(num_bytes, f"only {format_bytes(free)} are free")
        self._tensors: list[Tensor] = []
        self._marks = torch.empty(0, dtype=torch.uint8)
        self._limit = _resident_file_bytes() + limit
        stop = threading.Event()
        watch = threading.Thread(target=_watch, args=(weakref.ref(self), stop), daemon=True)
        watch.start()
        # Also when Python exits: it must not end the thread inside of an op.
        weakref.finalize(self, _end, watch, stop)

    def allocate(self, shape: torch.Size) -> Tensor:
        """Returns a zeroed float32 tensor in a file.

        Args:
            shape: [R, D], the same for all tensors.

        Raises:
            UserError: the disk is full, or the folder cannot be written.
        """
        num_bytes = shape.numel() * torch.float32.itemsize
        try:
            descriptor, path = tempfile.mkstemp(prefix="table_", dir=self._folder)
            try:
                os.posix_fallocate(descriptor, 0, max(num_bytes, 1))
                tensor = torch.from_file(path, True, shape.numel()).view(shape)
            finally:
                os.close(descriptor)
                Path(path).unlink()
        except OSError as error:
            raise self._refused(num_bytes, error.strerror or "") from error
        self._tensors.append(ops.expect_random_access(tensor))
        self._marks = torch.zeros(-(-num_bytes // _PAGE), dtype=torch.uint8)
        return tensor

    def _refused(self, num_bytes: int, why: str) -> UserError:
        return UserError(
            f"`table_memory`: {self._folder}: no files of {format_bytes(num_bytes)} for the tables "
            f"({why}); free some space there, or choose another disk with `save_checkpoint_path` "
            "or, without it, TMPDIR",
            settings=("table_memory", "save_checkpoint_path"),
            path=self._folder,
        )

    def bring_in(self, rows: Tensor) -> None:
        """Reads rows of all tensors into memory.

        Args:
            rows: int32 or int64 row numbers of any shape.
        """
        ops.bring_in_rows(self._tensors, self._marks, rows)

    def bound(self) -> None:
        """Removes pages without recent use if more than the limit are in the process."""
        if self._tensors and _resident_file_bytes() > self._limit:
            ops.drop_old_pages(self._tensors, self._marks)


def _watch(files: "weakref.ref[TableFiles]", stop: threading.Event) -> None:
    """Bounds the memory until the tables are gone."""
    while not stop.wait(_POLL_S):
        watched = files()
        if watched is None:
            return
        watched.bound()
        del watched  # or the tables would never be gone


def _end(watch: threading.Thread, stop: threading.Event) -> None:
    stop.set()
    if threading.current_thread() is not watch:
        watch.join()


def _resident_file_bytes() -> int:
    """Returns the bytes of mapped files that are in this process."""
    return int(_STATM.read_text().split()[2]) * _PAGE
