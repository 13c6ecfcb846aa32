# SPDX-License-Identifier: Apache-2.0
"""Compiled operations: models call `ops`, `reference` defines them."""

from typing import Literal

import _triton_shadow  # noqa: F401  (before torch, see there)

RowOptimizer = Literal["sgd", "rowwise_adagrad", "adagrad", "adam"]
"""Row optimizers by name; here, without torch, for flags. `row_rules` has their formulas."""
