# SPDX-License-Identifier: Apache-2.0
"""Models that need no training by steps, a file each, and the baselines that they are."""

import _triton_shadow  # noqa: F401  (before torch, see there)
