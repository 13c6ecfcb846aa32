# SPDX-License-Identifier: Apache-2.0
"""Errors a user can cause, printed without a traceback."""

INPUT_REFUSED, DIVERGED, INTERRUPTED = 2, 4, 130
"""Exit statuses of the programs, besides 0 and those that an error class gives itself."""


class UserError(ValueError):
    """Input, settings or machine prevent the run.

    The message says what to do.

    Attributes:
        exit_code: exit status of the command line.
    """

    exit_code = INPUT_REFUSED


class DivergenceError(RuntimeError):
    """Training cannot succeed any more.

    The message says why and what to try.
    """

    exit_code = DIVERGED
