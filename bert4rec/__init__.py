# SPDX-License-Identifier: Apache-2.0
"""BERT4Rec: the next item of a user's sequence, by bidirectional attention over its history."""

import _triton_shadow  # noqa: F401  (before torch, see there)
