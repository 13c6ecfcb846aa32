# SPDX-License-Identifier: Apache-2.0
"""Folders whose files together form one log, as Spark and other programs write them."""

from collections.abc import Sequence
from pathlib import Path

from preproc.files.errors import PreprocError
from recsys.errors import show_names
from recsys.files.order import by_number


def is_part(name: str) -> bool:
    """Returns False for markers, checksums and leftovers (_SUCCESS, .x.crc, _temporary)."""
    return not name.startswith((".", "_")) and not name.endswith(".crc")


def parts_of(folder: Path) -> list[Path]:
    """Returns the parts of a folder, in the order of their names.

    Raises:
        PreprocError: it cannot be listed, has no part, or contains folders.
    """
    try:
        paths = sorted(folder.iterdir(), key=lambda path: by_number(path.name))
    except OSError as error:
        raise PreprocError(
            f"`input` {folder}: cannot be listed ({error.strerror})", setting="input"
        ) from error
    parts = [path for path in paths if is_part(path.name)]
    _refuse_folders(folder, [path.name for path in parts if path.is_dir()])
    if not parts:
        rule = "names that begin with . or _ are skipped" if paths else "give the folder of the log"
        raise PreprocError(f"`input` {folder}: has no log file; {rule}", setting="input")
    return parts


def _refuse_folders(folder: Path, names: Sequence[str]) -> None:
    if not names:
        return
    columns = dict.fromkeys(name.partition("=")[0] for name in names if "=" in name)
    remedy = "move their files up, or give one of them as `input`"
    if columns:
        remedy = (
            f"the values of {', '.join(columns)} are in their names, not in the rows; write the "
            "log without partitions, or give one of them as `input`"
        )
    raise PreprocError(
        f"`input` {folder}: contains folders ({show_names(names)}), but only files of one folder "
        f"are read; {remedy}",
        setting="input",
    )


def files_text(folder: Path, parts: Sequence[Path], num_empty: int = 0) -> str:
    """Returns a line that names the files that are read, and counts or names the others."""
    paths = (path.relative_to(folder) if path.is_relative_to(folder) else path for path in parts)
    names = [path.as_posix() for path in paths]
    files = f"1 file, {names[0]}"
    if len(names) > 1:
        files = f"{len(names):,} files, from {names[0]} to {names[-1]}"
    empty = f"; {num_empty:,} without rows" if num_empty else ""
    skipped = sorted(path.name for path in folder.iterdir() if not is_part(path.name))
    left_out = f"; skipped: {show_names(skipped)}" if skipped else ""
    return f"{folder}: {files}{empty}{left_out}"
