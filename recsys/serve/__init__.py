# SPDX-License-Identifier: Apache-2.0
"""Deployment of checkpoints to Triton, its server and its client."""

import _triton_shadow  # noqa: F401  (before torch, see there)
import recsys.bounded_spin  # noqa: F401  (before torch, see there)
