# SPDX-License-Identifier: Apache-2.0
"""Measures the project's figures, beside its peers, and compares them over time."""

import _triton_shadow  # noqa: F401  (before torch, see there)
