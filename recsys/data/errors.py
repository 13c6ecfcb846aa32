# SPDX-License-Identifier: Apache-2.0
"""The error that every reader of a dataset raises."""

from recsys.errors import UserError


class DatasetError(UserError):
    """A dataset on disk breaks the rules of its format.

    The message names the file, the fault and a remedy.
    """
