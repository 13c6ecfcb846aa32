# SPDX-License-Identifier: Apache-2.0
"""Errors of a run: those a user can cause, and those of the C++ kernel."""

from recsys.errors import UserError


class PreprocError(UserError):
    """Input, settings or machine do not allow the run; the message says what to do."""


class TooManyBadRowsError(PreprocError):
    """More rows break the grammar than --max_bad_fraction allows."""

    exit_code = 3


class KernelError(RuntimeError):
    """A call of the C++ kernel failed; the message is the kernel's."""


class CancelledError(KernelError):
    """Work ended early because `Progress.cancel` was called."""
