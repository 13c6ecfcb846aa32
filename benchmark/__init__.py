# SPDX-License-Identifier: Apache-2.0
"""Benchmarks and demos: speed, memory and quality, compared with other software."""

import _triton_shadow  # noqa: F401  (before torch, see there)
import recsys  # noqa: F401  (first, see there)
