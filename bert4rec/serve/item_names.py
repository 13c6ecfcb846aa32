# SPDX-License-Identifier: Apache-2.0
"""Raw ids of items, as the ratings had them, beside a deployed model."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt

from recsys.serve.deployment import DeploymentError

RAW_IDS_FILE = "raw_ids.json"


class ItemNames:
    """Raw ids and item numbers, either way.

    Args:
        raw_ids: of the items 1, 2, ...
    """

    def __init__(self, raw_ids: Sequence[str]) -> None:
        self._raw_ids = list(raw_ids)
        # An empty string stands for nothing, as the number 0 does.
        self._names = np.array([b"", *(name.encode() for name in raw_ids)], np.object_)
        self._numbers = {name: number for number, name in enumerate(self._names)}

    def __len__(self) -> int:
        return len(self._raw_ids)

    def save(self, folder: Path) -> None:
        """Writes the raw ids into the folder of a version."""
        (folder / RAW_IDS_FILE).write_text(json.dumps(self._raw_ids) + "\n")

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Reads the raw ids of a version.

        Raises:
            DeploymentError: the file is missing or damaged.
        """
        file = folder / RAW_IDS_FILE
        try:
            raw_ids = json.loads(file.read_text())
        except (OSError, ValueError) as error:
            raise DeploymentError(
                f"{file}: not readable: {error}; deploy the checkpoint again"
            ) from error
        if not isinstance(raw_ids, list) or not all(isinstance(name, str) for name in raw_ids):
            raise DeploymentError(f"{file}: expected a list of strings; deploy again")
        return cls(raw_ids)

    def numbers(self, names: npt.NDArray[np.object_]) -> npt.NDArray[np.int64]:
        """Maps raw ids (UTF-8 bytes, any shape) to item numbers, -1 where there is no such item."""
        found = [self._numbers.get(name, -1) for name in names.flat]
        return np.array(found, np.int64).reshape(names.shape)

    def names(self, numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.object_]:
        """Maps item numbers to raw ids, 0 to an empty string."""
        found: npt.NDArray[np.object_] = self._names[numbers]
        return found
