# SPDX-License-Identifier: Apache-2.0
"""Models that one call fits, a file each, and the baselines among them."""

import _triton_shadow  # noqa: F401  (before torch, see there)
