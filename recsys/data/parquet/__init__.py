# SPDX-License-Identifier: Apache-2.0
"""The parquet format: one folder per split, columns named by the feature spec."""

import bisect
import functools
import itertools
import logging
import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from recsys.data.arrow_columns import column_of, numbers_of
from recsys.data.click_columns import ClickColumns, RawColumns
from recsys.data.errors import DatasetError
from recsys.data.feature_spec import FeatureSpec
from recsys.data.parquet.schema import (
    arrow_schema,
    check_schema,
    column_names,
    describe_columns,
    label_rule,
    plain_columns,
    spec_folder,
    spec_of,
    spec_of_plain,
)
from recsys.data.positioned_io import require_regular
from recsys.data.row_reader import RowReader
from recsys.data.split_layout import SPLIT_FOLDERS
from recsys.errors import show_names
from recsys.files.durable import whole_file
from recsys.files.order import by_number

logger = logging.getLogger(__name__)

FOLDER = "parquet"
PART_FILES = "[!._]*.parquet"
"""Names of data files; as in Spark and Arrow, names that begin with `.` or `_` are leftovers."""
METADATA_FILE = "_metadata"
ROW_GROUP_ROWS = 262_144
"""Rows of a row group: eight batches of 32,768, enough to read sequentially and yet to stream."""
PART_ROWS = 4 * ROW_GROUP_ROWS

_MAX_ROWS_AT_ONCE = 1 << 20
"""Larger row groups, which other software may write, are decoded in batches."""
_STREAM_BUFFER_BYTES = 1 << 20

_DAMAGE = (pa.ArrowException, OSError, ValueError, OverflowError)
"""Exceptions of Arrow for damaged files; ValueError is for names that are not UTF-8."""


def part_name(index: int) -> str:
    """Returns the name of a split's file by its number, from 0."""
    return f"part_{index:05d}.parquet"


def write_parquet_part(path: Path, spec: FeatureSpec, groups: Iterable[ClickColumns]) -> None:
    """Writes one file of a split, chunk by chunk; it appears by a rename.

    Args:
        path: `<dataset>/parquet/<split>/part_NNNNN.parquet`.
        spec: columns of the dataset.
        groups: chunks of rows, at most PART_ROWS together. Each becomes row groups of at most
            ROW_GROUP_ROWS rows, with numerical features as float32.

    Raises:
        DatasetError: an id is outside its table.
    """
    schema = arrow_schema(spec)
    path.parent.mkdir(parents=True, exist_ok=True)
    with (
        whole_file(path) as file,
        pq.ParquetWriter(file, schema, compression="snappy", write_page_checksum=True) as writer,
    ):
        first_row = 0
        for group in groups:
            group.check_shape(spec)
            group.check_ids(spec, "rows to write", first_row)
            first_row += len(group)
            numerical = group.numerical.astype(np.float32, copy=False)
            arrays = [column_of(group.label.astype(np.int32))]
            arrays += [column_of(c) for c in numerical.T]
            arrays += [column_of(ids.astype(np.int32)) for ids in group.categorical]
            table = pa.Table.from_arrays(arrays, schema=schema)
            writer.write_table(table, row_group_size=ROW_GROUP_ROWS)


def write_metadata_file(folder: Path) -> None:
    """Writes `_metadata`, which lists the row groups of a split's files.

    Dask, and so NVTabular and merlin, can then plan their reads without opening each file.
    """
    paths = _parts(folder)
    footers = [pq.read_metadata(path) for path in paths]
    for path, footer in zip(paths, footers, strict=True):
        footer.set_file_path(path.name)
    schema = pq.read_schema(paths[0])
    temporary = folder / (METADATA_FILE + ".tmp")
    pq.write_metadata(schema, temporary, metadata_collector=footers)
    temporary.replace(folder / METADATA_FILE)


class ParquetReader(RowReader):
    """Reads one split, by row group or by row number.

    Args:
        root: folder of the dataset (with `parquet/<split>/` or `<split>/*.parquet`).
        split: `train`, `validation` or `test`.
        spec: columns of the dataset; None reads feature_spec.yaml, or the schema of the files.
        cardinalities: cardinality of each categorical feature, for files of other software that
            have no spec; see `spec_of_plain`.
        check_ids: whether to refuse ids outside their tables.

    Attributes:
        files: files of the split, in the order of their rows.
        group_rows: rows of each row group, in order.

    Raises:
        DatasetError: there are no files, or one is damaged or lacks a column.
    """

    format_name = "parquet"
    _KEPT_GROUPS = 3

    def __init__(
        self,
        root: Path,
        split: str,
        spec: FeatureSpec | None = None,
        cardinalities: Sequence[int] = (),
        *,
        check_ids: bool = True,
    ) -> None:
        self.folder = _find_folder(root, split)
        self.files = _parts(self.folder)
        _log_files(self.folder)
        # Footers are read once. Files are opened again for each row group, to keep few handles.
        footers = [_read_footer(p) for p in self.files]
        metadata, schemas = [m for m, _ in footers], [s for _, s in footers]
        if spec is None and cardinalities:
            spec = spec_of_plain(self.files[0], schemas[0], cardinalities)
        super().__init__(spec or spec_of(root, self.files[0], schemas[0]), check_ids=check_ids)
        self._columns = column_names(self.spec)
        self._schema = schemas[0]
        self._is_by_types = spec_folder(root, self.files[0]) is None
        if self._is_by_types:
            self._label_remedy = label_rule(self._schema)
        for path, schema in zip(self.files, schemas, strict=True):
            check_schema(path, schema, self.spec, by_types=self._is_by_types)
        self._groups = [
            (path, group)
            for path, m in zip(self.files, metadata, strict=True)
            for group in range(m.num_row_groups)
        ]
        self.group_rows = [
            m.row_group(g).num_rows for m in metadata for g in range(m.num_row_groups)
        ]
        self._first_rows = list(itertools.accumulate(self.group_rows, initial=0))
        self.num_rows = self._first_rows[-1]
        self._kept: dict[int, ClickColumns] = {}
        self._lock = threading.Lock()

    @property
    def column_lines(self) -> list[str]:
        """Lines that say how each column is used, if there is no spec."""
        return describe_columns(self._schema, self.spec) if self._is_by_types else []

    def path_of(self, column: str, row: int) -> Path:  # noqa: ARG002
        """Returns the file of a row."""
        return self._groups[self._group_of(row)][0]

    def _group_of(self, row: int) -> int:
        return bisect.bisect_right(self._first_rows, row, hi=len(self._groups)) - 1

    def blocks(self) -> list[range]:
        """Returns the rows of each row group that is not empty."""
        pairs = itertools.pairwise(self._first_rows)
        return [range(first, last) for first, last in pairs if first < last]

    def read(self, start: int, stop: int) -> ClickColumns:
        """Returns rows [start, stop); keeps the row groups decoded last.

        Raises:
            DatasetError: see `read_group`.
        """
        if not 0 <= start < stop <= self.num_rows:
            raise IndexError(f"rows [{start}, {stop}) of {self.num_rows}")
        slices = []
        while start < stop:
            index = self._group_of(start)
            first = self._first_rows[index]
            with self._lock:
                if index not in self._kept:
                    self._kept[index] = self.read_group(index)
                    while len(self._kept) > self._KEPT_GROUPS:
                        self._kept.pop(next(iter(self._kept)))
                slices.append(self._kept[index][start - first : stop - first])
            start += len(slices[-1])
        return slices[0] if len(slices) == 1 else ClickColumns.concatenate(slices)

    def read_group(self, index: int) -> ClickColumns:
        """Returns the rows of one row group.

        Raises:
            DatasetError: the file is damaged, a value is null, a label is neither 0 nor 1, a
                number is not finite, or a checked id is outside its table.
        """
        first, last = self._first_rows[index : index + 2]
        return self._checked(self.read_unchecked(first, last), first, check_ids=self._check_ids)

    def read_unchecked(self, start: int, stop: int) -> RawColumns:
        """Returns rows [start, stop) of a row group, with float32 numbers.

        Raises:
            DatasetError: the file is damaged, or a value is null.
        """
        index = self._group_of(start)
        table = pa.concat_tables(self._tables(index))
        return self._columns_of(table.slice(start - self._first_rows[index], stop - start), index)

    def stream(self, start: int = 0) -> Iterator[ClickColumns]:
        """Yields the rows from number `start` on, by row group.

        Large row groups are split, to bound the memory.

        Raises:
            DatasetError: see `read_group`.
        """
        for index, rows in enumerate(self.group_rows):
            row = self._first_rows[index]
            if row + rows <= start:
                continue
            for table in self._tables(index):
                skipped = min(max(start - row, 0), len(table))
                if skipped < len(table):
                    raw = self._columns_of(table.slice(skipped), index)
                    yield self._checked(raw, row + skipped, check_ids=self._check_ids)
                row += len(table)

    def _tables(self, index: int) -> Iterator[pa.Table]:
        """Yields a row group as one table, or as several if it is large."""
        path, group = self._groups[index]
        large = self.group_rows[index] > _MAX_ROWS_AT_ONCE
        # Otherwise Arrow reads all columns of the row group before it decodes the first row.
        bounded = {"buffer_size": _STREAM_BUFFER_BYTES, "pre_buffer": False} if large else {}
        try:
            with pq.ParquetFile(path, page_checksum_verification=True, **bounded) as file:
                if not large:
                    yield file.read_row_group(group, columns=self._columns)
                    return
                for batch in file.iter_batches(
                    ROW_GROUP_ROWS, row_groups=[group], columns=self._columns
                ):
                    yield pa.Table.from_batches([batch])
        except _DAMAGE as error:
            raise DatasetError(
                f"{path}: row group {group} is not readable: {error}; the file is damaged or cut "
                "short: prepare the dataset again",
                path=path,
            ) from error

    def _columns_of(self, table: pa.Table, index: int) -> RawColumns:
        """Returns a row group's table as arrays, with ids as signed integers."""
        path, group = self._groups[index]
        nulls = [n for n in table.column_names if table.column(n).null_count]
        if nulls:
            raise DatasetError(
                f"{path}: row group {group} has missing values in {nulls}, which prepared data "
                "never has: fill them in, or prepare the dataset again",
                path=path,
            )
        numerical = [numbers_of(table.column(n)) for n in self.spec.numerical]
        return RawColumns(
            numbers_of(table.column(self.spec.label)),
            np.stack(numerical, axis=1).astype(np.float32, copy=False)
            if numerical
            else np.empty((len(table), 0), np.float32),
            tuple(_signed(table.column(f.name), path, f.name) for f in self.spec.categorical),
        )


def _signed(column: pa.ChunkedArray, path: Path, name: str) -> npt.NDArray[np.signedinteger]:
    if pa.types.is_unsigned_integer(column.type):
        try:
            column = column.cast(pa.int64())
        except pa.ArrowInvalid as error:
            raise DatasetError(
                f"{path}: feature {name}: {error}; ids must lie below 2^63: prepare the dataset "
                "again with a `category_modulus`",
                setting="category_modulus",
                path=path,
            ) from error
    ids: npt.NDArray[np.signedinteger] = numbers_of(column)
    return ids


def has_parquet(root: Path, *splits: str) -> bool:
    """Returns whether one of the splits (all by default) has parquet files."""
    return any(_folder_of(root, split) is not None for split in splits or SPLIT_FOLDERS)


def spec_by_ids(root: Path) -> FeatureSpec:
    """Derives a spec from the largest ids, for files without one.

    Raises:
        DatasetError: a file is damaged or lacks a column, or an id is too large.
    """
    folders = filter(None, (_folder_of(root, split) for split in SPLIT_FOLDERS))
    paths = [path for folder in folders for path in _parts(folder)]
    _, schema = _read_footer(paths[0])
    _, names = plain_columns(schema)
    sizes = dict.fromkeys(names, 1)
    for path, name in itertools.product(paths, names):
        try:
            largest = pc.max(pq.read_table(path, columns=[name])[name]).as_py()
        except (*_DAMAGE, KeyError) as error:
            raise DatasetError(
                f"{path}: column {name} is not readable: {error}", path=path, column=name
            ) from error
        sizes[name] = max(sizes[name], (largest or 0) + 1)
    return spec_of_plain(paths[0], schema, list(sizes.values()))


def _folder_of(root: Path, split: str) -> Path | None:
    folders = (base / name for base in (root / FOLDER, root) for name in SPLIT_FOLDERS[split])
    return next((folder for folder in folders if any(folder.glob(PART_FILES))), None)


def _find_folder(root: Path, split: str) -> Path:
    folder = _folder_of(root, split)
    if folder is not None:
        return folder
    raise DatasetError(
        f"{root}: no parquet files for the {split} split (looked for {FOLDER}/{split}/*.parquet "
        f"and {split}/*.parquet); prepare the dataset with `format` parquet",
        setting="format",
    )


def _parts(folder: Path) -> list[Path]:
    """Returns the files of a split in the order of their rows."""
    return sorted(folder.glob(PART_FILES), key=lambda path: by_number(path.name))


@functools.cache
def _log_files(folder: Path) -> None:
    """Logs, once for each folder, its files and the ones that readers skip.

    Raises:
        DatasetError: folders inside it hold more files.
    """
    parts = _parts(folder)
    nested = sorted({path.parent.name for path in folder.glob(f"[!._]*/{PART_FILES}")})
    if nested:
        raise DatasetError(
            f"{folder}: has {len(parts)} parquet files, and more in folders that are not read "
            f"({show_names(nested)}): move all files into one folder"
        )
    if len(parts) > 1:
        first, last = parts[0].name, parts[-1].name
        logger.info("%s: %d files, from %s to %s", folder, len(parts), first, last)
    if names := sorted(path.name for path in folder.glob("[._]*.parquet")):
        logger.warning(
            "%s: skips %s: files whose names begin with . or _ are not data",
            folder,
            show_names(names),
        )


def _read_footer(path: Path) -> tuple[pq.FileMetaData, pa.Schema]:
    try:
        require_regular(path)
        metadata = pq.read_metadata(path)
        return metadata, metadata.schema.to_arrow_schema()
    except UnicodeEncodeError as error:
        raise DatasetError(
            f"{path}: Arrow can only read paths in UTF-8: rename the folder", path=path
        ) from error
    except _DAMAGE as error:
        raise DatasetError(
            f"{path}: not readable as parquet: {error}; the file is damaged or cut short: prepare "
            "the dataset again",
            path=path,
        ) from error
