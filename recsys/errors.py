# SPDX-License-Identifier: Apache-2.0
"""Errors that a user can cause; they are printed without a traceback.

A message names a setting in backquotes, as in "`batch_size` must be at least 1". Only a program
knows that the user gave the setting as a flag, and spells it as one: see `as_flags`. A key of a
file, named with its line, is not a setting, and is spelled as in the file.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

_SHOWN_NAMES = 5

FAILED, INPUT_REFUSED, TOO_MANY_BAD_ROWS, DIVERGED, INTERRUPTED = 1, 2, 3, 4, 130
"""Exit statuses of the programs other than 0; 1 is a check, a server or a process that failed."""

MORE_FILES = "raise the limit, ulimit -n"
_NO_MEMORY = (
    *("can't allocate memory", "Cannot allocate memory"),  # PyTorch: tensors, mapped files
    "can't start new thread",
    "failed to map segment",  # of a shared library that is imported
)
"""Parts of the messages of errors that have no type of their own."""


class UserError(ValueError):
    """Input, settings or the machine prevent the run.

    Args:
        message: says what is wrong and what to do.
        setting: the refused setting.
        settings: the settings that conflict, if there are several.
        path: the file at fault.
        line: line of the file, from 1.
        column: name of the column or feature at fault.

    Attributes:
        exit_code: exit status of the command line.
        settings: names of the settings at fault, possibly none.
        path: the file at fault, or None.
        line: line of the file, from 1, or None.
        column: name of the column or feature at fault, or None.
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
    """Training can no longer succeed.

    The message says why and what to try.
    """

    exit_code = DIVERGED


class ProcessLostError(RuntimeError):
    """Another process of the run has ended or hangs."""

    exit_code = FAILED


def is_out_of_memory(error: BaseException) -> bool:
    """Returns whether an error is a failed allocation of Python, NumPy or PyTorch.

    Threads and shared libraries need memory as well, and have no error type for the lack of it.
    """
    of_cuda = type(error).__name__ == "OutOfMemoryError"
    return isinstance(error, MemoryError) or of_cuda or any(t in str(error) for t in _NO_MEMORY)


def as_flags(
    message: str, settings: Iterable[str], names: Mapping[str, str] = MappingProxyType({})
) -> str:
    """Spells the settings in a message as flags: `--batch_size` for `batch_size`.

    Args:
        message: text with names of settings in backquotes.
        settings: names of the settings to spell as flags.
        names: setting -> name of its flag, if it differs.
    """
    for setting in settings:
        message = message.replace(f"`{setting}`", f"--{names.get(setting, setting)}")
    return message


def show_names(names: Sequence[str]) -> str:
    """Returns the first names of a list, and how many more there are."""
    more = len(names) - _SHOWN_NAMES
    return ", ".join(names[:_SHOWN_NAMES]) + (f" and {more} more" if more > 0 else "")
