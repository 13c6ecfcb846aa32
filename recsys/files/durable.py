# SPDX-License-Identifier: Apache-2.0
"""Files that appear only when complete, and renames that survive a power failure.

A file system stores content and file names at its own time and in its own order. A rename may reach
the disk half a minute before the content, and a removal before the rename.
"""

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

_NO_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS)
"""Errors of file systems that cannot sync a folder."""


def durable_rename(new: Path, path: Path) -> None:
    """Renames a file or folder so that it is complete even after a power failure.

    What it replaces or makes obsolete may be removed afterwards.
    """
    sync_tree(new)
    new.replace(path)
    for folder in {path.parent, new.parent}:
        sync(folder)


def sync_tree(path: Path) -> None:
    """Syncs a file, or everything in a folder, to disk."""
    below = path.rglob("*") if path.is_dir() else ()
    for each in (*(entry for entry in below if not entry.is_symlink()), path):
        sync(each)


def sync(path: Path) -> None:
    """Syncs a file, or the names in a folder, to disk.

    Raises:
        OSError: the written data could not be stored, as on a full or broken disk.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_SYNC or not path.is_dir():
            raise
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """Opens a file to write, and renames it into place at the end.

    It is removed on error. Devices and pipes are written in place.
    """
    if path.exists() and not (path.is_file() or path.is_dir()):
        with path.open("wb") as device:
            yield device
        return
    temporary = path.with_name(path.name + ".tmp")
    try:
        with temporary.open("wb") as file:
            yield file
        durable_rename(temporary, path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename is None:
            error.filename = str(path)  # the error of a failed write does not name its file
        raise


def write_whole_file(path: Path, text: str) -> None:
    """Writes a text file, which appears only when complete."""
    with whole_file(path) as file:
        file.write(text.encode())
