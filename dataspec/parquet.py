# SPDX-License-Identifier: Apache-2.0
"""Parquet: one folder per split, parts of fixed row counts, columns named by the feature spec."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dataspec.click_columns import ClickColumns, RawColumns, check_label
from dataspec.errors import DatasetError
from dataspec.feature_spec import SPEC_FILE, CategoricalFeature, FeatureSpec
from dataspec.split_layout import SPLIT_FOLDERS

FOLDER = "parquet"
ROW_GROUP_ROWS = 262_144
"""Eight batches of 32,768: long enough for sequential reads, short enough to stream."""
PART_ROWS = 4 * ROW_GROUP_ROWS

_DAMAGE = (pa.ArrowException, OSError, ValueError, OverflowError)
"""What Arrow raises for damaged files; a ValueError comes from names that are not UTF-8."""


def part_name(index: int) -> str:
    """Returns the file name of a part."""
    return f"part_{index:05d}.parquet"


def arrow_schema(spec: FeatureSpec) -> pa.Schema:
    """Returns label int32, numerical float32, categorical int32, with cardinalities as metadata."""
    fields = [pa.field(spec.label, pa.int32())]
    fields += [pa.field(n, pa.float32()) for n in spec.numerical]
    fields += [
        pa.field(f.name, pa.int32(), metadata={"cardinality": str(f.cardinality)})
        for f in spec.categorical
    ]
    return pa.schema([f.with_nullable(False) for f in fields])


def write_parquet_part(path: Path, spec: FeatureSpec, groups: Iterable[ClickColumns]) -> None:
    """Writes one part file, by rename, holding one row group in memory at a time.

    Args:
        path: `<dataset>/parquet/<split>/part_NNNNN.parquet`.
        spec: the columns.
        groups: runs of rows, at most PART_ROWS in all; each becomes row groups of at most
            ROW_GROUP_ROWS rows. numerical is stored as float32.

    Raises:
        DatasetError: an id is outside its table.
    """
    schema = arrow_schema(spec)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    try:
        with (
            temporary.open("wb") as file,
            pq.ParquetWriter(file, schema, compression="snappy") as writer,
        ):
            first_row = 0
            for group in groups:
                group.check_shape(spec)
                group.check_ids(spec, "rows to write", first_row)
                first_row += len(group)
                numerical = group.numerical.astype(np.float32, copy=False)
                arrays = [pa.array(group.label.astype(np.int32))]
                arrays += [pa.array(np.ascontiguousarray(c)) for c in numerical.T]
                arrays += [pa.array(ids.astype(np.int32)) for ids in group.categorical]
                table = pa.Table.from_arrays(arrays, schema=schema)
                writer.write_table(table, row_group_size=ROW_GROUP_ROWS)
            writer.close()
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


class ParquetReader:
    """Reads one split row group by row group.

    Args:
        root: the dataset folder (with `parquet/<split>/` or `<split>/*.parquet`).
        split: `train`, `validation` or `test`.
        spec: the columns; None reads feature_spec.yaml, or the schema of the files.

    Attributes:
        num_rows: rows of the split.
        group_rows: rows of each row group, in order.

    Raises:
        DatasetError: no part is there, or a part is damaged or lacks a column.
    """

    def __init__(self, root: Path, split: str, spec: FeatureSpec | None = None) -> None:
        self.folder = _find_folder(root, split)
        self._paths = sorted(self.folder.glob("*.parquet"))
        # Footers are read once; files are opened again per group, so that handles stay few.
        footers = [_read_footer(p) for p in self._paths]
        metadata, schemas = [m for m, _ in footers], [s for _, s in footers]
        self.spec = spec if spec is not None else _spec_of(root, self._paths[0], schemas[0])
        self._columns = [
            self.spec.label,
            *self.spec.numerical,
            *(f.name for f in self.spec.categorical),
        ]
        for path, schema in zip(self._paths, schemas, strict=True):
            self._check_schema(path, schema)
        self._groups = [
            (path, group)
            for path, m in zip(self._paths, metadata, strict=True)
            for group in range(m.num_row_groups)
        ]
        self.group_rows = [
            m.row_group(g).num_rows for m in metadata for g in range(m.num_row_groups)
        ]
        self.num_rows = sum(self.group_rows)

    def _check_schema(self, path: Path, schema: pa.Schema) -> None:
        missing = [c for c in self._columns if schema.names.count(c) != 1]
        if missing:
            raise DatasetError(
                f"{path}: columns {missing} of the feature spec are missing (or there twice); the "
                f"file has {schema.names}; give the spec that belongs to it"
            )
        checks = {f.name: ("integers", pa.types.is_integer) for f in self.spec.categorical}
        checks |= dict.fromkeys(
            self.spec.numerical, ("floating point numbers", pa.types.is_floating)
        )
        checks[self.spec.label] = ("numbers or booleans", _is_label_type)
        for name, (wanted, check) in checks.items():
            kind = schema.field(name).type
            if not check(kind):
                raise DatasetError(
                    f"{path}: column {name} must hold {wanted}, got {kind}; cast it, or prepare "
                    "the dataset again"
                )

    def path_of_group(self, index: int) -> Path:
        """Returns the part file that holds a row group."""
        return self._groups[index][0]

    def read_group(self, index: int) -> ClickColumns:
        """Returns the rows of one row group, with narrow id dtypes; may be called from threads.

        Raises:
            DatasetError: the part is damaged, a value is null, a label is neither 0 nor 1, or an
                id is outside its table.
        """
        path, first_row = self.path_of_group(index), sum(self.group_rows[:index])
        raw = self.read_group_unchecked(index)
        label = check_label(raw.label, self.spec.label, path, first_row)
        columns = ClickColumns(label, raw.numerical, raw.categorical)
        # Checked before narrowing: a narrowed id that wrapped around could look valid.
        columns.check_ids(self.spec, path, first_row)
        narrow = zip(raw.categorical, self.spec.categorical, strict=True)
        return ClickColumns(label, raw.numerical, tuple(ids.astype(f.dtype) for ids, f in narrow))

    def read_group_unchecked(self, index: int) -> RawColumns:
        """Returns the rows of one row group as the file holds them, numerical as float32.

        Raises:
            DatasetError: the part is damaged, or a value is null.
        """
        path, group = self._groups[index]
        try:
            with pq.ParquetFile(path) as file:
                table = file.read_row_group(group, columns=self._columns)
        except _DAMAGE as error:
            raise DatasetError(
                f"{path}: row group {group} is not readable: {error}; the part is damaged or was "
                "cut: prepare the dataset again"
            ) from error
        nulls = [n for n in table.column_names if table.column(n).null_count]
        if nulls:
            raise DatasetError(
                f"{path}: row group {group} has missing values in {nulls}; prepared data has "
                "none: fill them in, or prepare the dataset again"
            )
        numerical = [table.column(n).to_numpy() for n in self.spec.numerical]
        return RawColumns(
            table.column(self.spec.label).to_numpy(),
            np.stack(numerical, axis=1).astype(np.float32, copy=False)
            if numerical
            else np.empty((len(table), 0), np.float32),
            tuple(table.column(f.name).to_numpy() for f in self.spec.categorical),
        )

    def groups(self) -> Iterator[ClickColumns]:
        """Yields every row group in order."""
        for index in range(len(self._groups)):
            yield self.read_group(index)


def _find_folder(root: Path, split: str) -> Path:
    for base in (root / FOLDER, root):
        for name in SPLIT_FOLDERS[split]:
            if any((base / name).glob("*.parquet")):
                return base / name
    raise DatasetError(
        f"{root}: no parquet files for the {split} split (looked for {FOLDER}/{split}/*.parquet "
        f"and {split}/*.parquet); prepare the dataset with --format parquet"
    )


def _read_footer(path: Path) -> tuple[pq.FileMetaData, pa.Schema]:
    try:
        metadata = pq.read_metadata(path)
        return metadata, metadata.schema.to_arrow_schema()
    except _DAMAGE as error:
        raise DatasetError(
            f"{path}: not readable as parquet: {error}; the part is damaged or was cut: prepare "
            "the dataset again"
        ) from error


def _is_label_type(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind))


def _spec_of(root: Path, part: Path, schema: pa.Schema) -> FeatureSpec:
    """Returns the spec file's columns, or those of the schema written by this module."""
    for base in (root, part.parent.parent, part.parent.parent.parent):
        if (base / SPEC_FILE).is_file():
            return FeatureSpec.load(base)
    categorical = [
        CategoricalFeature(field.name, _cardinality(part, field))
        for field in schema
        if field.metadata and b"cardinality" in field.metadata
    ]
    if not categorical:
        raise DatasetError(
            f"{root}: no {SPEC_FILE}, and {part} carries no cardinalities; give the feature spec"
        )
    return FeatureSpec(
        categorical=tuple(categorical),
        numerical=tuple(f.name for f in schema if pa.types.is_floating(f.type)),
        label=schema.names[0],
        numerical_dtype="float32",
    )


def _cardinality(part: Path, field: pa.Field) -> int:
    text = field.metadata[b"cardinality"]
    if not text.isdigit() or len(text) > 10:
        raise DatasetError(
            f"{part}: column {field.name}: metadata cardinality {text[:20]!r} is not a number; "
            "give the feature spec"
        )
    return int(text)
