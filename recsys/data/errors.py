# SPDX-License-Identifier: Apache-2.0
"""The error that every reader of a dataset raises."""

from recsys.errors import UserError


class DatasetError(UserError):
    """A dataset on disk breaks its contract.

    The message says where, how, and what to do.
    """
