# SPDX-License-Identifier: Apache-2.0
"""The command `recsys-recipes`, which runs the programs of the other packages, and its Python API.

    import recsys_recipes as rr

`rr.clicks` and `rr.ratings` are imported on first use, because torch takes seconds.
"""

import importlib
from types import ModuleType

import _triton_shadow  # noqa: F401  (before torch: keeps triton/ from posing as the compiler)
from recsys import __version__

TYPE_CHECKING = False
if TYPE_CHECKING:
    from recsys_recipes import clicks, ratings

__all__ = ["__version__", "clicks", "ratings"]


def __getattr__(name: str) -> ModuleType:
    if name in ("clicks", "ratings"):
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
