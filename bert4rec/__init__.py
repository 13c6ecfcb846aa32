# SPDX-License-Identifier: Apache-2.0
"""BERT4Rec: next-item recommendation by bidirectional attention."""

import _triton_shadow  # noqa: F401  (before torch, see there)
import recsys.bounded_spin  # noqa: F401  (before torch, see there)
