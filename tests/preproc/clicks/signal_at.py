# SPDX-License-Identifier: Apache-2.0
"""Runs a module, and sends it a signal before the first rename or new folder of a name.

    python -m tests.preproc.clicks.signal_at SIGKILL|SIGSTOP PATTERN MODULE ARGUMENTS...

Work is marked as done by a rename, and Python tells its audit hooks of each before it happens: the
process is killed, or waits for SIGCONT, at the same place in every run. Where no path matches, the
module runs to its end.
"""

import os
import re
import runpy
import signal
import sys

_PATH_ARGUMENT = {"os.mkdir": 0, "os.rename": 1}


def main() -> None:
    """Runs the module in this process."""
    number, pattern, *sys.argv = sys.argv[1:]
    is_sent = False

    def send(event: str, arguments: tuple[object, ...]) -> None:
        """Sends the signal at the first event on a path that matches."""
        nonlocal is_sent
        index = None if is_sent else _PATH_ARGUMENT.get(event)
        if index is not None and re.search(pattern, str(arguments[index])):
            is_sent = True
            os.kill(os.getpid(), signal.Signals[number])

    sys.addaudithook(send)
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
