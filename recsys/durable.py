# SPDX-License-Identifier: Apache-2.0
"""Renames that outlive a power failure.

A file system writes what a program wrote, and the names of files, in its own time and order: a
rename may reach the disk half a minute before the content, and a removal before the rename.
"""

import errno
import os
from pathlib import Path

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
