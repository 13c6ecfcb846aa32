# SPDX-License-Identifier: Apache-2.0
"""The earlier `binary` format: one fixed-size record per row, one file per split.

A record is label int32, M float32, F int32, little endian: 160 bytes for Criteo (M=13, F=26).
"""

from pathlib import Path

import numpy as np
import numpy.typing as npt

from dataspec.click_columns import ClickColumns
from dataspec.errors import DatasetError
from dataspec.feature_spec import FeatureSpec

SPLIT_FILES = {
    "train": ("train_data.bin",),
    "validation": ("validation_data.bin", "val_data.bin"),
    "test": ("test_data.bin",),
}


def record_bytes(spec: FeatureSpec) -> int:
    """Returns the size of a record: 4 x (1 + M + F)."""
    return 4 * (1 + len(spec.numerical) + len(spec.categorical))


def write_binary_records(path: Path, spec: FeatureSpec, columns: ClickColumns) -> None:
    """Appends rows to a records file (made where it is missing)."""
    num_numerical = len(spec.numerical)
    records = np.empty((len(columns), record_bytes(spec) // 4), "<i4")
    records[:, 0] = columns.label
    records[:, 1 : 1 + num_numerical] = columns.numerical.astype("<f4").view("<i4")
    for i, ids in enumerate(columns.categorical):
        records[:, 1 + num_numerical + i] = ids
    with path.open("ab") as file:
        file.write(records.tobytes())


class BinaryRecordsReader:
    """Reads rows of one split of records.

    Args:
        root: the dataset folder, with `<split>_data.bin` and a spec.
        split: `train`, `validation` or `test`.
        spec: the columns; None reads the spec of the folder.

    Attributes:
        num_rows: rows of the split.

    Raises:
        DatasetError: the file is missing, or its size is no multiple of the record size.
    """

    def __init__(self, root: Path, split: str, spec: FeatureSpec | None = None) -> None:
        self.spec = spec if spec is not None else FeatureSpec.load(root)
        candidates = [root / name for name in SPLIT_FILES[split]]
        self.path = next((p for p in candidates if p.is_file()), candidates[0])
        size = record_bytes(self.spec)
        if not self.path.is_file():
            raise DatasetError(
                f"{self.path} is missing; --dataset_type binary reads records of {size} bytes "
                "from it (for a folder with train/label.bin use --dataset_type split)"
            )
        total = self.path.stat().st_size
        if total % size:
            raise DatasetError(
                f"{self.path}: {total} bytes are no multiple of the {size}-byte record of "
                f"{len(self.spec.numerical)} numerical and {len(self.spec.categorical)} "
                "categorical features; the file is cut short or the spec is another one"
            )
        self.num_rows = total // size
        shape = (self.num_rows, size // 4)
        self._records: npt.NDArray[np.int32] = (
            np.memmap(self.path, dtype="<i4", mode="r", shape=shape)
            if self.num_rows
            else np.empty(shape, "<i4")
        )

    def read(self, start: int, stop: int) -> ClickColumns:
        """Returns rows [start, stop), numerical as float32 and ids as int32.

        Raises:
            DatasetError: a label is neither 0 nor 1 (the spec does not fit the file).
        """
        if not 0 <= start <= stop <= self.num_rows:
            raise IndexError(f"rows [{start}, {stop}) of {self.num_rows}")
        records = np.asarray(self._records[start:stop])
        label = records[:, 0]
        if len(label) and (label.min() < 0 or label.max() > 1):
            row = int(np.flatnonzero((label < 0) | (label > 1))[0])
            raise DatasetError(
                f"{self.path}: row {start + row}: label {int(label[row])} is neither 0 nor 1; "
                "the feature spec (number of features) does not belong to this file"
            )
        first = 1 + len(self.spec.numerical)
        return ClickColumns(
            label.astype(np.bool_),
            np.ascontiguousarray(records[:, 1:first]).view("<f4"),
            tuple(np.ascontiguousarray(records[:, i]) for i in range(first, records.shape[1])),
        )

    def close(self) -> None:
        """Drops the mapping."""
        self._records = np.empty((0, self._records.shape[1]), "<i4")
