# SPDX-License-Identifier: Apache-2.0
"""Standard input and URLs, copied to disk before a run."""

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from preproc.files.errors import PreprocError
from preproc.files.progress import Progress, ProgressReporter
from preproc.files.raw.parts import is_part
from preproc.files.workspace import atomic_file, settings_key
from recsys.sizes import format_bytes

STANDARD_INPUT = "-"

_BLOCK_BYTES = 2**22


def is_remote(source: str) -> bool:
    """Returns True for standard input and URLs, which `local_copy` copies."""
    return source == STANDARD_INPUT or "://" in source


def local_copy(
    source: str, folder: Path, reporter: ProgressReporter, files: Sequence[str] = ()
) -> Path:
    """Copies standard input or the files of a URL into a folder.

    Files that were copied before and have not changed at the source are not copied again.

    Args:
        source: `-`, or a URL that fsspec supports, such as s3://bucket/log.csv.gz.
        folder: created if missing; the caller removes it.
        files: files to copy from a folder; empty for all its parts.

    Returns:
        The path of the copy.

    Raises:
        PreprocError: the source cannot be read, or does not fit on the disk.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if source == STANDARD_INPUT:
        target = folder / "standard_input"
        _copy(sys.stdin.buffer, target, 0, reporter)
        return target
    try:
        import fsspec

        system, path = fsspec.url_to_fs(source)
        is_folder = system.isdir(path)
        names = {Path(path).name: path}
        if is_folder and files:
            names = {name: f"{path}/{name}" for name in files}
        elif is_folder:
            found = {Path(name).name: name for name in sorted(system.ls(path, detail=False))}
            names = {name: found[name] for name in found if is_part(name)}
        folders = [name for name in names if system.isdir(names[name])]
        sizes = {n: system.info(names[n]).get("size") or 0 for n in names if n not in folders}
        copy = folder / settings_key([source, {n: system.ukey(names[n]) for n in sizes}])
        copy.mkdir(exist_ok=True)
        for name in folders:  # the reader then refuses or skips them, as in a local folder
            (copy / name).mkdir(parents=True, exist_ok=True)
        missing = {name: size for name, size in sizes.items() if not (copy / name).exists()}
        needed, free = sum(missing.values()), shutil.disk_usage(copy).free
        if needed > free:
            raise PreprocError(
                f"{folder}: copying {source} there needs {format_bytes(needed)}, but only "
                f"{format_bytes(free)} are free; make room"
            )
        for name, size in missing.items():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            with system.open(names[name], "rb") as file:
                _copy(file, copy / name, size, reporter)
    except PreprocError:
        raise
    except Exception as error:  # each file system has its own errors
        remedy = (
            "install it in the environment of this program"
            if isinstance(error, ImportError)
            else "check the URL and your access to it"
        )
        raise PreprocError(
            f"`input` {source}: cannot be read ({type(error).__name__}: {error}); {remedy}",
            setting="input",
        ) from error
    return copy if is_folder else copy / Path(path).name


def _copy(file: IO[bytes], target: Path, size: int, reporter: ProgressReporter) -> None:
    progress = Progress()
    with reporter.stage("copy", size, progress.counters), atomic_file(target) as copy:
        while block := file.read(_BLOCK_BYTES):
            copy.write(block)
            progress.bytes += len(block)
