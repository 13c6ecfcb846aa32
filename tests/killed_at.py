# SPDX-License-Identifier: Apache-2.0
"""Runs a module, and kills it before the Nth removal or rename of a file or folder.

    python -m tests.killed_at N MODULE ARGUMENTS...

Python tells its audit hooks of each before it happens. Where there are fewer, the module runs to
its end.
"""

import itertools
import os
import runpy
import signal
import sys

_EVENTS = ("os.remove", "os.rmdir", "os.rename")


def main() -> None:
    """Runs the module in this process."""
    last, *sys.argv = sys.argv[1:]
    numbers = itertools.count(1)

    def kill(event: str, _arguments: tuple[object, ...]) -> None:
        """Kills this process at the last of the events."""
        if event in _EVENTS and next(numbers) == int(last):
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(kill)
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
