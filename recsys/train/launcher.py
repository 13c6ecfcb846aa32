# SPDX-License-Identifier: Apache-2.0
"""Ends a rank whose launcher has died.

torchrun ends and restarts its ranks as long as it lives. When it is killed itself (by the kernel
for want of memory, by a supervisor), they would train on as orphans: nobody restarts them, and the
job that the supervisor starts anew finds their folder in use.
"""

import contextlib
import os
import select
import signal
import threading
from collections.abc import Iterator

from recsys.interruption import send_when_parent_ends
from recsys.train.heartbeat import end_process

_INTERVAL_S = 0.5

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
    launcher = _parent
    reader, writer = os.pipe()
    os.set_blocking(writer, False)  # as `set_wakeup_fd` wants it

    def watch() -> None:
        is_orphan = False
        while not is_orphan:
            is_orphan = os.getppid() != launcher
            # After the look, so that a signal sent before the launcher died has time to arrive.
            if select.select([reader], [], [], _INTERVAL_S)[0]:
                return
        end_process(
            f"the launcher (torchrun, process {launcher}) has died, and this rank ends with it: "
            "start the job anew with `resume` to go on from its last checkpoint"
        )

    send_when_parent_ends(signal.SIGCONT)  # so that a stopped one ends too
    thread = threading.Thread(target=watch, name="launcher watch", daemon=True)
    # The handler of a signal runs between two steps of Python, and a step of training may take
    # longer than the launcher lives. The interpreter writes here when the signal comes.
    previous = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    thread.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(previous)
        with contextlib.suppress(BlockingIOError):  # full of signals
            os.write(writer, b"\0")
        thread.join()
        os.close(reader)
        os.close(writer)
