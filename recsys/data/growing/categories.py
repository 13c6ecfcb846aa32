# SPDX-License-Identifier: Apache-2.0
"""The categories behind the ids of a dataset, as 64-bit numbers."""

import itertools
from pathlib import Path

import numpy as np
import numpy.typing as npt
import xxhash

from recsys.data.errors import DatasetError
from recsys.data.positioned_io import map_array

DICTIONARY_FOLDER = "dictionaries"
OCCURRENCES = np.dtype("<u8")
"""Type of the numbers in `occurrences_path`."""
REUSED = np.dtype("<u4")
"""Type of the ids in `reused_path`."""


def occurrences_path(folder: Path, feature: int) -> Path:
    """Returns the file with the last day and the occurrences of each category: [ids - 1, 2].

    It exists if ids are reused. Days are counted from 0, occurrences since the category got its id.

    Args:
        folder: folder of the dictionaries.
        feature: number of the categorical feature.
    """
    return folder / f"seen_{feature}.bin"


def reused_path(folder: Path, feature: int) -> Path:
    """Returns the file with the ids that a day took from categories and gave to others.

    Args:
        folder: folder of the dictionaries.
        feature: number of the categorical feature.
    """
    return folder / f"reused_{feature}.bin"


def reused_ids(dataset: Path, feature: int) -> npt.NDArray[np.int64]:
    """Returns the ids that a day took from categories and gave to others, in ascending order."""
    path = reused_path(dataset / DICTIONARY_FOLDER, feature)
    if not path.exists():
        return np.empty(0, np.int64)
    return map_array(path, REUSED).astype(np.int64)


def category_numbers(dataset: Path, feature: int, ids: int) -> npt.NDArray[np.uint64]:
    """Returns a number for each category of a feature, which does not depend on its id.

    A number is itself, in two's complement; a text is its XXH64. Two texts have the same number
    with a probability of 2**-64.

    Args:
        dataset: folder with dictionaries; docs/dataset_format.md describes them.
        feature: number of the categorical feature.
        ids: rows of the feature's table, including id 0.

    Returns:
        [ids - 1], in id order from 1.

    Raises:
        DatasetError: the dictionary is missing or has another number of categories.
    """
    folder = dataset / DICTIONARY_FOLDER
    path, ends_path = folder / f"cat_{feature}.bin", folder / f"cat_{feature}.ends.bin"
    count = ids - 1
    try:
        if ends_path.is_file():
            ends = map_array(ends_path, np.dtype("<u8"))
            texts = map_array(path, np.dtype("u1"))
            found = len(ends)
            numbers = [
                xxhash.xxh64_intdigest(texts[begin:end].data)
                for begin, end in itertools.pairwise([0, *ends.tolist()])
            ]
            made = np.array(numbers, np.uint64)
        else:
            width = path.stat().st_size // max(count, 1)
            dtype = np.dtype("<i8") if width == np.dtype("<i8").itemsize else np.dtype("<u4")
            made = map_array(path, dtype).astype(np.uint64)
            found = len(made)
    except OSError as error:
        raise DatasetError(
            f"{path}: cannot be read ({error.strerror}); get the dataset again", path=path
        ) from error
    if found != count:
        raise DatasetError(
            f"{path}: has {found} categories, but the spec {count}; get the dataset again",
            path=path,
        )
    return made
