# SPDX-License-Identifier: Apache-2.0
"""What every training run does, whatever the model."""

import _triton_shadow  # noqa: F401  (before torch, see there)
