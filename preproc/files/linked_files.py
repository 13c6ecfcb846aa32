# SPDX-License-Identifier: Apache-2.0
"""Folders that share files."""

import os
import shutil
from collections.abc import Collection
from pathlib import Path


def link_files(source: Path, target: Path, but: Collection[str]) -> None:
    """Puts the files below `source` at the same places below `target`.

    Bytes are not copied where the file system has hard links; what is there already is replaced.

    Args:
        source: folder.
        target: folder, made if it is not there.
        but: names of folders and files, at any depth, that are left out.
    """
    target.mkdir(parents=True, exist_ok=True)
    for path in source.rglob("*"):
        name = path.relative_to(source)
        if not path.is_file() or any(part in but for part in name.parts):
            continue
        place = target / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.unlink(missing_ok=True)
        try:
            os.link(path, place)
        except OSError:
            shutil.copyfile(path, place)
