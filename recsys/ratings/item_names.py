# SPDX-License-Identifier: Apache-2.0
"""Raw ids and titles of the items of a deployed model."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt

from recsys.files.json_text import parse_json
from recsys.serve.manifest import DeploymentError

RAW_IDS_FILE = "raw_ids.json"
TITLES_FILE = "titles.json"


class ItemNames:
    """Maps raw ids to item numbers and back, and numbers to titles.

    Args:
        raw_ids: raw ids of the items 1, 2, ...
        titles: titles of the items, empty for an item without one; None if answers hold no titles.
    """

    def __init__(self, raw_ids: list[str], titles: list[str] | None = None) -> None:
        self._raw_ids, self._titles = raw_ids, titles
        self._names = _encoded(raw_ids)
        self._titles_by_number = None if titles is None else _encoded(titles)
        self._numbers = {name: number for number, name in enumerate(self._names)}

    def __len__(self) -> int:
        return len(self._raw_ids)

    def save(self, folder: Path) -> None:
        """Writes raw ids and titles to the folder of a version."""
        (folder / RAW_IDS_FILE).write_text(json.dumps(self._raw_ids) + "\n")
        if self._titles is not None:
            (folder / TITLES_FILE).write_text(json.dumps(self._titles) + "\n")

    @classmethod
    def load(cls, folder: Path, *, with_titles: bool = False) -> Self:
        """Reads the raw ids of a version, and its titles if asked for.

        Raises:
            DeploymentError: a file is missing or damaged.
        """
        raw_ids = _read_strings(folder / RAW_IDS_FILE)
        titles = _read_strings(folder / TITLES_FILE) if with_titles else None
        if titles is not None and len(titles) != len(raw_ids):
            raise DeploymentError(
                f"{folder / TITLES_FILE}: {len(titles)} titles for {len(raw_ids)} items; deploy "
                "the checkpoint again"
            )
        return cls(raw_ids, titles)

    @property
    def has_titles(self) -> bool:
        """Whether answers hold titles."""
        return self._titles is not None

    def numbers(self, names: npt.NDArray[np.object_]) -> npt.NDArray[np.int64]:
        """Maps raw ids (UTF-8 bytes) to item numbers; unknown ids map to -1."""
        numbers = [self._numbers.get(name, -1) for name in names.flat]
        return np.array(numbers, np.int64).reshape(names.shape)

    def names(self, numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.object_]:
        """Maps item numbers to raw ids; 0 maps to an empty string."""
        names: npt.NDArray[np.object_] = self._names[numbers]
        return names

    def titles(self, numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.object_]:
        """Maps item numbers to titles; items without a title map to an empty string."""
        assert self._titles_by_number is not None
        titles: npt.NDArray[np.object_] = self._titles_by_number[numbers]
        return titles


def _encoded(texts: Sequence[str]) -> npt.NDArray[np.object_]:
    """Returns [I + 1] UTF-8 bytes by item number; 0 is padding."""
    return np.array([b"", *(text.encode() for text in texts)], np.object_)


def _read_strings(file: Path) -> list[str]:
    try:
        texts = parse_json(file.read_text())
    except (OSError, ValueError) as error:
        raise DeploymentError(
            f"{file}: not readable: {error}; deploy the checkpoint again", path=file
        ) from error
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise DeploymentError(f"{file}: expected a list of strings; deploy again", path=file)
    return texts
