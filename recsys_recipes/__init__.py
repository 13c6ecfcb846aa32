# SPDX-License-Identifier: Apache-2.0
"""The command `recsys-recipes`, over the programs of the other packages."""

import _triton_shadow  # noqa: F401  (before torch: keeps triton/ from posing as the compiler)

__version__ = "0.1.0"
