# SPDX-License-Identifier: Apache-2.0
"""Compiled operations: models call `ops`, `reference` defines them."""

import _triton_shadow  # noqa: F401  (before torch, see there)
