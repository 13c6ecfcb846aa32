# SPDX-License-Identifier: Apache-2.0
"""Errors a user can cause, printed without a traceback.

Messages name a setting in backquotes, as in "`batch_size` must be at least 1". Only a program knows
that the user gave it as a flag: it prints messages through `as_flags`.
"""

import re
from collections.abc import Sequence

_SHOWN_NAMES = 5
_SETTING = re.compile(r"`([A-Za-z]\w*)`")

FAILED, INPUT_REFUSED, TOO_MANY_BAD_ROWS, DIVERGED, INTERRUPTED = 1, 2, 3, 4, 130
"""Exit statuses of the programs besides 0; 1 is a check, a server or a process that failed."""

MORE_FILES = "raise the limit, ulimit -n"


class UserError(ValueError):
    """Input, settings or machine prevent the run.

    The message says what to do.

    Attributes:
        exit_code: exit status of the command line.
    """

    exit_code = INPUT_REFUSED

    @property
    def settings(self) -> list[str]:
        """Names of the settings in the message, in its order."""
        return _SETTING.findall(str(self))


class BadRowError(UserError):
    """A row of a request is refused.

    Attributes:
        row: number of the row, from 0.
    """

    def __init__(self, row: int, message: str) -> None:
        super().__init__(message)
        self.row = row


class DivergenceError(RuntimeError):
    """Training cannot succeed any more.

    The message says why and what to try.
    """

    exit_code = DIVERGED


class ProcessLostError(RuntimeError):
    """Another process of the run has ended, or stands still."""

    exit_code = FAILED


def is_out_of_memory(error: BaseException) -> bool:
    """Tells a failed allocation of Python, NumPy or PyTorch."""
    of_torch = type(error).__name__ == "OutOfMemoryError" or "can't allocate memory" in str(error)
    return isinstance(error, MemoryError) or of_torch


def as_flags(message: str) -> str:
    """Spells the settings of a message as flags: `--batch_size` for `batch_size`."""
    return _SETTING.sub(r"--\1", message)


def show_names(names: Sequence[str]) -> str:
    """Returns the first names of a list and the number of others."""
    more = len(names) - _SHOWN_NAMES
    return ", ".join(names[:_SHOWN_NAMES]) + (f" and {more} more" if more > 0 else "")
