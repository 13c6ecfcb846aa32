# SPDX-License-Identifier: Apache-2.0
"""Reads unchecked rows of a split in blocks, from any format."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

from recsys.data.click_columns import RawColumns
from recsys.data.errors import DatasetError
from recsys.data.feature_spec import FeatureSpec
from recsys.data.npy_days import NpyReader, find_folder
from recsys.data.parquet import FOLDER, PART_FILES, ParquetReader
from recsys.data.records import SPLIT_FILES, BinaryRecordsReader
from recsys.data.split_binary import SplitBinaryReader
from recsys.data.split_layout import LABEL_FILE, NUMERICAL_FILE, SPLIT_FOLDERS, categorical_file

BLOCK_ROWS = 1 << 17
"""20 MB of Criteo rows at the widest: memory stays bounded, reads stay long."""


@dataclasses.dataclass(frozen=True, slots=True)
class Block:
    """Consecutive rows of a split.

    Attributes:
        first_row: number of the first row in the split.
        num_rows: number of rows.
        read: reads the rows; raises DatasetError.
        path_of: maps the name of a column to its file.
    """

    first_row: int
    num_rows: int
    read: Callable[[], RawColumns]
    path_of: Callable[[str], Path]


@dataclasses.dataclass(frozen=True, slots=True)
class RowSource:
    """One split in one format.

    Attributes:
        name: name of the format for the report.
        spec: columns of the dataset.
        num_rows: rows of the split.
        blocks: blocks of the split, in order.
        close: closes the files.
        reader: reader of split binary, for checks of its layout; None for other formats.
    """

    name: str
    spec: FeatureSpec
    num_rows: int
    blocks: tuple[Block, ...]
    close: Callable[[], None]
    reader: SplitBinaryReader | None = None


def open_sources(
    root: Path, split: str, spec: FeatureSpec
) -> tuple[list[RowSource], list[DatasetError]]:
    """Opens a split in each of its formats.

    Returns:
        (opened formats, errors of the others).
    """
    sources, problems = [], []
    for is_present, open_one in (
        (_has_split_binary, _open_split_binary),
        (_has_parquet, _open_parquet),
        (_has_records, _open_records),
        (_has_arrays, _open_arrays),
    ):
        if is_present(root, split, spec):
            try:
                sources.append(open_one(root, split, spec))
            except DatasetError as error:
                problems.append(error)
    return sources, problems


def split_folders(root: Path, split: str) -> list[Path]:
    """Returns candidate folders of a split, split binary or parquet."""
    names = SPLIT_FOLDERS[split]
    return [base / n for base in (root, root / "split", root / FOLDER) for n in names]


def _has_split_binary(root: Path, split: str, spec: FeatureSpec) -> bool:
    if split in spec.files and (root / spec.files[split].label).is_file():
        return True
    return any(any(folder.glob("[!._]*.bin")) for folder in split_folders(root, split))


def _has_parquet(root: Path, split: str, spec: FeatureSpec) -> bool:
    del spec
    return any(any(folder.glob(PART_FILES)) for folder in split_folders(root, split))


def _has_records(root: Path, split: str, spec: FeatureSpec) -> bool:
    del spec
    return any((root / name).is_file() for name in SPLIT_FILES[split])


def _has_arrays(root: Path, split: str, spec: FeatureSpec) -> bool:
    del split, spec
    return find_folder(root) is not None


def _open_arrays(root: Path, split: str, spec: FeatureSpec) -> RowSource:
    reader = NpyReader(root, split, spec)
    numerical = set(spec.numerical)

    def path_of(column: str) -> Path:
        dense, sparse, labels = reader.paths_of(0)
        return labels if column == spec.label else dense if column in numerical else sparse

    return RowSource(
        name="npy",
        spec=spec,
        num_rows=reader.num_rows,
        blocks=_blocks(reader.num_rows, reader.read_unchecked, path_of),
        close=lambda: None,  # the arrays are mapped
    )


def _open_split_binary(root: Path, split: str, spec: FeatureSpec) -> RowSource:
    reader = SplitBinaryReader(root, split, spec, check_ids=True)
    names = {spec.label: LABEL_FILE} | dict.fromkeys(spec.numerical, NUMERICAL_FILE)
    names |= {f.name: categorical_file(i) for i, f in enumerate(spec.categorical)}
    return RowSource(
        name=f"split binary ({reader.flavour})",
        spec=spec,
        num_rows=reader.num_rows,
        blocks=_blocks(reader.num_rows, reader.read_unchecked, lambda c: reader.paths[names[c]]),
        close=reader.close,
        reader=reader,
    )


def _open_records(root: Path, split: str, spec: FeatureSpec) -> RowSource:
    reader = BinaryRecordsReader(root, split, spec)
    return RowSource(
        name="binary records",
        spec=spec,
        num_rows=reader.num_rows,
        blocks=_blocks(reader.num_rows, reader.read_unchecked, lambda _: reader.path),
        close=reader.close,
    )


def _open_parquet(root: Path, split: str, spec: FeatureSpec) -> RowSource:
    reader = ParquetReader(root, split, spec)
    blocks, first_row = [], 0
    for index, rows in enumerate(reader.group_rows):
        path = reader.path_of_group(index)
        blocks.append(
            Block(
                first_row,
                rows,
                lambda index=index: reader.read_group_unchecked(index),  # type: ignore[misc]
                lambda _, path=path: path,  # type: ignore[misc]
            )
        )
        first_row += rows
    return RowSource(
        name="parquet",
        spec=spec,
        num_rows=reader.num_rows,
        blocks=tuple(blocks),
        close=lambda: None,  # it opens a file anew for each row group
    )


def _blocks(
    num_rows: int, read: Callable[[int, int], RawColumns], path_of: Callable[[str], Path]
) -> tuple[Block, ...]:
    def block(start: int) -> Block:
        stop = min(start + BLOCK_ROWS, num_rows)
        return Block(start, stop - start, lambda: read(start, stop), path_of)

    return tuple(block(start) for start in range(0, num_rows, BLOCK_ROWS))
