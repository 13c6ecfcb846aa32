# SPDX-License-Identifier: Apache-2.0
"""Ends a rank whose launcher has died.

torchrun ends and restarts its ranks as long as it lives. When it is killed itself (by the kernel
for want of memory, by a supervisor), they would train on as orphans: nobody restarts them, and the
job that the supervisor starts anew finds their folder in use.
"""

import contextlib
import ctypes
import os
import signal
import sys
import threading
from collections.abc import Iterator

from recsys.interruption import is_stopping
from recsys.train.heartbeat import end_process

_INTERVAL_S = 0.5
_PR_SET_PDEATHSIG = 1

_parent = os.getppid()
"""This process's parent when it began: one that died since has another process in its place."""


def _note_parent() -> None:
    global _parent  # noqa: PLW0603  (of a forked process, which has imported this already)
    _parent = os.getppid()


os.register_at_fork(after_in_child=_note_parent)


@contextlib.contextmanager
def ending_with_launcher() -> Iterator[None]:
    """Ends this process, in the block, once the torchrun that started it has died.

    One that was asked to stop saves first: after a second signal torchrun does not wait for it.
    Ranks that were started by hand or by a batch system may outlive the shell that started them.
    """
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        yield
        return
    launcher, is_over = _parent, threading.Event()

    def watch() -> None:
        while os.getppid() == launcher or is_stopping():
            if is_over.wait(_INTERVAL_S):
                return
        end_process(
            f"the launcher (torchrun, process {launcher}) has died, and this rank ends with it: "
            "start the job anew with `resume` to go on from its last checkpoint"
        )

    _ask_to_be_continued()
    thread = threading.Thread(target=watch, name="launcher watch", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def _ask_to_be_continued() -> None:
    """Has Linux continue this process when its parent dies, so that a stopped one ends too."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGCONT))
