# SPDX-License-Identifier: Apache-2.0
"""The command `recsys-recipes`, over the programs of the other packages."""

import _triton_shadow  # noqa: F401  (before torch: keeps triton/ from posing as the compiler)
from recsys import __version__

__all__ = ["__version__"]
