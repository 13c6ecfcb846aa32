# SPDX-License-Identifier: Apache-2.0
"""Moves finished datasets to their folders; other files there are kept.

The finished folder is renamed to the output, or swapped with an earlier dataset, so that there is a
dataset at every moment. A folder that cannot be replaced (a mount point, a working directory) or
that holds other files is filled instead: the finished dataset is set aside first, and the files
that mark a folder as a dataset are moved last. If a run is killed, the next run resumes from there.
"""

import contextlib
import ctypes
import errno
import os
import re
import shutil
from collections.abc import Collection, Iterable
from pathlib import Path

from preproc.files.errors import PreprocError
from recsys.data.errors import DatasetError
from recsys.data.feature_spec import MODEL_SIZE_FILE, SPEC_FILE
from recsys.data.manifest import MANIFEST_FILE, Manifest
from recsys.files.durable import durable_rename, sync

MARKERS = (MODEL_SIZE_FILE, SPEC_FILE, MANIFEST_FILE)
"""Files that mark a folder as a dataset."""

WORK_INSIDE, STAGING_INSIDE = ".preproc-work", ".preproc-staging"
FOLDERS = ("train", "validation", "test", "dictionaries", "parquet", "npy", "sequences", "rows")

_COMPLETE, _OLD = "complete", "old"
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2
_KNOWN = re.compile(
    r"(parquet/)?(train|validation|test)/((label|numerical|cat_\d+)\.bin|part_\d+\.parquet|_metadata)"
    r"|npy/day_\d+_(dense|sparse|labels)\.npy"
    r"|dictionaries/cat_\d+\.bin|feature_spec\.yaml|(model_size|manifest)\.json|quarantine\.csv"
)
"""Names of the files of a dataset that has no manifest."""


def real_path(setting: str, path: Path) -> Path:
    """Resolves the symbolic links of a path.

    Raises:
        PreprocError: they form a loop, or a name is too long.
    """
    try:
        real = path.resolve()
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            real.stat()  # refuses long names, and loops from Python 3.13 on
    except (OSError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise PreprocError(
            f"`{setting}` {path}: cannot be resolved ({reason}), perhaps because of a loop of "
            "symbolic links; choose another name",
            setting=setting,
            path=path,
        ) from error
    return real


def work_folders(output: Path) -> tuple[Path, Path]:
    """Returns the work folder and the staging folder of an output.

    They are next to it. If it cannot be renamed or already contains them, they are inside it, with
    hidden names.
    """
    inside = output / WORK_INSIDE, output / STAGING_INSIDE
    if output.is_dir() and (
        any(folder.exists() for folder in inside)
        or output.samefile(os.curdir)
        or output == output.parent
        or str(output) in _mount_points()
        or not os.access(output.parent, os.W_OK | os.X_OK)
    ):
        return inside
    return output.with_name(f"{output.name}.work"), output.with_name(f"{output.name}.staging")


def _mount_points() -> set[str]:
    """Returns the mount points of this process, including bind mounts."""
    try:
        lines = Path("/proc/self/mountinfo").read_text(errors="surrogateescape").splitlines()
    except OSError:
        return set()
    escaped = re.compile(r"\\([0-7]{3})")
    return {escaped.sub(lambda m: chr(int(m[1], 8)), line.split()[4]) for line in lines}


def entries(output: Path) -> list[Path]:
    """Returns the contents of a folder, except hidden entries and lost+found."""
    try:
        paths = sorted(output.iterdir())
    except OSError as error:
        raise PreprocError(
            f"`output` {output}: cannot be listed ({error.strerror}); change its permissions, or "
            "choose another folder",
            setting="output",
        ) from error
    return [path for path in paths if path.name[0] != "." and path.name != "lost+found"]


def is_set_aside(staging: Path) -> bool:
    """Returns True if a killed run left a finished dataset half-moved."""
    return (staging / _COMPLETE).is_dir()


def replace_dataset(dataset: Path, output: Path, staging: Path) -> list[str]:
    """Moves a finished dataset to the output, replacing an earlier one.

    The dataset must be inside `staging`, synced, and on the output's file system. Returns the names
    of other files in the output, which are kept.
    """
    output.parent.mkdir(parents=True, exist_ok=True)
    others = other_files(output) if output.is_dir() else []
    if not output.exists():
        dataset.rename(output)
    elif (
        others
        or staging.parent == output
        or not any(output.iterdir())
        or not _exchange(dataset, output)
    ):
        durable_rename(dataset, staging / _COMPLETE)
        fill(output, staging)
    for folder in (output.parent, dataset.parent):
        sync(folder)
    return others


def fill(output: Path, staging: Path) -> None:
    """Moves the dataset that was set aside into the output, file by file."""
    complete, old = staging / _COMPLETE, staging / _OLD
    if not (complete / MANIFEST_FILE).exists():
        return  # the last file is already moved
    old.mkdir(exist_ok=True)
    if (output / MANIFEST_FILE).exists():
        (output / MANIFEST_FILE).replace(old / MANIFEST_FILE)
    left = _files(complete)
    new = {*Manifest.load(complete).files, MANIFEST_FILE}
    stale = _known_files(output, old) - (new - left)
    for name in sorted(stale & {*MARKERS}) + sorted(stale - new):
        (output / name).unlink(missing_ok=True)
    for folder in sorted({(output / name).parent for name in stale} - {output}, reverse=True):
        with contextlib.suppress(OSError):  # it may have other files, or be gone
            folder.rmdir()
            folder.parent.rmdir()
    for name in sorted(left, key=lambda name: MARKERS.index(name) if name in MARKERS else -1):
        (output / name).parent.mkdir(parents=True, exist_ok=True)
        if name == MANIFEST_FILE:  # moved last: if it is there, all files are
            for folder in {(output / name).parent for name in left} | {output}:
                sync(folder)
        _move(complete / name, output / name)
    sync(output)


def _move(source: Path, target: Path) -> None:
    try:
        source.replace(target)
    except OSError as error:
        if error.errno != errno.EXDEV:  # a folder of the output may be a mount or a link
            raise
        copy = target.with_name(target.name + ".tmp")
        shutil.copyfile(source, copy)
        durable_rename(copy, target)


def other_files(output: Path) -> list[str]:
    """Returns the files in a dataset's folder that do not belong to the dataset."""
    return sorted(_files(output) - _known_files(output, output))


def check_files(files: Iterable[Path], old: Collection[Path], *, overwrite: bool) -> None:
    """Refuses files that cannot be written, or would replace `old` files without `overwrite`.

    Raises:
        PreprocError: a file is refused.
    """
    present = sorted(path for path in old if path.exists())
    if present and not overwrite:
        raise PreprocError(
            f"{present[0]} exists; choose another `output` or give `overwrite` to replace it",
            settings=("output", "overwrite"),
        )
    for path in [*files, *present]:
        folder = path.parent
        real_path("output", folder)
        if (path.is_symlink() or path.exists()) and not path.is_file():
            raise PreprocError(
                f"`output`: {path} is not a regular file; name a new one", setting="output"
            )
        if (folder.is_symlink() or folder.exists()) and not folder.is_dir():
            raise PreprocError(
                f"`output`: {folder} is not a folder; choose another", setting="output"
            )


def _known_files(output: Path, manifest_folder: Path) -> set[str]:
    """Returns the files that the manifest lists, or that have names of dataset files."""
    names = _files(output)
    known = {name for name in names if _KNOWN.fullmatch(name)}
    with contextlib.suppress(DatasetError):
        known |= names & Manifest.load(manifest_folder).files.keys()
    return known


def _files(folder: Path) -> set[str]:
    """Returns the files and links below a folder, except those in work folders."""
    paths = (path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir())
    names = (path.relative_to(folder) for path in paths)
    return {n.as_posix() for n in names if n.parts[0] not in (WORK_INSIDE, STAGING_INSIDE)}


def _exchange(first: Path, second: Path) -> bool:
    """Swaps two folders atomically; returns False if the system cannot."""
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return False
    names = (ctypes.c_char_p(os.fsencode(first)), ctypes.c_char_p(os.fsencode(second)))
    return bool(
        renameat2(_AT_FDCWD, names[0], _AT_FDCWD, names[1], ctypes.c_uint(_RENAME_EXCHANGE)) == 0
    )
