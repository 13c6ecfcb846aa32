# SPDX-License-Identifier: Apache-2.0
"""Locks on files and folders of runs, among processes."""

import fcntl
import os
import weakref
from pathlib import Path


class HeldPath:
    """A lock on a path, until it is let go or collected.

    Args:
        path: file or folder.
        kind: LOCK_SH or LOCK_EX of fcntl, with LOCK_NB instead of a wait.
        flags: of `os.open`.

    Attributes:
        let_go: ends the lock.
        why_not: reason of a file system that has no locks; empty where it is locked.

    Raises:
        BlockingIOError: with LOCK_NB, another process holds it.
        OSError: it cannot be opened.
    """

    def __init__(self, path: Path, kind: int, flags: int = os.O_RDONLY) -> None:
        descriptor = os.open(path, flags | os.O_CLOEXEC, 0o666)
        self.let_go = weakref.finalize(self, os.close, descriptor)
        self.why_not = ""
        try:
            fcntl.flock(descriptor, kind)
        except BlockingIOError:
            raise
        except OSError as error:
            self.why_not = error.strerror or str(error)
