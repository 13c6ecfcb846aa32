# SPDX-License-Identifier: Apache-2.0
"""A dataset that grows by a day: a folder with one dataset per day, `day_0000`, `day_0001`, ...

Ids never move: each day has the ids of the day before, and its new ones follow. The manifest of a
day lists the days before it.
"""

import itertools
import re
from pathlib import Path

from recsys.data.errors import DatasetError
from recsys.data.manifest import MANIFEST_FILE, Manifest

_DAY = re.compile(r"day_([0-9]{4,})")


def day_folder(root: Path, number: int) -> Path:
    """Returns the folder of a day, counted from 0."""
    return root / f"day_{number:04d}"


def find_days(root: Path) -> dict[int, Path]:
    """Returns number -> folder of the days that are complete, in order; empty without any."""
    if not root.is_dir():
        return {}
    found = {
        int(match[1]): path
        for path in root.iterdir()
        if (match := _DAY.fullmatch(path.name)) and (path / MANIFEST_FILE).is_file()
    }
    return dict(sorted(found.items()))


def open_days(root: Path, setting: str) -> dict[int, Manifest]:
    """Returns number -> manifest of all days, in order, at least one.

    Args:
        root: folder of the days.
        setting: setting that names the folder, for messages.

    Raises:
        DatasetError: there is none, or see `load_history`.
    """
    if days := load_history(root):
        return days
    fault = "has no day_0000 ...; `recsys-recipes prepare` makes it with `extend`"
    if (root / MANIFEST_FILE).is_file():
        fault = "is one dataset, not a folder of days; name the folder that contains day_0000"
    raise DatasetError(f"`{setting}` {root}: {fault}", settings=(setting, "grow"), path=root)


def load_history(root: Path) -> dict[int, Manifest]:
    """Returns number -> manifest of all days, in order.

    Raises:
        DatasetError: a day is missing between two others, or does not continue the day before it.
    """
    manifests = {number: Manifest.load(path) for number, path in find_days(root).items()}
    numbers = list(manifests)
    for before, number in itertools.pairwise(numbers):
        path = day_folder(root, number)
        if number != before + 1:
            raise DatasetError(
                f"{root}: has day {before} and day {number}, but no day between them; restore "
                f"{day_folder(root, before + 1).name}, or remove the days before {path.name}",
                path=root,
            )
        last = manifests[number].history[-1:]
        if [day["fingerprint"] for day in last] != [manifests[before].fingerprint]:
            raise DatasetError(
                f"{path}: does not continue {day_folder(root, before).name}: its manifest names "
                "another dataset as the day before it; prepare the days again",
                path=path,
            )
    return manifests
