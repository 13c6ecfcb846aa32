# SPDX-License-Identifier: Apache-2.0
"""Runs a module as a rank that torchrun forks: `--start_method=fork --run_path` and this file.

Such a rank has torch from torchrun's process; importing it takes seconds on each rank.
"""

import runpy
import sys

del sys.argv[0]
try:
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
except SystemExit as end:
    if end.code:  # a rank that is done has to return
        raise
