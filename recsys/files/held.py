# SPDX-License-Identifier: Apache-2.0
"""Locks on files and folders of runs, among processes."""

import contextlib
import fcntl
import logging
import os
import weakref
from pathlib import Path

logger = logging.getLogger(__name__)


class HeldPath:
    """A lock on a path, until it is let go or collected.

    Args:
        path: file or folder.
        kind: LOCK_SH or LOCK_EX of fcntl, with LOCK_NB instead of a wait.
        flags: of `os.open`.

    Attributes:
        descriptor: of the opened path.
        let_go: ends the lock.
        why_not: reason of a file system that has no locks; empty where it is locked.

    Raises:
        BlockingIOError: with LOCK_NB, another process holds it.
        OSError: it cannot be opened.
    """

    def __init__(self, path: Path, kind: int, flags: int = os.O_RDONLY) -> None:
        descriptor = os.open(path, flags | os.O_CLOEXEC, 0o666)
        self.descriptor = descriptor
        self.let_go = weakref.finalize(self, os.close, descriptor)
        self.why_not = ""
        try:
            fcntl.flock(descriptor, kind)
        except BlockingIOError:
            raise
        except OSError as error:
            self.why_not = error.strerror or str(error)


def hold_folder(file: Path) -> HeldPath:
    """Makes the folder of a lock file and locks it, or warns.

    Raises:
        BlockingIOError: another process holds it.
        OSError: it cannot be made or written.
    """
    while True:
        file.parent.mkdir(parents=True, exist_ok=True)
        held = HeldPath(file, fcntl.LOCK_EX | fcntl.LOCK_NB, os.O_RDWR | os.O_CREAT)
        if held.why_not:
            logger.warning("%s cannot be locked: %s", file.parent, held.why_not)
        with contextlib.suppress(FileNotFoundError):  # its holder has just ended and removed it
            if os.path.samestat(os.fstat(held.descriptor), file.stat()):
                return held
        held.let_go()
