# SPDX-License-Identifier: Apache-2.0
"""DLRM: click-through rate from numerical and categorical features (Naumov et al. 2019)."""

import _triton_shadow  # noqa: F401  (before torch, see there)
import recsys.bounded_spin  # noqa: F401  (before torch, see there)
