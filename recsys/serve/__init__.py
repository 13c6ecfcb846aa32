# SPDX-License-Identifier: Apache-2.0
"""From a checkpoint to a model repository of Triton."""

import _triton_shadow  # noqa: F401  (before torch, see there)
