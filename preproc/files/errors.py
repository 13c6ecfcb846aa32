# SPDX-License-Identifier: Apache-2.0
"""Errors of a preprocessing run."""

from recsys.errors import TOO_MANY_BAD_ROWS, UserError


class PreprocError(UserError):
    """An error that the user can fix: in the input, the settings or the machine."""


class TooManyRejectedRowsError(PreprocError):
    """More rows are rejected than --max_bad_fraction allows."""

    exit_code = TOO_MANY_BAD_ROWS


class KernelError(RuntimeError):
    """An error of the C++ kernel, with its message."""


class CancelledError(KernelError):
    """Work ended early because `Progress.cancel` was called."""
