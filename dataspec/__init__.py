# SPDX-License-Identifier: Apache-2.0
"""The earlier name of `recsys.data`, kept for `python -m dataspec.verify`."""

import recsys  # noqa: F401  (first, see there)
