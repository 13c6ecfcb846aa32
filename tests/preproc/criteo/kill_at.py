# SPDX-License-Identifier: Apache-2.0
"""Runs a module up to a rename or a new folder, and is killed there as by kill -9.

    python -m tests.preproc.criteo.kill_at PATTERN MODULE ARGUMENTS...

Work is marked as done by a rename, and Python tells its audit hooks of each before it happens: the
process ends at the same place in every run. Where no path matches, the module runs to its end.
"""

import os
import re
import runpy
import signal
import sys

_PATH_ARGUMENT = {"os.mkdir": 0, "os.rename": 1}


def main() -> None:
    """Runs the module in this process."""
    pattern = re.compile(sys.argv[1])

    def kill(event: str, arguments: tuple[object, ...]) -> None:
        """Ends the process before the first event on a path that matches."""
        index = _PATH_ARGUMENT.get(event)
        if index is not None and pattern.search(str(arguments[index])):
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(kill)
    sys.argv = sys.argv[2:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
