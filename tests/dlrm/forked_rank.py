# SPDX-License-Identifier: Apache-2.0
"""Runs a module as a rank that torchrun forks: `--start_method=fork --run_path` and this file.

Such a rank has torch from torchrun's process; importing it takes seconds on each rank. With
RECIPES_PAUSE_AT and RECIPES_PAUSE_UNTIL in the environment it stands still after a line that holds
the first, until there is a file of the second's name.
"""

import os
import runpy
import sys
from pathlib import Path

from tests import harness


class PausingOutput:
    """An output that pauses at the end of a line that holds a text, until a file is there."""

    def __init__(self, output, text, file):
        self._output, self._text, self._file = output, text, file
        self._line = ""

    def write(self, text):
        """Writes a text, and perhaps waits."""
        count = self._output.write(text)
        self._line += text
        if self._line.endswith("\n"):
            if self._text in self._line:
                self._output.flush()
                harness.wait_for(self._file.exists, "leave to go on")
            self._line = ""
        return count

    def __getattr__(self, name):
        return getattr(self._output, name)


if "RECIPES_PAUSE_AT" in os.environ:
    sys.stdout = PausingOutput(
        sys.stdout, os.environ["RECIPES_PAUSE_AT"], Path(os.environ["RECIPES_PAUSE_UNTIL"])
    )
del sys.argv[0]
try:
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
except SystemExit as end:
    if end.code:  # a rank that is done has to return
        raise
