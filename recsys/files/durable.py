# SPDX-License-Identifier: Apache-2.0
"""Files that appear whole, and renames that outlive a power failure.

A file system writes what a program wrote, and the names of files, in its own time and order: a
rename may reach the disk half a minute before the content, and a removal before the rename.
"""

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

_NO_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS)
"""What file systems answer that cannot sync a folder."""


def durable_rename(new: Path, path: Path) -> None:
    """Renames a file or folder, whole even after a power failure.

    What it replaces, or makes obsolete, may be removed afterwards.
    """
    sync_tree(new)
    new.replace(path)
    for folder in {path.parent, new.parent}:
        sync(folder)


def sync_tree(path: Path) -> None:
    """Syncs a file, or all that a folder holds, to disk."""
    below = path.rglob("*") if path.is_dir() else ()
    for each in (*(entry for entry in below if not entry.is_symlink()), path):
        sync(each)


def sync(path: Path) -> None:
    """Syncs a file, or the names in a folder, to disk.

    Raises:
        OSError: what was written could not be stored, as on a full or broken disk.
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
    """Opens a file to write; renames it into place at the end.

    Nothing is left of it after an error. A device or pipe of that name is written to.
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
            error.filename = str(path)  # a write that fails does not name its file
        raise


def write_whole_file(path: Path, text: str) -> None:
    """Writes a text file, which gets its name when it is complete."""
    with whole_file(path) as file:
        file.write(text.encode())
