# SPDX-License-Identifier: Apache-2.0
"""Compiled operations: models call `ops`, `reference` defines them."""

from typing import Literal

import _triton_shadow  # noqa: F401  (before torch, see there)

RowOptimizer = Literal["sgd", "rowwise_adagrad", "adagrad", "adam"]
"""Names of the row optimizers, here so that flags need not import torch. Formulas: `row_rules`."""
