# SPDX-License-Identifier: Apache-2.0
"""Split binary: one file per feature, rows in the same order in all of them.

Two flavours share the file names and are told apart by their sizes (docs/dataset_format.md):
`narrow` (NVIDIA DLRM: bool label, float16 numerical, int8/16/32 ids) and `wide` (TorchRec with
NVTabular: float32, float32, int32; 4 bytes everywhere).
"""

import mmap
import os
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from dataspec.click_columns import ClickColumns
from dataspec.errors import DatasetError
from dataspec.feature_spec import FeatureSpec

Flavour = Literal["narrow", "wide"]
Access = Literal["pread", "memmap"]

LABEL_FILE = "label.bin"
NUMERICAL_FILE = "numerical.bin"

SPLIT_FOLDERS = {"train": ("train",), "validation": ("validation", "val"), "test": ("test",)}
"""Folder names accepted for each split: the earlier recipe's text says `val`."""


def categorical_file(index: int) -> str:
    """Returns the file name of the categorical feature at `index`."""
    return f"cat_{index}.bin"


def find_split(root: Path, split: str) -> Path:
    """Returns the folder of a split.

    Raises:
        DatasetError: the dataset has no such split.
    """
    for base in (root, root / "split"):
        for name in SPLIT_FOLDERS[split]:
            if (base / name).is_dir():
                return base / name
    raise DatasetError(
        f"{root}: no folder {' or '.join(SPLIT_FOLDERS[split])} for the {split} split; is this "
        "the folder of a prepared split-binary dataset?"
    )


class SplitBinaryWriter:
    """Writes one split of the narrow flavour; rows may come in any order and from many threads.

    The files are made under their final names, so `split_dir` belongs in a staging folder that is
    renamed when everything is written.

    Args:
        split_dir: folder to make.
        spec: the columns.
        num_rows: rows of the split; the files are given their full size at once.
    """

    def __init__(self, split_dir: Path, spec: FeatureSpec, num_rows: int) -> None:
        split_dir.mkdir(parents=True, exist_ok=True)
        self._spec = spec
        self._num_rows = num_rows
        self._row_bytes = {LABEL_FILE: 1}
        if spec.numerical:
            itemsize = np.dtype(spec.numerical_dtype).itemsize
            self._row_bytes[NUMERICAL_FILE] = itemsize * len(spec.numerical)
        for i, feature in enumerate(spec.categorical):
            self._row_bytes[categorical_file(i)] = feature.dtype.itemsize
        self._fds: dict[str, int] = {}
        try:
            for name, row_bytes in self._row_bytes.items():
                fd = os.open(split_dir / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
                self._fds[name] = fd
                os.ftruncate(fd, row_bytes * num_rows)
        except OSError:
            self.close()
            raise

    def file_descriptors(self) -> tuple[int, int, list[int]]:
        """Returns (label, numerical, categorical) descriptors, for code that pwrites itself.

        numerical is -1 where the spec has no numerical features.
        """
        return (
            self._fds[LABEL_FILE],
            self._fds.get(NUMERICAL_FILE, -1),
            [self._fds[categorical_file(i)] for i in range(len(self._spec.categorical))],
        )

    def write(self, start_row: int, columns: ClickColumns) -> None:
        """Writes rows [start_row, start_row + len(columns)), casting to the storage dtypes.

        Raises:
            DatasetError: an id is outside its table.
        """
        columns.check_ids(self._spec, "rows to write", start_row)
        if start_row < 0 or start_row + len(columns) > self._num_rows:
            raise ValueError(f"rows {start_row}+{len(columns)} exceed {self._num_rows}")
        self._pwrite(LABEL_FILE, start_row, columns.label.astype(np.bool_))
        if self._spec.numerical:
            # float16 comes from the float32 value, never straight from float64: see the format.
            numerical = columns.numerical.astype(self._spec.numerical_dtype)
            self._pwrite(NUMERICAL_FILE, start_row, numerical)
        for i, (feature, ids) in enumerate(
            zip(self._spec.categorical, columns.categorical, strict=True)
        ):
            self._pwrite(categorical_file(i), start_row, ids.astype(feature.dtype))

    def _pwrite(self, name: str, start_row: int, values: npt.NDArray[Any]) -> None:
        data = np.ascontiguousarray(values).data.cast("B")
        offset = start_row * self._row_bytes[name]
        while data:
            written = os.pwrite(self._fds[name], data, offset)
            data, offset = data[written:], offset + written

    def close(self) -> None:
        """Flushes everything to disk and closes the files."""
        while self._fds:
            _, fd = self._fds.popitem()
            try:
                os.fsync(fd)
            finally:
                os.close(fd)

    def __enter__(self) -> "SplitBinaryWriter":
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class SplitBinaryReader:
    """Reads rows of one split, in either flavour.

    Args:
        root: the dataset folder.
        split: `train`, `validation` or `test`.
        spec: the columns; None reads the spec of the folder.
        access: `pread` reads into fresh arrays, `memmap` returns views of the mapped files.

    Attributes:
        num_rows: rows of the split.
        flavour: `narrow` or `wide`.

    Raises:
        DatasetError: a file is missing, or the sizes fit neither flavour, or both.
    """

    def __init__(
        self,
        root: Path,
        split: str,
        spec: FeatureSpec | None = None,
        access: Access = "pread",
    ) -> None:
        self.spec = spec if spec is not None else FeatureSpec.load(root)
        self._paths = _paths(root, split, self.spec)
        self.folder = self._paths[LABEL_FILE].parent
        sizes = {name: self._size(path) for name, path in self._paths.items()}
        self.flavour, self.num_rows = _detect_flavour(self.folder, sizes, self.spec)
        self._layout = self._resolve_layout(sizes)
        self._fds: dict[str, int] = {}
        self._maps: dict[str, np.memmap[Any, Any]] = {}
        for name, (dtype, width) in self._layout.items():
            if access == "pread":
                self._fds[name] = os.open(self._paths[name], os.O_RDONLY | os.O_CLOEXEC)
            elif self.num_rows:
                self._maps[name] = np.memmap(
                    self._paths[name], dtype=dtype, mode="r", shape=(self.num_rows * width,)
                )

    @staticmethod
    def _size(path: Path) -> int:
        try:
            return path.stat().st_size
        except OSError as error:
            raise DatasetError(
                f"{path}: {error.strerror or error}; the feature spec expects this file"
            ) from error

    def _resolve_layout(self, sizes: dict[str, int]) -> dict[str, tuple[np.dtype[np.generic], int]]:
        wide = self.flavour == "wide"
        layout: dict[str, tuple[np.dtype[np.generic], int]] = {
            LABEL_FILE: (np.dtype("<f4") if wide else np.dtype(np.bool_), 1)
        }
        if self.spec.numerical:
            width = len(self.spec.numerical)
            itemsize = sizes[NUMERICAL_FILE] // max(self.num_rows * width, 1)
            layout[NUMERICAL_FILE] = (np.dtype("<f4" if itemsize == 4 else "<f2"), width)
        for i, feature in enumerate(self.spec.categorical):
            name = categorical_file(i)
            # The file decides: an earlier splitter chose the dtype by the highest id, not by the
            # cardinality, so 127 and 32767 rows may stand in the next smaller type.
            itemsize = sizes[name] // self.num_rows if self.num_rows else feature.dtype.itemsize
            layout[name] = (np.dtype(f"<i{itemsize}"), 1)
        return layout

    def read(self, start: int, stop: int) -> ClickColumns:
        """Returns rows [start, stop).

        Raises:
            DatasetError: a file ends early (it changed since it was opened).
        """
        if not 0 <= start <= stop <= self.num_rows:
            raise IndexError(f"rows [{start}, {stop}) of {self.num_rows}")
        label = self._read(LABEL_FILE, start, stop)
        if self.flavour == "wide":
            label = label != 0
        width = len(self.spec.numerical)
        numerical = (
            self._read(NUMERICAL_FILE, start, stop).reshape(stop - start, width)
            if width
            else np.empty((stop - start, 0), np.float16)
        )
        return ClickColumns(
            label,
            numerical,
            tuple(
                self._read(categorical_file(i), start, stop)
                for i in range(len(self.spec.categorical))
            ),
        )

    def _read(self, name: str, start: int, stop: int) -> npt.NDArray[Any]:
        dtype, width = self._layout[name]
        if name in self._maps:
            return self._maps[name][start * width : stop * width]
        values = np.empty((stop - start) * width, dtype)
        row_bytes = dtype.itemsize * width
        view = values.data.cast("B") if len(values) else memoryview(b"")
        offset = start * row_bytes
        while view and name in self._fds:
            count = os.preadv(self._fds[name], [view], offset)
            if count == 0:
                raise DatasetError(
                    f"{self._paths[name]}: ends at byte {offset}, before row {stop}; the file "
                    "was cut while it was being read"
                )
            view, offset = view[count:], offset + count
        return values

    def advise_sequential(self) -> None:
        """Tells the kernel that the rows will be read in order, so that it reads ahead."""
        for fd in self._fds.values():
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_SEQUENTIAL)
        for values in self._maps.values():
            base: object = values.base
            if isinstance(base, mmap.mmap):
                base.madvise(mmap.MADV_SEQUENTIAL)

    def close(self) -> None:
        """Closes the files."""
        while self._fds:
            os.close(self._fds.popitem()[1])
        self._maps.clear()


def _paths(root: Path, split: str, spec: FeatureSpec) -> dict[str, Path]:
    """Returns standard name -> path of each file of a split."""
    named = spec.files.get(split)
    if named is not None and (root / named.label).is_file():
        paths = {LABEL_FILE: root / named.label}
        if spec.numerical:
            paths[NUMERICAL_FILE] = root / named.numerical
        return paths | {categorical_file(i): root / f for i, f in enumerate(named.categorical)}
    folder = find_split(root, split)
    names = [LABEL_FILE, *([NUMERICAL_FILE] if spec.numerical else [])]
    names += [categorical_file(i) for i in range(len(spec.categorical))]
    return {name: folder / name for name in names}


def _detect_flavour(folder: Path, sizes: dict[str, int], spec: FeatureSpec) -> tuple[Flavour, int]:
    """Returns the flavour and the number of rows that all file sizes agree on."""
    width = len(spec.numerical)
    fits: list[tuple[Flavour, int]] = []
    complaints: dict[Flavour, str] = {}
    flavours: tuple[tuple[Flavour, int, tuple[int, ...]], ...] = (
        ("narrow", 1, (1, 2, 4)),
        ("wide", 4, (4,)),
    )
    for flavour, label_bytes, id_bytes in flavours:
        rows, rest = divmod(sizes[LABEL_FILE], label_bytes)
        complaint = f"{LABEL_FILE} is not a multiple of {label_bytes} bytes" if rest else ""
        numerical_bytes = {4} if flavour == "wide" else {2, 4}
        if width and sizes[NUMERICAL_FILE] not in {rows * width * b for b in numerical_bytes}:
            complaint = complaint or (
                f"{NUMERICAL_FILE} has {sizes[NUMERICAL_FILE]} bytes, not {rows} rows x {width} "
                f"features x {' or '.join(map(str, sorted(numerical_bytes)))}"
            )
        for i, feature in enumerate(spec.categorical):
            size = sizes[categorical_file(i)]
            if size not in {rows * b for b in id_bytes}:
                complaint = complaint or (
                    f"{categorical_file(i)} has {size} bytes, not {rows} rows x "
                    f"{' or '.join(map(str, id_bytes))}"
                )
            elif rows and flavour == "narrow":
                too_narrow = 2 ** (8 * size // rows - 1) < feature.cardinality
                if too_narrow:
                    complaint = complaint or (
                        f"{categorical_file(i)} has {8 * size // rows}-bit ids, too narrow for the "
                        f"{feature.cardinality} ids that the spec gives feature {feature.name}"
                    )
        if complaint:
            complaints[flavour] = complaint
        else:
            fits.append((flavour, rows))
    if len(fits) == 1 or (fits and all(rows == 0 for _, rows in fits)):
        return fits[0]
    if fits:
        raise DatasetError(
            f"{folder}: the file sizes fit both flavours of split binary "
            f"({' and '.join(f'{f}: {n} rows' for f, n in fits)}); a numerical feature or a "
            "manifest is needed to tell them apart"
        )
    raise DatasetError(
        f"{folder}: the file sizes fit neither flavour of split binary. As narrow (1-byte label): "
        f"{complaints['narrow']}. As wide (4-byte label): {complaints['wide']}. The files are cut "
        "short, or the feature spec belongs to another dataset"
    )
