# SPDX-License-Identifier: Apache-2.0
"""Models that one call fits, one file each, including the baselines."""

import _triton_shadow  # noqa: F401  (before torch, see there)
