# SPDX-License-Identifier: Apache-2.0
"""Finds the column files of a split, and derives their types from their sizes.

The file sizes determine flavour, rows and dtypes (docs/dataset_format.md, "Detection"). The
feature spec must agree with them.
"""

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import numpy as np

from recsys.data.errors import DatasetError
from recsys.data.feature_spec import FeatureSpec
from recsys.data.manifest import MANIFEST_FILE, Manifest
from recsys.data.positioned_io import open_for_reading
from recsys.data.spec_document import SplitFiles

Flavour = Literal["narrow", "wide"]

LABEL_FILE = "label.bin"
NUMERICAL_FILE = "numerical.bin"
GROUP_FILE, GROUP_DTYPE = "group.bin", np.dtype("<i8")
"""File of datasets whose schema has `group`: the group of each row, -1 for rows without one."""

SPLIT_FOLDERS = {
    "train": ("train",),
    "validation": ("validation", "val", "valid"),
    "test": ("test",),
}
"""Accepted folder names of each split: NVIDIA's earlier recipe uses `val`, TorchRec `valid`."""

_LABEL_BYTES: dict[Flavour, int] = {"narrow": 1, "wide": 4}
_NUMERICAL_BYTES: dict[Flavour, tuple[int, ...]] = {"narrow": (2, 4), "wide": (4,)}
_ID_BYTES: dict[Flavour, tuple[int, ...]] = {"narrow": (1, 2, 4), "wide": (4,)}
_BLOCK_BYTES = 1 << 20


def categorical_file(index: int) -> str:
    """Returns the file name of the categorical feature at `index`."""
    return f"cat_{index}.bin"


def split_folders(root: Path, split: str) -> list[Path]:
    """Returns the folders that may hold a split's columns, the preferred one first."""
    return [base / name for base in (root, root / "split") for name in SPLIT_FOLDERS[split]]


def find_split(root: Path, split: str) -> Path:
    """Returns the folder of a split: `<root>/<split>`, else `<root>/split/<split>`.

    Raises:
        DatasetError: the dataset has no such split.
    """
    existing = [folder for folder in split_folders(root, split) if folder.is_dir()]
    if not existing:
        raise DatasetError(
            f"{root}: no folder {' or '.join(SPLIT_FOLDERS[split])} for the {split} split; is this "
            "the folder of a prepared split-binary dataset?"
        )
    # A folder may hold only parquet files.
    return next((f for f in existing if (f / LABEL_FILE).is_file()), existing[0])


@dataclasses.dataclass(frozen=True, slots=True)
class SplitLayout:
    """The files of one split.

    Attributes:
        flavour: `narrow` or `wide`.
        num_rows: rows of the split.
        paths: standard name (label.bin, ...) -> path.
        dtypes: standard name -> dtype of a value.
    """

    flavour: Flavour
    num_rows: int
    paths: Mapping[str, Path]
    dtypes: Mapping[str, np.dtype[np.generic]]


def resolve_layout(root: Path, split: str, spec: FeatureSpec) -> SplitLayout:
    """Derives flavour, rows and dtypes of a split from file sizes.

    Raises:
        DatasetError: a file is missing, or the sizes fit neither flavour, or both.
    """
    paths = _paths(root, split, spec)
    sizes = {name: _size(path) for name, path in paths.items()}
    complaints = {f: _complaint(f, paths, sizes, spec) for f in _LABEL_BYTES}
    fits = [f for f, complaint in complaints.items() if not complaint]
    if not fits:
        raise DatasetError(
            f"{paths[LABEL_FILE].parent}: the file sizes fit neither flavour of split binary. As "
            f"narrow (1-byte label): {complaints['narrow']}. As wide (4-byte label): "
            f"{complaints['wide']}. The files are cut short, or the feature spec (its number of "
            "features, their cardinalities) belongs to another dataset",
            path=paths[LABEL_FILE].parent,
        )
    flavour = fits[0]
    if len(fits) == 2 and sizes[LABEL_FILE]:
        flavour = _flavour_by_content(root, split, paths[LABEL_FILE], sizes[LABEL_FILE])
    num_rows = sizes[LABEL_FILE] // _LABEL_BYTES[flavour]
    return SplitLayout(flavour, num_rows, paths, _dtypes(flavour, num_rows, sizes, spec))


def _paths(root: Path, split: str, spec: FeatureSpec) -> dict[str, Path]:
    """Returns the files of a split by their standard names."""
    for named in _named_files(split, spec):
        if (root / named.label).is_file():
            paths = {LABEL_FILE: root / named.label}
            if spec.numerical:
                paths[NUMERICAL_FILE] = root / named.numerical
            return paths | {categorical_file(i): root / f for i, f in enumerate(named.categorical)}
    folder = find_split(root, split)
    names = [LABEL_FILE, *([NUMERICAL_FILE] if spec.numerical else [])]
    names += [categorical_file(i) for i in range(len(spec.categorical))]
    return {name: folder / name for name in names}


def _named_files(split: str, spec: FeatureSpec) -> list[SplitFiles]:
    """Returns the spec's file names for a split, preferred first.

    NVIDIA's specs leave validation out. Its files then have the names of another split's files.
    The standard names would swap columns if the spec's order is not that of the file numbers.
    """
    if split in spec.files:
        return [spec.files[split]]
    moved = [
        files.moved(other, folder)
        for other, files in spec.files.items()
        for folder in SPLIT_FOLDERS[split]
    ]
    return [m for m in moved if m is not None]


def _size(path: Path) -> int:
    try:
        if path.is_file():
            return path.stat().st_size
        reason = "is not a file" if path.exists() else "is missing"
    except OSError as error:
        reason = error.strerror or str(error)
    raise DatasetError(
        f"{path}: {reason}; the feature spec expects this file: prepare the dataset again, or give "
        "the spec that belongs to it",
        path=path,
    )


def _complaint(
    flavour: Flavour, paths: Mapping[str, Path], sizes: Mapping[str, int], spec: FeatureSpec
) -> str:
    """Explains why the sizes do not match a flavour; empty if they do."""
    rows, rest = divmod(sizes[LABEL_FILE], _LABEL_BYTES[flavour])
    if rest:
        return f"{paths[LABEL_FILE].name} is not a multiple of {_LABEL_BYTES[flavour]} bytes"
    width = len(spec.numerical)
    options = _NUMERICAL_BYTES[flavour]
    if width and sizes[NUMERICAL_FILE] not in {rows * width * b for b in options}:
        return (
            f"{paths[NUMERICAL_FILE].name} has {sizes[NUMERICAL_FILE]} bytes, not {rows} rows x "
            f"{width} features x {' or '.join(map(str, options))}"
        )
    options = _ID_BYTES[flavour]
    for i, feature in enumerate(spec.categorical):
        name, size = paths[categorical_file(i)].name, sizes[categorical_file(i)]
        if size not in {rows * b for b in options}:
            return f"{name} has {size} bytes, not {rows} rows x {' or '.join(map(str, options))}"
        bits = 8 * size // max(rows, 1)
        if rows and 2 ** (bits - 1) < feature.cardinality:
            return (
                f"{name} has {bits}-bit ids, too narrow for the {feature.cardinality} ids that "
                f"the spec gives feature {feature.name}"
            )
    return ""


def _flavour_by_content(root: Path, split: str, label: Path, label_bytes: int) -> Flavour:
    """Determines the flavour from the content, when the sizes fit both.

    Sizes fit both for a split without numerical features whose ids all have one byte. The first
    nonzero byte of the label is 0x01 for bools and 0x80 for float32 0.0 and 1.0. If all labels are
    0, the manifest decides.
    """
    fd = open_for_reading(label)
    with os.fdopen(fd, "rb") as file:
        while block := file.read(_BLOCK_BYTES):
            if rest := block.lstrip(b"\0"):
                return "narrow" if rest[0] == 1 else "wide"
    rows: dict[Flavour, int] = {f: label_bytes // b for f, b in _LABEL_BYTES.items()}
    if (root / MANIFEST_FILE).is_file():
        recorded = Manifest.load(root).rows.get(split)
        for flavour, count in rows.items():
            if count == recorded:
                return flavour
    raise DatasetError(
        f"{label.parent}: the file sizes fit both flavours of split binary "
        f"({' and '.join(f'{f}: {n} rows' for f, n in rows.items())}), and {label.name} holds "
        f"only zeros; add the {MANIFEST_FILE} with the number of rows, which tells them apart"
    )


def storage_dtypes(spec: FeatureSpec, flavour: Flavour) -> dict[str, np.dtype[np.generic]]:
    """Returns the dtypes to store, by standard file name."""
    dtypes: dict[str, np.dtype[np.generic]] = {LABEL_FILE: np.dtype(np.bool_)}
    if spec.numerical:
        dtypes[NUMERICAL_FILE] = np.dtype(spec.numerical_dtype).newbyteorder("<")
    for i, feature in enumerate(spec.categorical):
        dtypes[categorical_file(i)] = feature.dtype.newbyteorder("<")
    if flavour == "wide":
        return {n: np.dtype("<i4" if d.kind == "i" else "<f4") for n, d in dtypes.items()}
    return dtypes


def _dtypes(
    flavour: Flavour, num_rows: int, sizes: Mapping[str, int], spec: FeatureSpec
) -> dict[str, np.dtype[np.generic]]:
    dtypes: dict[str, np.dtype[np.generic]] = {
        LABEL_FILE: np.dtype("<f4" if flavour == "wide" else "u1")
    }
    if spec.numerical:
        itemsize = np.dtype(spec.numerical_dtype).itemsize
        if num_rows:
            itemsize = sizes[NUMERICAL_FILE] // (num_rows * len(spec.numerical))
        dtypes[NUMERICAL_FILE] = np.dtype(f"<f{itemsize}")
    for i, feature in enumerate(spec.categorical):
        name = categorical_file(i)
        # NVIDIA's earlier splitter chose the dtype by the highest id, not by the cardinality. So
        # tables of 127 and 32767 rows may have ids of the next smaller type.
        itemsize = sizes[name] // num_rows if num_rows else feature.dtype.itemsize
        dtypes[name] = np.dtype(f"<i{itemsize}")
    return dtypes
