# SPDX-License-Identifier: Apache-2.0
"""The errors a user can cause; the command line prints them without a traceback."""

from recsys.errors import UserError


class PreprocError(UserError):
    """Input, settings or machine do not allow the run; the message says what to do."""


class TooManyBadRowsError(PreprocError):
    """More rows break the grammar than --max_bad_fraction allows."""

    exit_code = 3
