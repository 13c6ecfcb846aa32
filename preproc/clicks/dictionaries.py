# SPDX-License-Identifier: Apache-2.0
"""Dictionary files: the categories of each column, in id order."""

import dataclasses
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from preproc.clicks.schema.row_format import KeyType
from preproc.files.errors import PreprocError
from preproc.files.workspace import atomic_file
from recsys.data.growing.categories import DICTIONARY_FOLDER, reused_path
from recsys.data.positioned_io import map_array

RARE = "rare_"
"""Start of the names of files with the counts of rare categories."""
_DTYPES: dict[KeyType, npt.DTypeLike] = {"uint32": "<u4", "int64": "<i8", "text": "u1"}
_END = np.dtype("<u8")


@dataclasses.dataclass(frozen=True, slots=True)
class Keys:
    """Categories of a column, in id order from 1.

    Attributes:
        type: type of the categories.
        values: [n] uint32 or int64, or the bytes of all texts.
        ends: [n] uint64, where each text ends; only for texts.
    """

    type: KeyType
    values: npt.NDArray[Any]
    ends: npt.NDArray[np.uint64] | None = None

    @classmethod
    def of(cls, key_type: KeyType, keys: "Sequence[int | bytes] | npt.NDArray[Any]") -> Self:
        """Builds keys from numbers or texts."""
        if key_type != "text":
            return cls(key_type, np.asarray(keys, _DTYPES[key_type]))
        texts = [bytes(key) for key in keys]
        ends = np.cumsum([len(text) for text in texts], dtype=_END)
        return cls(key_type, np.frombuffer(b"".join(texts), np.uint8), ends)

    def taken(self, places: npt.NDArray[np.int64]) -> Self:
        """Returns the categories at the given places, in their order."""
        if self.ends is None:
            return dataclasses.replace(self, values=self.values[places])
        ends = self.ends.astype(np.int64)
        begins = np.concatenate([[0], ends[:-1]])[places]
        lengths = ends[places] - begins
        new_ends = np.cumsum(lengths)
        at = np.repeat(begins - (new_ends - lengths), lengths) + np.arange(lengths.sum())
        return dataclasses.replace(self, values=self.values[at], ends=new_ends.astype(_END))

    def with_reused_ids(self, num_known: int, places: npt.NDArray[np.int64]) -> Self:
        """Moves the first new categories to places of known ones, which they replace.

        Args:
            num_known: number of known categories, which the new ones follow.
            places: [n] id - 1 of each known category to replace, ascending.
        """
        moved = num_known + np.arange(len(places))
        order = np.arange(len(self))
        order[places] = moved
        return self.taken(np.delete(order, moved))

    def __len__(self) -> int:
        return len(self.values if self.ends is None else self.ends)

    def __iter__(self) -> "Iterator[int | bytes]":
        """Yields numbers or texts."""
        if self.ends is None:
            yield from self.values.tolist()
            return
        begin = 0
        for end in self.ends.tolist():
            yield self.values[begin:end].tobytes()
            begin = end

    def __getitem__(self, place: int) -> "int | bytes":
        """Returns the category of id `place` + 1."""
        if self.ends is None:
            return int(self.values[place])
        begin = self.ends[place - 1] if place else 0
        return self.values[begin : self.ends[place]].tobytes()

    def __contains__(self, key: object) -> bool:
        """Returns True if a category has an id."""
        return any(key == own for own in self) if self.ends is not None else key in self.values


@dataclasses.dataclass(frozen=True, slots=True)
class Dictionaries:
    """The dictionary files of all columns; a file that exists is complete.

    Attributes:
        folder: holds one file per column, or two for a column of texts.
        key_types: type of each column's categories.
        key: hash of the input and settings that they depend on; part of the key of later stages.
        has_counts: whether the counts of rare categories are kept, so that a later day adds to
            them; see `preproc.clicks.growth.rare_counts`.
        has_reused: whether the ids that this day took from other categories are listed; see
            `preproc.clicks.growth.eviction`.
    """

    folder: Path
    key_types: tuple[KeyType, ...]
    key: str = ""
    has_counts: bool = False
    has_reused: bool = False

    def path(self, column: int) -> Path:
        """Returns the file with the numbers or texts of a column."""
        return self.folder / f"cat_{column}.bin"

    def ends_path(self, column: int) -> Path:
        """Returns the file with the ends (uint64) of a column's texts."""
        return self.folder / f"cat_{column}.ends.bin"

    def counts_path(self, column: int) -> Path:
        """Returns the file with the counts of a column's rare categories."""
        return self.folder / f"{RARE}{column}.bin"

    def reused_path(self, column: int) -> Path:
        """Returns the file with the ids that this day took from other categories of a column."""
        return reused_path(self.folder, column)

    def paths(self, column: int) -> list[Path]:
        """Returns the files of a column; the last one marks it as complete."""
        counts = [self.counts_path(column)] if self.has_counts else []
        counts += [self.reused_path(column)] if self.has_reused else []
        ends = [self.ends_path(column)] if self.key_types[column] == "text" else []
        return [*counts, *ends, self.path(column)]

    @property
    def kept(self) -> tuple[int, ...]:
        """Number of categories of each column."""
        return tuple(
            self.ends_path(column).stat().st_size // _END.itemsize
            if key_type == "text"
            else self.path(column).stat().st_size // np.dtype(_DTYPES[key_type]).itemsize
            for column, key_type in enumerate(self.key_types)
        )

    @property
    def cardinalities(self) -> tuple[int, ...]:
        """Rows of each embedding table: the kept categories, and id 0."""
        return tuple(k + 1 for k in self.kept)

    def missing(self) -> list[int]:
        """Returns the columns that have no dictionary yet."""
        return [c for c in range(len(self.key_types)) if not self.path(c).exists()]

    def load(self) -> list[Keys]:
        """Memory-maps the categories of each column, in id order."""
        return [self.load_column(column) for column in range(len(self.key_types))]

    def load_column(self, column: int) -> Keys:
        """Memory-maps the categories of a column, in id order.

        Raises:
            PreprocError: a file cannot be read, or is not a dictionary.
        """
        path, key_type, ends = self.path(column), self.key_types[column], None
        try:
            values = map_array(path, np.dtype(_DTYPES[key_type]))
            if key_type == "text":
                ends = map_array(self.ends_path(column), _END)
        except OSError as error:
            raise PreprocError(
                f"{error.filename}: cannot be read as a dictionary ({error.strerror}); get the "
                "dataset again",
                path=path,
            ) from error
        if ends is not None and (ends[-1:].sum() != len(values) or np.any(ends[1:] < ends[:-1])):
            raise PreprocError(
                f"{self.ends_path(column)}: its ends of texts do not fit {path}; get the dataset "
                "again",
                path=self.ends_path(column),
            )
        return Keys(key_type, values, ends)

    def save(self, column: int, keys: Keys) -> None:
        """Writes the dictionary of a column."""
        arrays = {self.path(column): keys.values}
        if keys.ends is not None:
            arrays = {self.ends_path(column): keys.ends} | arrays
        for path, values in arrays.items():
            with atomic_file(path) as file:
                values.tofile(file)

    def copy_to(self, dataset: Path) -> None:
        """Copies all files into a staged dataset."""
        target = dataclasses.replace(self, folder=dataset / DICTIONARY_FOLDER)
        target.folder.mkdir(parents=True, exist_ok=True)
        for column in range(len(self.key_types)):
            for source, path in zip(self.paths(column), target.paths(column), strict=True):
                shutil.copyfile(source, path)
