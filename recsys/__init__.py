# SPDX-License-Identifier: Apache-2.0
"""The library of both models: settings, programs, datasets, training, serving.

Importing all of it takes seconds. This module imports little and is imported first, so it lets
Ctrl-C end a program of this project with one line until the program starts to work. If Python runs
another program, such as a notebook that uses this library, it does nothing.
"""

import atexit
import gc
import os
import signal
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType

_PACKAGES = ("benchmark", "bert4rec", "cuda_ext", "dataspec", "dlrm", "preproc", "recsys_recipes")
_SCRIPTS = ("recsys-recipes", "triton/client.py", "triton/deployer.py", "triton/serve.py")


def is_own_program(words: "Sequence[str]") -> bool:
    """Returns whether a command line of Python runs a program of this project."""
    rest = iter(words[1:])
    for word in rest:
        if word == "-m":
            return next(rest, "").partition(".")[0] in _PACKAGES
        if word in ("-X", "-W"):
            next(rest, "")
        elif not word.startswith("-"):
            return word.endswith(_SCRIPTS)
    return False


def raise_interrupts() -> None:
    """Makes Ctrl-C raise KeyboardInterrupt again, once a program has started to work."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end(number: int, frame: "FrameType | None") -> None:
    """Ends the process, which has nothing to clean up yet."""
    del frame
    try:
        os.write(2, b"interrupted\n")
    finally:
        os._exit(128 + number)


if is_own_program(sys.orig_argv):
    # Or Python looks for garbage among all that torch has made, for a quarter of a second.
    atexit.register(gc.freeze)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)

__version__ = "0.1.0"
