# SPDX-License-Identifier: Apache-2.0
"""What models of ratings share: targets, ranks, metrics, lists and serving."""

import _triton_shadow  # noqa: F401  (before torch, see there)
