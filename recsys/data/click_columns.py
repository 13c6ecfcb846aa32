# SPDX-License-Identifier: Apache-2.0
"""Rows of a click log in memory, as columns."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from recsys.data.errors import DatasetError
from recsys.data.feature_spec import CategoricalFeature, FeatureSpec
from recsys.data.list_columns import ListColumn


@dataclasses.dataclass(frozen=True, slots=True)
class ClickColumns:
    """Columns of B rows of a click log.

    Attributes:
        label: [B] bool, True for a click.
        numerical: [B, M] float16 or float32, transformed values.
        categorical: F arrays of [B] signed integers, ids in [0, cardinality).
        lists: list columns; empty if the dataset has none.
    """

    label: npt.NDArray[np.bool_]
    numerical: npt.NDArray[np.float16] | npt.NDArray[np.float32]
    categorical: tuple[npt.NDArray[np.signedinteger], ...]
    lists: tuple[ListColumn, ...] = ()

    def __len__(self) -> int:
        return len(self.label)

    def __getitem__(self, rows: slice) -> "ClickColumns":
        return ClickColumns(
            self.label[rows],
            self.numerical[rows],
            tuple(c[rows] for c in self.categorical),
            tuple(c[rows] for c in self.lists),
        )

    def fill(self, columns: "ClickColumns") -> None:
        """Copies columns of the same dtypes and length into these."""
        pairs = [(self.label, columns.label), (self.numerical, columns.numerical)]
        for to, values in [*pairs, *zip(self.categorical, columns.categorical, strict=True)]:
            np.copyto(to, values, casting="no")

    @staticmethod
    def concatenate(chunks: Sequence["ClickColumns"]) -> "ClickColumns":
        """Joins consecutive chunks of rows of the same dataset."""
        return ClickColumns(
            np.concatenate([chunk.label for chunk in chunks]),
            np.concatenate([chunk.numerical for chunk in chunks]),
            tuple(
                np.concatenate(columns)
                for columns in zip(*(chunk.categorical for chunk in chunks), strict=True)
            ),
        )

    def check_shape(self, spec: FeatureSpec) -> None:
        """Refuses columns of unequal length, or that do not match the spec.

        Raises:
            ValueError: names the column.
        """
        rows, expected = len(self.label), (len(self.label), len(spec.numerical))
        if self.numerical.shape != expected:
            raise ValueError(f"numerical has shape {self.numerical.shape}, expected {expected}")
        if len(self.categorical) != len(spec.categorical):
            raise ValueError(
                f"{len(self.categorical)} categorical columns, the feature spec has "
                f"{len(spec.categorical)}"
            )
        for feature, ids in zip(spec.categorical, self.categorical, strict=True):
            if ids.shape != (rows,):
                raise ValueError(f"{feature.name} has shape {ids.shape}, expected {(rows,)}")

    def check_ids(self, spec: FeatureSpec, source: object, first_row: int) -> None:
        """Refuses ids outside their embedding table.

        Args:
            spec: columns with their cardinalities.
            source: file or folder, for the message.
            first_row: number of the first row in its split.

        Raises:
            DatasetError: names feature, row and value.
        """
        for feature, ids in zip(spec.categorical, self.categorical, strict=True):
            check_ids_of(feature, ids, source, first_row)


def check_ids_of(
    feature: CategoricalFeature,
    ids: npt.NDArray[np.signedinteger],
    source: object,
    first_row: int,
) -> None:
    """Refuses ids outside a feature's embedding table; see `ClickColumns.check_ids`."""
    if len(ids) == 0 or (int(ids.max()) < feature.cardinality and int(ids.min()) >= 0):
        return
    row = int(np.flatnonzero((ids < 0) | (ids >= feature.cardinality))[0])
    raise DatasetError(
        f"{source}: feature {feature.name}, row {first_row + row}: id {int(ids[row])} is "
        f"outside [0, {feature.cardinality}); the feature spec does not belong to this "
        "data, or the data is damaged (recsys-recipes verify checks a dataset; "
        "`hash_indices` maps ids into their tables)",
        setting="hash_indices",
    )


_EXPONENTS: dict[int, tuple[npt.DTypeLike, int]] = {
    2: (np.uint16, 0x7C00),
    4: (np.uint32, 0x7F800000),
}
"""Bytes of a number -> (unsigned integer type of that width, mask of the exponent's bits)."""


def check_numerical(
    values: npt.NDArray[np.float16] | npt.NDArray[np.float32],
    names: Sequence[str],
    source: object,
    first_row: int,
) -> None:
    """Refuses numbers that are NaN or infinite.

    Args:
        values: [B, M] float16 or float32.
        names: M names of features.
        source: file, for the message.
        first_row: number of the first row in its split.

    Raises:
        DatasetError: names feature, row and value.
    """
    integers, exponent = _EXPONENTS[values.dtype.itemsize]
    # NaN and infinity are the only numbers whose exponent bits are all set. `np.isfinite` takes
    # five times as long.
    if not values.size or int((values.view(integers) & exponent).max()) < exponent:
        return
    row, feature = (int(i) for i in np.argwhere(~np.isfinite(values))[0])
    raise DatasetError(
        f"{source}: feature {names[feature]}, row {first_row + row}: {values[row, feature]} is not "
        "finite; numbers must be: prepare the dataset again (recsys-recipes verify checks a "
        "dataset)"
    )


@dataclasses.dataclass(frozen=True, slots=True)
class RawColumns:
    """Columns of B rows as stored in a file, not checked.

    Attributes:
        label: [B] of any numeric dtype.
        numerical: [B, M] float16 or float32.
        categorical: F arrays of [B] integers.
    """

    label: npt.NDArray[Any]
    numerical: npt.NDArray[Any]
    categorical: tuple[npt.NDArray[Any], ...]


FOREIGN_OR_DAMAGED = (
    "the feature spec does not belong to this file, or the file is damaged "
    "(recsys-recipes verify checks a dataset)"
)
"""Remedy for a label that is neither 0 nor 1, if a feature spec names the label."""


def check_label(
    values: npt.NDArray[Any],
    name: str,
    source: object,
    first_row: int,
    remedy: str = FOREIGN_OR_DAMAGED,
) -> npt.NDArray[np.bool_]:
    """Converts a label column to bool.

    Args:
        values: [B] of any numeric dtype.
        name: name of the label.
        source: file, for the message.
        first_row: number of the first row in its split.
        remedy: how to correct another value, for the message.

    Raises:
        DatasetError: a label is neither 0 nor 1.
    """
    if values.dtype == np.uint8 and values.max(initial=0) <= 1:
        return values.view(np.bool_)  # no copy: split binary reads every row this way
    wrong = (values != 0) & (values != 1)
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        raise DatasetError(
            f"{source}: {name}, row {first_row + row}: value {values[row]} is neither 0 nor 1; "
            f"{remedy}"
        )
    return np.asarray(values != 0, np.bool_)
