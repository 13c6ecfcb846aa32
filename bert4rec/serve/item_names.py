# SPDX-License-Identifier: Apache-2.0
"""Raw ids of the items of a deployed model."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt

from recsys.serve.deployment import DeploymentError

RAW_IDS_FILE = "raw_ids.json"


class ItemNames:
    """Maps raw ids to item numbers and back.

    Args:
        raw_ids: raw ids of the items 1, 2, ...
    """

    def __init__(self, raw_ids: Sequence[str]) -> None:
        self._raw_ids = list(raw_ids)
        # An empty string is padding, as the number 0 is.
        self._names = np.array([b"", *(name.encode() for name in raw_ids)], np.object_)
        self._numbers = {name: number for number, name in enumerate(self._names)}

    def __len__(self) -> int:
        return len(self._raw_ids)

    def save(self, folder: Path) -> None:
        """Writes the raw ids to the folder of a version."""
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
        except (OSError, ValueError, RecursionError) as error:
            raise DeploymentError(
                f"{file}: not readable: {error}; deploy the checkpoint again"
            ) from error
        if not isinstance(raw_ids, list) or not all(isinstance(name, str) for name in raw_ids):
            raise DeploymentError(f"{file}: expected a list of strings; deploy again")
        return cls(raw_ids)

    def numbers(self, names: npt.NDArray[np.object_]) -> npt.NDArray[np.int64]:
        """Maps raw ids (UTF-8 bytes) to item numbers, unknown ones to -1."""
        numbers = [self._numbers.get(name, -1) for name in names.flat]
        return np.array(numbers, np.int64).reshape(names.shape)

    def names(self, numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.object_]:
        """Maps item numbers to raw ids, 0 to an empty string."""
        names: npt.NDArray[np.object_] = self._names[numbers]
        return names
