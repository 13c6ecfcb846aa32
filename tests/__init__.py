# SPDX-License-Identifier: Apache-2.0
"""Tests; processes that they start import this first, before torch."""

import _triton_shadow  # noqa: F401  (see there)
