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

    Nothing is left of it after an error.
    """
    temporary = path.with_name(path.name + ".tmp")
    try:
        with temporary.open("wb") as file:
            yield file
        durable_rename(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_whole_file(path: Path, text: str) -> None:
    """Writes a text file, which gets its name when it is complete."""
    with whole_file(path) as file:
        file.write(text.encode())
