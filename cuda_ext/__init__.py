# SPDX-License-Identifier: Apache-2.0
"""Operations behind DLRM's speed: `ops` is what models call, `reference` defines each op."""

import _triton_shadow  # noqa: F401  (before torch, see there)
