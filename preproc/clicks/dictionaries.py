# SPDX-License-Identifier: Apache-2.0
"""Dictionary files: the categories of each column, in id order."""

import dataclasses
import shutil
from pathlib import Path

import numpy as np
import numpy.typing as npt

from preproc.clicks.schema.row_format import NUM_CATEGORICAL
from preproc.files.workspace import atomic_file
from recsys.data.positioned_io import map_array

DICTIONARY_FOLDER = "dictionaries"
DICTIONARY_DTYPE = np.dtype("<u4")


@dataclasses.dataclass(frozen=True, slots=True)
class Dictionaries:
    """The dictionary files of all columns; a file that exists is complete.

    Attributes:
        folder: holds a file per column.
        key: hash of the input and settings they depend on; later stages depend on it.
        num_columns: columns of categories.
    """

    folder: Path
    key: str = ""
    num_columns: int = NUM_CATEGORICAL

    def path(self, column: int) -> Path:
        """Returns the file of a column: categories as uint32, from id 1."""
        return self.folder / f"cat_{column}.bin"

    @property
    def kept(self) -> tuple[int, ...]:
        """Number of categories of each column."""
        sizes = (self.path(c).stat().st_size for c in range(self.num_columns))
        return tuple(size // DICTIONARY_DTYPE.itemsize for size in sizes)

    @property
    def cardinalities(self) -> tuple[int, ...]:
        """Rows of each embedding table: the categories kept, and id 0."""
        return tuple(k + 1 for k in self.kept)

    def missing(self) -> list[int]:
        """Returns the columns that have no dictionary yet."""
        return [c for c in range(self.num_columns) if not self.path(c).exists()]

    def load(self) -> list[npt.NDArray[np.uint32]]:
        """Memory-maps the categories of each column, in id order."""
        return [self.load_column(column) for column in range(self.num_columns)]

    def load_column(self, column: int) -> npt.NDArray[np.uint32]:
        """Memory-maps the categories of a column, in id order."""
        return map_array(self.path(column), DICTIONARY_DTYPE)

    def save(self, column: int, categories: npt.NDArray[np.uint32]) -> None:
        """Writes the dictionary of a column."""
        with atomic_file(self.path(column)) as file:
            categories.astype(DICTIONARY_DTYPE, copy=False).tofile(file)

    def copy_to(self, dataset: Path) -> None:
        """Copies all files into a staged dataset."""
        target = dataset_dictionaries(dataset, self.num_columns)
        for column in range(self.num_columns):
            shutil.copyfile(self.path(column), target.path(column))


def dataset_dictionaries(dataset: Path, num_columns: int) -> Dictionaries:
    """Makes the folder for the dictionaries of a dataset."""
    folder = dataset / DICTIONARY_FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    return Dictionaries(folder, num_columns=num_columns)
