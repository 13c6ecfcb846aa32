# SPDX-License-Identifier: Apache-2.0
"""Split binary: one file per feature, with the rows in the same order.

Two flavours have the same file names; file sizes tell them apart (docs/dataset_format.md):
`narrow` (NVIDIA DLRM: bool label, float16 numerical, int8/16/32 ids) and `wide` (TorchRec with
NVTabular: float32, float32, int32; 4 bytes everywhere).
"""

import contextlib
import mmap
import os
import weakref
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from recsys.data.click_columns import ClickColumns, RawColumns, check_ids_of
from recsys.data.errors import DatasetError
from recsys.data.feature_spec import FeatureSpec
from recsys.data.list_columns import ListColumn, ListReader
from recsys.data.positioned_io import (
    DiskSync,
    check_not_cut,
    close_all,
    open_for_reading,
    read_array,
    write_at,
)
from recsys.data.row_reader import RowReader
from recsys.data.split_layout import (
    LABEL_FILE,
    NUMERICAL_FILE,
    Flavour,
    categorical_file,
    resolve_layout,
    storage_dtypes,
)

Access = Literal["pread", "memmap"]
IdArray = npt.NDArray[np.signedinteger]


class SplitBinaryWriter:
    """Writes one split, with rows in any order and from any number of threads.

    The files have their final names from the start. So `split_dir` should be in a staging folder
    that is renamed when everything is written.

    Args:
        split_dir: folder to create.
        spec: columns of the dataset.
        num_rows: rows of the split; the files get their full size at once.
        flavour: `narrow` or `wide`.
    """

    def __init__(
        self, split_dir: Path, spec: FeatureSpec, num_rows: int, flavour: Flavour = "narrow"
    ) -> None:
        split_dir.mkdir(parents=True, exist_ok=True)
        self._spec = spec
        self._num_rows = num_rows
        self._dtypes = storage_dtypes(spec, flavour)
        self._row_bytes = {name: dtype.itemsize for name, dtype in self._dtypes.items()}
        if spec.numerical:
            self._row_bytes[NUMERICAL_FILE] *= len(spec.numerical)
        self._disk = DiskSync()
        self._fds: dict[str, int] = {}
        try:
            for name, row_bytes in self._row_bytes.items():
                fd = os.open(split_dir / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
                self._fds[name] = fd
                os.ftruncate(fd, row_bytes * num_rows)
        except OSError:
            self.close()
            raise

    def file_descriptors(self) -> tuple[int, int, list[int]]:
        """Returns (label, numerical, categorical) file descriptors.

        Numerical is -1 if the spec has no numerical features.
        """
        return (
            self._fds[LABEL_FILE],
            self._fds.get(NUMERICAL_FILE, -1),
            [self._fds[categorical_file(i)] for i in range(len(self._spec.categorical))],
        )

    def write(self, start_row: int, columns: ClickColumns) -> None:
        """Writes rows from `start_row` on, cast to the storage dtypes.

        Raises:
            DatasetError: an id is outside its table, or a numerical value is not finite in the
                storage dtype.
        """
        columns.check_shape(self._spec)
        columns.check_ids(self._spec, "rows to write", start_row)
        if start_row < 0 or start_row + len(columns) > self._num_rows:
            raise ValueError(f"rows {start_row}+{len(columns)} exceed {self._num_rows}")
        self._pwrite(LABEL_FILE, start_row, columns.label)
        if self._spec.numerical:
            self._pwrite(NUMERICAL_FILE, start_row, self._narrow(columns.numerical, start_row))
        names = [categorical_file(i) for i in range(len(self._spec.categorical))]
        for name, ids in zip(names, columns.categorical, strict=True):
            self._pwrite(name, start_row, ids)

    def _narrow(self, values: npt.NDArray[Any], start_row: int) -> npt.NDArray[Any]:
        # The format rounds float64 to float32 first, then to float16.
        with np.errstate(over="ignore"):
            narrow = values.astype(np.float32).astype(self._dtypes[NUMERICAL_FILE])
        if not np.isfinite(narrow).all():
            row, feature = (int(i) for i in np.argwhere(~np.isfinite(narrow))[0])
            raise DatasetError(
                f"rows to write: feature {self._spec.numerical[feature]}, row {start_row + row}: "
                f"{values[row, feature]} is not finite in {narrow.dtype.name}; scale or "
                "clip it, or use numerical_dtype float32"
            )
        return narrow

    def _pwrite(self, name: str, start_row: int, values: npt.NDArray[Any]) -> None:
        stored = values.astype(self._dtypes[name], copy=False)
        write_at(self._fds[name], stored, start_row * self._row_bytes[name])

    def sync(self) -> None:
        """Waits until all rows written so far are on disk; thread-safe.

        Raises:
            OSError: rows are lost, possibly those of other threads; every thread gets this error.
        """
        self._disk.sync(self._fds.values())

    def close(self) -> None:
        """Flushes everything to disk and closes the files."""
        with contextlib.ExitStack() as closing:
            fds, self._fds = self._fds, {}
            for fd in fds.values():
                closing.callback(os.close, fd)
            self._disk.sync(fds.values())

    def __enter__(self) -> "SplitBinaryWriter":
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class SplitBinaryReader(RowReader):
    """Reads the rows of a split, narrow or wide.

    Args:
        split: `train`, `validation` or `test`.
        spec: columns of the dataset; None reads the spec of the folder.
        access: `pread` reads into fresh arrays; `memmap` returns views of the mapped files. If a
            file shrinks between its check and the use of a view, the process is killed.
        check_ids: whether `read` and `read_ids` refuse ids outside their tables.

    Attributes:
        flavour: `narrow` or `wide`.
        folder: folder of the split.
        paths: standard name (label.bin, numerical.bin, cat_0.bin, ...) -> file.
        dtypes: standard name -> dtype of a value in the file.

    Raises:
        DatasetError: a file is missing, or the sizes fit neither flavour, or both.
    """

    def __init__(
        self,
        root: Path,
        split: str,
        spec: FeatureSpec | None = None,
        access: Access = "pread",
        *,
        check_ids: bool = False,
    ) -> None:
        super().__init__(spec or FeatureSpec.load(root), check_ids=check_ids)
        layout = self.layout = resolve_layout(root, split, self.spec)
        self.flavour, self.num_rows = layout.flavour, layout.num_rows
        self.format_name = f"split binary ({self.flavour})"
        self.paths, self.dtypes = layout.paths, layout.dtypes
        self.files = list(self.paths.values())
        self.folder = self.paths[LABEL_FILE].parent
        files = {self.spec.label: LABEL_FILE} | dict.fromkeys(self.spec.numerical, NUMERICAL_FILE)
        files |= {f.name: categorical_file(i) for i, f in enumerate(self.spec.categorical)}
        self._path_of_column = {column: self.paths[file] for column, file in files.items()}
        self._widths = dict.fromkeys(self.paths, 1) | {NUMERICAL_FILE: len(self.spec.numerical)}
        self._fds: dict[str, int] = {}
        weakref.finalize(self, close_all, self._fds)  # closes the files of a dropped reader
        self._maps: dict[str, npt.NDArray[Any]] = {}
        self._lists: list[ListReader] = []
        try:
            for number, feature in enumerate(self.spec.lists, start=len(self.spec.categorical)):
                reader = ListReader(
                    self.folder, feature, number, self.num_rows, check_ids=check_ids
                )
                self._lists.append(reader)
                self.files += reader.files
            for name, path in self.paths.items():
                self._fds[name] = open_for_reading(path)
                if access == "memmap":
                    self._maps[name] = self._map(name)
        except BaseException:
            self.close()
            raise

    def _map(self, name: str) -> npt.NDArray[Any]:
        shape = (self.num_rows * self._widths[name],)
        if not self.num_rows:
            return np.empty(shape, self.dtypes[name])  # an empty file cannot be mapped
        try:
            return np.memmap(self.paths[name], dtype=self.dtypes[name], mode="r", shape=shape)
        except (OSError, ValueError) as error:
            raise DatasetError(
                f"{self.paths[name]}: cannot be mapped: {error}; make it readable, or use "
                "`dataset_type` split, which reads without mapping",
                setting="dataset_type",
                path=self.paths[name],
            ) from error

    def path_of(self, column: str, row: int) -> Path:  # noqa: ARG002
        """Returns the file of a column."""
        return self._path_of_column[column]

    def read_lists(self, start: int, stop: int) -> tuple[ListColumn, ...]:
        """Returns the lists of rows [start, stop); see `RowReader`."""
        return tuple(reader.read(start, stop) for reader in self._lists)

    def read_list(self, table: int, start: int, stop: int) -> ListColumn:
        """Returns the lists of one feature in rows [start, stop)."""
        return self._lists[table - len(self.spec.categorical)].read(start, stop)

    def read_into(self, start: int, columns: ClickColumns) -> None:
        """Fills columns with the rows from number `start` on; see `read`."""
        stop = start + len(columns)
        dtype = self.dtypes[LABEL_FILE]
        fits = columns.label.dtype.itemsize == dtype.itemsize
        into = columns.label.view(dtype) if fits else None
        stored = self._read(LABEL_FILE, start, stop, into)
        if self.spec.numerical:
            self._read(NUMERICAL_FILE, start, stop, columns.numerical)
        for i, ids in enumerate(columns.categorical):
            self._read(categorical_file(i), start, stop, ids)
        raw = RawColumns(stored, columns.numerical, columns.categorical)
        checked = self._checked(raw, start, check_ids=self._check_ids)
        if not fits:
            np.copyto(columns.label, checked.label)

    def read_dense(self, start: int, stop: int) -> ClickColumns:
        """Returns rows [start, stop) without the categorical features; see `read`."""
        return self._checked(self._read_dense(start, stop), start)

    def read_ids(self, features: Sequence[int], start: int, stop: int) -> tuple[IdArray, ...]:
        """Returns the ids of some features in rows [start, stop).

        Args:
            features: numbers of the features in the spec; only their files are read.
            start: first row.
            stop: row after the last one.

        Raises:
            DatasetError: a file ends early, or a checked id is outside its table.
        """
        columns = self._read_ids(features, start, stop)
        if self._check_ids:
            for feature, ids in zip(features, columns, strict=True):
                path = self.paths[categorical_file(feature)]
                check_ids_of(self.spec.categorical[feature], ids, path, start)
        return columns

    def _read_ids(self, features: Sequence[int], start: int, stop: int) -> tuple[IdArray, ...]:
        return tuple(self._read(categorical_file(i), start, stop) for i in features)

    def read_unchecked(self, start: int, stop: int) -> RawColumns:
        """Returns rows [start, stop) as stored."""
        dense = self._read_dense(start, stop)
        ids = self._read_ids(range(len(self.spec.categorical)), start, stop)
        return RawColumns(dense.label, dense.numerical, ids)

    def _read_dense(self, start: int, stop: int) -> RawColumns:
        width = len(self.spec.numerical)
        return RawColumns(
            self._read(LABEL_FILE, start, stop),
            self._read(NUMERICAL_FILE, start, stop).reshape(stop - start, width)
            if width
            else np.empty((stop - start, 0), self.spec.numerical_dtype),
            (),
        )

    def _read(
        self, name: str, start: int, stop: int, into: npt.NDArray[Any] | None = None
    ) -> npt.NDArray[Any]:
        if not 0 <= start <= stop <= self.num_rows:
            raise IndexError(f"rows [{start}, {stop}) of {self.num_rows}")
        width = self._widths[name]
        if name not in self._fds:
            raise ValueError(f"the reader of {self.folder} is closed")
        fd, path, dtype = self._fds[name], self.paths[name], self.dtypes[name]
        row_bytes = width * dtype.itemsize
        if name in self._maps:
            # Touching a mapped page beyond the end of a file kills the process.
            check_not_cut(fd, path, stop * row_bytes)
            values = self._maps[name][start * width : stop * width]
            if into is not None:
                np.copyto(into.reshape(-1), values, casting="no")
            return values
        return read_array(fd, path, dtype, start * row_bytes, (stop - start) * width, into)

    def advise_sequential(self) -> None:
        """Asks the kernel to read ahead, for rows that are read in order."""
        for fd in self._fds.values():
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_SEQUENTIAL)
        for values in self._maps.values():
            base: object = values.base
            if isinstance(base, mmap.mmap):
                base.madvise(mmap.MADV_SEQUENTIAL)

    def close(self) -> None:
        """Closes the files."""
        close_all(self._fds)
        self._maps.clear()
        for reader in self._lists:
            reader.close()
