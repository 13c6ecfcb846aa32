# SPDX-License-Identifier: Apache-2.0
"""Raw logs to datasets on disk. Nothing here imports torch."""

import recsys  # noqa: F401  (first, see there)
