# SPDX-License-Identifier: Apache-2.0
"""The days of a dataset that grows: where the next one goes, and which files it may read."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from preproc.files.errors import PreprocError
from preproc.files.workspace import Workspace
from recsys.data.growing.days import day_folder, find_days, load_history
from recsys.data.manifest import MANIFEST_FILE

CHECKSUM = "xxh3_128"
"""Key of a source file in the manifest of a growing dataset: the checksum of the file."""


def next_day(folder: Path) -> tuple[Path, Path | None]:
    """Returns the folder of the next day, and that of the last one; None if there is none yet.

    Raises:
        PreprocError: the folder is a file or a dataset of its own.
    """
    fault = "is a file" if folder.is_file() else "is a dataset of its own"
    if folder.is_file() or (folder / MANIFEST_FILE).is_file():
        raise PreprocError(
            f"`extend` {folder}: {fault}; name a folder of days, which the first day makes",
            setting="extend",
            path=folder,
        )
    days = find_days(folder)
    last = max(days, default=-1)
    if days:
        Workspace(days[last], None).finish_publishing()
    return day_folder(folder, last + 1), days.get(last)


def history_of(folder: Path) -> list[dict[str, Any]]:
    """Returns the history for the manifest of the next day; empty for the first one.

    Raises:
        DatasetError: the days do not follow each other.
    """
    manifests = load_history(folder)
    if not manifests:
        return []
    number, manifest = max(manifests.items())
    sources = [file[CHECKSUM] for file in manifest.source_files if CHECKSUM in file]
    last = {
        "name": day_folder(folder, number).name,
        "fingerprint": manifest.fingerprint,
        "sources": sources,
    }
    return [*manifest.history, last]


def refuse_rules(last: Path, given: Iterable[str]) -> None:
    """Refuses settings that only the first day may set.

    Args:
        last: the last day.
        given: names of the settings.

    Raises:
        PreprocError: names them.
    """
    if names := sorted(given):
        raise PreprocError(
            f"`extend` {last.parent}: its first day set the rules; drop "
            + ", ".join(f"`{name}`" for name in names),
            settings=("extend", *names),
        )


def refuse_known(
    folder: Path, files: Mapping[Path, str], history: Sequence[Mapping[str, Any]]
) -> None:
    """Refuses files that an earlier day has read.

    Args:
        folder: the growing dataset.
        files: file -> checksum.
        history: see `history_of`.

    Raises:
        PreprocError: names the file and the day.
    """
    days = {checksum: day["name"] for day in history for checksum in day["sources"]}
    for path, checksum in files.items():
        if checksum in days:
            raise PreprocError(
                f"`input` {path}: is already part of `extend` {folder}, as {days[checksum]} (same "
                "checksum); give another day",
                settings=("input", "extend"),
                path=path,
            )
