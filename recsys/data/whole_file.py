# SPDX-License-Identifier: Apache-2.0
"""A file that appears under its name when it is complete."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from recsys.durable import durable_rename


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """Opens a file to write; renames it into place at the end.

    Nothing is left of it after an error. A device or pipe of that name is written to.
    """
    if path.exists() and not (path.is_file() or path.is_dir()):
        with path.open("wb") as device:
            yield device
        return
    temporary = path.with_name(path.name + ".tmp")
    try:
        with temporary.open("wb") as file:
            yield file
        durable_rename(temporary, path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename is None:
            error.filename = str(path)  # a write that fails does not name its file
        raise


def write_whole_file(path: Path, text: str) -> None:
    """Writes a text file, which gets its name when it is complete."""
    with whole_file(path) as file:
        file.write(text.encode())
