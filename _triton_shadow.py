# SPDX-License-Identifier: Apache-2.0
"""Keeps this repository's `triton/` folder from posing as the Triton compiler.

On a CPU build of torch (no compiler installed) a folder named `triton` on the path makes `import
triton` succeed as an empty namespace package, and optimizers, `torch.compile`, `torch.export` and
DDP then fail with "module 'triton' has no attribute 'language'". After this import, Python does not
find such a folder; a package with an `__init__.py`, as the real compiler is, it does.

`make setup` and `pip install -e .` import this whenever Python starts, by a `.pth` file. Programs
import it before torch for environments that run from this folder without an installation.
"""

import sys
from importlib.machinery import (
    BYTECODE_SUFFIXES,
    EXTENSION_SUFFIXES,
    SOURCE_SUFFIXES,
    ExtensionFileLoader,
    FileFinder,
    ModuleSpec,
    SourceFileLoader,
    SourcelessFileLoader,
)
from os import path
from types import ModuleType


class _FinderWithoutTriton(FileFinder):
    """Finds the modules of a folder, except `triton`."""

    def find_spec(self, fullname: str, target: ModuleType | None = None) -> ModuleSpec | None:
        """Returns where a module is; None if it is not here."""
        return None if fullname == "triton" else super().find_spec(fullname, target)


def _poses(folder: str) -> bool:
    triton = path.join(folder, "triton")
    return path.isdir(triton) and not path.exists(path.join(triton, "__init__.py"))


def _finder(folder: str) -> _FinderWithoutTriton:
    if not _poses(folder):
        raise ImportError(f"{folder} holds no folder of that kind")
    return _FinderWithoutTriton(
        folder,
        (ExtensionFileLoader, EXTENSION_SUFFIXES),
        (SourceFileLoader, SOURCE_SUFFIXES),
        (SourcelessFileLoader, BYTECODE_SUFFIXES),
    )


sys.path_hooks.insert(0, _finder)
for _folder in filter(_poses, list(sys.path_importer_cache)):
    del sys.path_importer_cache[_folder]
