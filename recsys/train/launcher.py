# SPDX-License-Identifier: Apache-2.0
"""Ends a rank whose launcher has died.

torchrun ends and restarts its ranks while it runs. If torchrun itself is killed (by the kernel for
lack of memory, or by a supervisor), the ranks would train on as orphans. Nothing would restart
them, and the supervisor's next job would find their folder in use.
"""

import os
import signal

from recsys.interruption import send_when_parent_ends

_parent = os.getppid()
"""Parent of this process at its start; if the parent has died since, another one took its place."""


def _note_parent() -> None:
    global _parent  # noqa: PLW0603  (in a forked process, which has already imported this)
    _parent = os.getppid()


os.register_at_fork(after_in_child=_note_parent)


def end_with_launcher() -> None:
    """Makes Linux kill this process, even if stopped, when the torchrun that started it dies.

    A process that was asked to stop may save first, see `StopRequest`. Ranks that were started by
    hand or by a batch system may outlive the shell that started them.
    """
    if "TORCHELASTIC_RUN_ID" in os.environ:
        send_when_parent_ends(signal.SIGKILL)
        if os.getppid() != _parent:  # it died before the line above
            os.kill(os.getpid(), signal.SIGKILL)
