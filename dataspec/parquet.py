# SPDX-License-Identifier: Apache-2.0
"""Parquet: one folder per split, parts of fixed row counts, columns named by the feature spec."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dataspec.click_columns import ClickColumns
from dataspec.errors import DatasetError
from dataspec.feature_spec import CategoricalFeature, FeatureSpec
from dataspec.split_binary import SPLIT_FOLDERS

FOLDER = "parquet"
ROW_GROUP_ROWS = 262_144
"""Eight batches of 32,768: long enough for sequential reads, short enough to stream."""
PART_ROWS = 4 * ROW_GROUP_ROWS


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


def write_parquet_part(path: Path, spec: FeatureSpec, columns: ClickColumns) -> None:
    """Writes one part file, by rename.

    Args:
        path: `<dataset>/parquet/<split>/part_NNNNN.parquet`.
        spec: the columns.
        columns: at most PART_ROWS rows; numerical is stored as float32.
    """
    schema = arrow_schema(spec)
    arrays = [pa.array(columns.label.astype(np.int32))]
    numerical = columns.numerical.astype(np.float32)
    arrays += [pa.array(np.ascontiguousarray(numerical[:, i])) for i in range(numerical.shape[1])]
    arrays += [pa.array(c.astype(np.int32)) for c in columns.categorical]
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    pq.write_table(
        pa.Table.from_arrays(arrays, schema=schema),
        temporary,
        row_group_size=ROW_GROUP_ROWS,
        compression="snappy",
    )
    temporary.replace(path)


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
        try:
            # Footers are read once; files are opened again per group, so that handles stay few.
            metadata = [pq.read_metadata(p) for p in self._paths]
            schema = pq.read_schema(self._paths[0])
        except (pa.ArrowException, OSError) as error:
            raise DatasetError(f"{self.folder}: a part is not readable: {error}") from error
        self.spec = spec if spec is not None else _spec_of(root, self.folder, schema)
        self._columns = [
            self.spec.label,
            *self.spec.numerical,
            *(f.name for f in self.spec.categorical),
        ]
        missing = [c for c in self._columns if c not in schema.names]
        if missing:
            raise DatasetError(
                f"{self._paths[0]}: columns {missing} of the feature spec are missing; "
                f"the file has {schema.names}"
            )
        self._groups = [
            (path, group)
            for path, m in zip(self._paths, metadata, strict=True)
            for group in range(m.num_row_groups)
        ]
        self.group_rows = [
            m.row_group(g).num_rows for m in metadata for g in range(m.num_row_groups)
        ]
        self.num_rows = sum(self.group_rows)

    def read_group(self, index: int) -> ClickColumns:
        """Returns the rows of one row group, with narrow id dtypes.

        Raises:
            DatasetError: the part is damaged, a value is null, or an id is outside its table.
        """
        path, group = self._groups[index]
        try:
            with pq.ParquetFile(path) as file:
                table = file.read_row_group(group, columns=self._columns)
        except (pa.ArrowException, OSError) as error:
            raise DatasetError(f"{path}: row group {group} is not readable: {error}") from error
        first_row = sum(self.group_rows[:index])
        nulls = [n for n in table.column_names if table.column(n).null_count]
        if nulls:
            raise DatasetError(
                f"{path}: row group {group} has missing values in {nulls}; prepared data has none"
            )
        raw = [table.column(f.name).to_numpy() for f in self.spec.categorical]
        numerical = [table.column(n).to_numpy() for n in self.spec.numerical]
        # Checked before narrowing: a narrowed id that wrapped around could look valid.
        ClickColumns(
            np.empty(len(table), np.bool_), np.empty((0, 0), np.float32), tuple(raw)
        ).check_ids(self.spec, path, first_row)
        return ClickColumns(
            table.column(self.spec.label).to_numpy() != 0,
            np.stack(numerical, axis=1).astype(np.float32, copy=False)
            if numerical
            else np.empty((len(table), 0), np.float32),
            tuple(ids.astype(f.dtype) for ids, f in zip(raw, self.spec.categorical, strict=True)),
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


def _spec_of(root: Path, folder: Path, schema: pa.Schema) -> FeatureSpec:
    """Returns the spec file's columns, or those of the schema written by this module."""
    for base in (root, folder.parent, folder.parent.parent):
        if (base / "feature_spec.yaml").is_file():
            return FeatureSpec.load(base)
    categorical = [
        CategoricalFeature(field.name, int(field.metadata[b"cardinality"]))
        for field in schema
        if field.metadata and b"cardinality" in field.metadata
    ]
    if not categorical:
        raise DatasetError(
            f"{root}: no feature_spec.yaml, and the files of {folder} carry no cardinalities; "
            "give the feature spec"
        )
    return FeatureSpec(
        categorical=tuple(categorical),
        numerical=tuple(f.name for f in schema if pa.types.is_floating(f.type)),
        label=schema.names[0],
        numerical_dtype="float32",
    )
