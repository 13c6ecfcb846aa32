# SPDX-License-Identifier: Apache-2.0
"""Locks between processes, on files and on folders of runs."""

import contextlib
import fcntl
import logging
import os
import weakref
from pathlib import Path

logger = logging.getLogger(__name__)


class HeldPath:
    """A lock on a path, held until it is released or collected.

    Args:
        path: file or folder.
        kind: LOCK_SH or LOCK_EX of fcntl; with LOCK_NB it does not wait.
        flags: flags of `os.open`.

    Attributes:
        descriptor: descriptor of the opened path.
        release: releases the lock.
        unsupported_reason: why the file system cannot lock the path; empty if it is locked.

    Raises:
        BlockingIOError: with LOCK_NB, another process holds the lock.
        OSError: the path cannot be opened.
    """

    def __init__(self, path: Path, kind: int, flags: int = os.O_RDONLY) -> None:
        descriptor = os.open(path, flags | os.O_CLOEXEC, 0o666)
        self.descriptor = descriptor
        self.release = weakref.finalize(self, os.close, descriptor)
        self.unsupported_reason = ""
        try:
            fcntl.flock(descriptor, kind)
        except BlockingIOError:
            raise
        except OSError as error:
            self.unsupported_reason = error.strerror or str(error)


def hold_folder(file: Path) -> HeldPath:
    """Creates the folder of a lock file and locks the file; warns if locks are not supported.

    Raises:
        BlockingIOError: another process holds the lock.
        OSError: the folder or the file cannot be created or written.
    """
    while True:
        file.parent.mkdir(parents=True, exist_ok=True)
        held = HeldPath(file, fcntl.LOCK_EX | fcntl.LOCK_NB, os.O_RDWR | os.O_CREAT)
        if held.unsupported_reason:
            logger.warning("%s cannot be locked: %s", file.parent, held.unsupported_reason)
        with contextlib.suppress(FileNotFoundError):  # its holder has just ended and removed it
            if os.path.samestat(os.fstat(held.descriptor), file.stat()):
                return held
        held.release()
