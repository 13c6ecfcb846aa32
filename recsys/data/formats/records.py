# SPDX-License-Identifier: Apache-2.0
"""Reader of the earlier `binary` format: fixed-size records, one file per split.

A record is the label as int32, M float32 and F int32, little endian: 160 bytes for Criteo (M=13,
F=26).
"""

import os
import weakref
from pathlib import Path

import numpy as np

from recsys.data.click_columns import RawColumns
from recsys.data.errors import DatasetError
from recsys.data.feature_spec import FeatureSpec
from recsys.data.positioned_io import close_all, open_for_reading, read_array
from recsys.data.row_reader import RowReader

SPLIT_FILES = {
    "train": ("train_data.bin",),
    "validation": ("validation_data.bin", "val_data.bin"),
    "test": ("test_data.bin",),
}


def record_bytes(spec: FeatureSpec) -> int:
    """Returns the size of a record in bytes: 4 x (1 + M + F)."""
    return 4 * (1 + len(spec.numerical) + len(spec.categorical))


class BinaryRecordsReader(RowReader):
    """Reads the rows of a split.

    Args:
        root: folder of the dataset, with `<split>_data.bin` and a spec.
        split: `train`, `validation` or `test`.
        spec: columns of the dataset; None reads the spec of the folder.
        check_ids: whether `read` refuses ids outside their tables.

    Attributes:
        path: file of the split.

    Raises:
        DatasetError: the file is missing, or its size is not a multiple of the record size.
    """

    format_name = "binary records"

    def __init__(
        self, root: Path, split: str, spec: FeatureSpec | None = None, *, check_ids: bool = False
    ) -> None:
        super().__init__(spec or FeatureSpec.load(root), check_ids=check_ids)
        candidates = [root / name for name in SPLIT_FILES[split]]
        self.path = next((p for p in candidates if p.is_file()), candidates[0])
        self.files = [self.path]
        self._record_bytes = record_bytes(self.spec)
        if not self.path.is_file():
            raise DatasetError(
                f"{self.path} is missing; `dataset_type` binary reads records of "
                f"{self._record_bytes} bytes from it (for a folder with train/label.bin use "
                "`dataset_type` split)",
                setting="dataset_type",
            )
        self._fds = {self.path.name: open_for_reading(self.path)}
        weakref.finalize(self, close_all, self._fds)  # closes the files of a dropped reader
        total = os.fstat(self._fds[self.path.name]).st_size
        self.num_rows, rest = divmod(total, self._record_bytes)
        if rest:
            self.close()
            raise DatasetError(
                f"{self.path}: {total} bytes are not a multiple of the {self._record_bytes}-byte "
                f"record of {len(self.spec.numerical)} numerical and {len(self.spec.categorical)} "
                "categorical features; the file is cut short, or the spec belongs to other data",
                path=self.path,
            )

    def path_of(self, column: str, row: int) -> Path:  # noqa: ARG002
        """Returns the file of the split."""
        return self.path

    def read_unchecked(self, start: int, stop: int) -> RawColumns:
        """Returns rows [start, stop), with float32 numbers and int32 ids."""
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
