# SPDX-License-Identifier: Apache-2.0
"""The error that all readers of datasets raise."""

from recsys.errors import UserError


class DatasetError(UserError):
    """A dataset on disk violates its format.

    The message names the file, the fault and a remedy.
    """
