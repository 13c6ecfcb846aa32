# SPDX-License-Identifier: Apache-2.0
"""Ends a rank whose launcher has died.

torchrun ends and restarts its ranks as long as it lives. When it is killed itself (by the kernel
for want of memory, by a supervisor), they would train on as orphans: nobody restarts them, and the
job that the supervisor starts anew finds their folder in use.
"""

import os
import signal

from recsys.interruption import send_when_parent_ends

_parent = os.getppid()
"""This process's parent when it began: one that died since has another process in its place."""


def _note_parent() -> None:
    global _parent  # noqa: PLW0603  (of a forked process, which has imported this already)
    _parent = os.getppid()


os.register_at_fork(after_in_child=_note_parent)


def end_with_launcher() -> None:
    """Has Linux kill this process when the torchrun that started it dies; also a stopped one.

    One that was asked to stop may save first, see `StopRequest`. Ranks that were started by hand or
    by a batch system may outlive the shell that started them.
    """
    if "TORCHELASTIC_RUN_ID" in os.environ:
        send_when_parent_ends(signal.SIGKILL)
        if os.getppid() != _parent:  # it died before the line above
            os.kill(os.getpid(), signal.SIGKILL)
