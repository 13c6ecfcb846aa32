# SPDX-License-Identifier: Apache-2.0
"""Errors a user can cause, printed without a traceback.

A message names a setting in backquotes, as in "`batch_size` must be at least 1". Only a program
knows that the user gave it as a flag, and spells it so: see `as_flags`. A key of a file that an
error names with its line is no setting, and stays as the file has it.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

_SHOWN_NAMES = 5

FAILED, INPUT_REFUSED, TOO_MANY_BAD_ROWS, DIVERGED, INTERRUPTED = 1, 2, 3, 4, 130
"""Exit statuses of the programs besides 0; 1 is a check, a server or a process that failed."""

MORE_FILES = "raise the limit, ulimit -n"


class UserError(ValueError):
    """Input, settings or machine prevent the run.

    Args:
        message: says what is wrong and what to do.
        setting: the setting that is refused.
        settings: the settings that do not go together, if there are several.
        path: the file at fault.
        line: line of the file, from 1.
        column: name of the column or feature at fault.

    Attributes:
        exit_code: exit status of the command line.
        settings: see above, one or several.
        path: see above.
        line: see above.
        column: see above.
    """

    exit_code = INPUT_REFUSED

    def __init__(
        self,
        message: str,
        *,
        setting: str | None = None,
        settings: Sequence[str] = (),
        path: str | Path | None = None,
        line: int | None = None,
        column: str | None = None,
    ) -> None:
        super().__init__(message)
        self.settings = tuple(settings) if setting is None else (setting, *settings)
        self.path = None if path is None else Path(path)
        self.line, self.column = line, column


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


def as_flags(
    message: str, settings: Iterable[str], names: Mapping[str, str] = MappingProxyType({})
) -> str:
    """Spells settings of a message as flags: `--batch_size` for `batch_size`.

    Args:
        message: names settings in backquotes.
        settings: those that are flags.
        names: setting -> flag, where the names differ.
    """
    for setting in settings:
        message = message.replace(f"`{setting}`", f"--{names.get(setting, setting)}")
    return message


def show_names(names: Sequence[str]) -> str:
    """Returns the first names of a list and the number of others."""
    more = len(names) - _SHOWN_NAMES
    return ", ".join(names[:_SHOWN_NAMES]) + (f" and {more} more" if more > 0 else "")
