# SPDX-License-Identifier: Apache-2.0
"""The earlier `binary` format: fixed-size records, one file per split.

A record is label int32, M float32, F int32, little endian: 160 bytes for Criteo (M=13, F=26).
"""

import os
import weakref
from pathlib import Path

import numpy as np

from recsys.data.click_columns import ClickColumns, RawColumns, check_label, check_numerical
from recsys.data.errors import DatasetError
from recsys.data.feature_spec import FeatureSpec
from recsys.data.positioned_io import close_all, open_for_reading, read_array

SPLIT_FILES = {
    "train": ("train_data.bin",),
    "validation": ("validation_data.bin", "val_data.bin"),
    "test": ("test_data.bin",),
}


def record_bytes(spec: FeatureSpec) -> int:
    """Returns a record's bytes: 4 x (1 + M + F)."""
    return 4 * (1 + len(spec.numerical) + len(spec.categorical))


def write_binary_records(path: Path, spec: FeatureSpec, columns: ClickColumns) -> None:
    """Appends rows to a records file, or makes one.

    Raises:
        DatasetError: an id is outside its table.
    """
    columns.check_shape(spec)
    columns.check_ids(spec, "rows to write", 0)
    num_numerical = len(spec.numerical)
    records = np.empty((len(columns), record_bytes(spec) // 4), "<i4")
    records[:, 0] = columns.label
    records[:, 1 : 1 + num_numerical] = columns.numerical.astype("<f4", order="C").view("<i4")
    for i, ids in enumerate(columns.categorical):
        records[:, 1 + num_numerical + i] = ids
    with path.open("ab") as file:
        file.write(records.tobytes())


class BinaryRecordsReader:
    """Reads the rows of a split; `read` is thread-safe.

    Args:
        root: folder of the dataset, with `<split>_data.bin` and a spec.
        split: `train`, `validation` or `test`.
        spec: columns of the dataset; None reads the spec of the folder.
        check_ids: refuse ids outside their tables in `read`.

    Attributes:
        num_rows: rows of the split.
        path, files: file of the split.

    Raises:
        DatasetError: the file is missing, or its size is no multiple of the record size.
    """

    def __init__(
        self, root: Path, split: str, spec: FeatureSpec | None = None, *, check_ids: bool = False
    ) -> None:
        self._check_ids = check_ids
        self.spec = spec if spec is not None else FeatureSpec.load(root)
        candidates = [root / name for name in SPLIT_FILES[split]]
        self.path = next((p for p in candidates if p.is_file()), candidates[0])
        self.files = [self.path]
        self._record_bytes = record_bytes(self.spec)
        if not self.path.is_file():
            raise DatasetError(
                f"{self.path} is missing; `dataset_type` binary reads records of "
                f"{self._record_bytes} bytes from it (for a folder with train/label.bin use "
                "`dataset_type` split)"
            )
        self._fds = {self.path.name: open_for_reading(self.path)}
        weakref.finalize(self, close_all, self._fds)  # a dropped reader keeps no files open
        total = os.fstat(self._fds[self.path.name]).st_size
        self.num_rows, rest = divmod(total, self._record_bytes)
        if rest:
            self.close()
            raise DatasetError(
                f"{self.path}: {total} bytes are no multiple of the {self._record_bytes}-byte "
                f"record of {len(self.spec.numerical)} numerical and {len(self.spec.categorical)} "
                "categorical features; the file is cut short or the spec is another one"
            )

    def read(self, start: int, stop: int) -> ClickColumns:
        """Returns rows [start, stop), numerical as float32 and ids as int32.

        Raises:
            DatasetError: a label is neither 0 nor 1 (the spec does not fit the file), a number is
                not finite, a checked id is outside its table, or the file ends early.
        """
        raw = self.read_unchecked(start, stop)
        label = check_label(raw.label, self.spec.label, self.path, start)
        check_numerical(raw.numerical, self.spec.numerical, self.path, start)
        columns = ClickColumns(label, raw.numerical, raw.categorical)
        if self._check_ids:
            columns.check_ids(self.spec, self.path, start)
        return columns

    def read_unchecked(self, start: int, stop: int) -> RawColumns:
        """Returns rows [start, stop) as stored."""
        if not 0 <= start <= stop <= self.num_rows:
            raise IndexError(f"rows [{start}, {stop}) of {self.num_rows}")
        if not self._fds:
            raise ValueError(f"the reader of {self.path} is closed")
        fields = self._record_bytes // 4
        offset, count = start * self._record_bytes, (stop - start) * fields
        fd = self._fds[self.path.name]
        records = read_array(fd, self.path, np.dtype("<i4"), offset, count)
        records = records.reshape(stop - start, fields)
        first = 1 + len(self.spec.numerical)
        return RawColumns(
            records[:, 0],
            np.ascontiguousarray(records[:, 1:first]).view("<f4"),
            tuple(np.ascontiguousarray(records[:, i]) for i in range(first, fields)),
        )

    def close(self) -> None:
        """Closes the file."""
        close_all(self._fds)
