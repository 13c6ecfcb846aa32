# SPDX-License-Identifier: Apache-2.0
"""The errors a user can cause; the command line prints them without a traceback."""


class PreprocError(ValueError):
    """Input, settings or machine do not allow the run; the message says what to do.

    Attributes:
        exit_code: exit status of the command line.
    """

    exit_code = 2


class TooManyBadRowsError(PreprocError):
    """More rows break the grammar than --max_bad_fraction allows."""

    exit_code = 3
