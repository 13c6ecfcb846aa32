# SPDX-License-Identifier: Apache-2.0
"""Training of any model: loop, schedule, precision, optimizers, checkpoints."""

import _triton_shadow  # noqa: F401  (before torch, see there)
import recsys.bounded_spin  # (before torch, see there)
import recsys.train.launcher  # noqa: F401  (before torch, whose import takes seconds)
