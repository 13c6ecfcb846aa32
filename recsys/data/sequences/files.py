# SPDX-License-Identifier: Apache-2.0
"""Writer and reader of item sequences.

docs/dataset_format.md describes the files.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from recsys.data.arrow_columns import column_of, numbers_of
from recsys.data.errors import DatasetError
from recsys.data.manifest import Manifest
from recsys.data.positioned_io import require_regular
from recsys.data.sequences.histories import RawIds, Sequences, Times
from recsys.files.durable import whole_file

FOLDER = "sequences"
ITEM_MAP_FILE = "item_map.parquet"
USER_MAP_FILE = "user_map.parquet"

ROW_GROUP_USERS = 65_536
PART_USERS = 4 * ROW_GROUP_USERS
MAP_GROUP_ROWS = 1_048_576

SEQUENCE_SCHEMA = pa.schema(
    [
        pa.field("user_id", pa.int64(), nullable=False),
        pa.field("items", pa.list_(pa.field("item", pa.int32(), nullable=False)), nullable=False),
    ]
)
ITEM_MAP_SCHEMA = pa.schema(
    [
        pa.field("item_id", pa.int32(), nullable=False),
        pa.field("raw_id", pa.string(), nullable=False),
        pa.field("count", pa.int64(), nullable=False),
    ]
)
USER_MAP_SCHEMA = pa.schema(
    [pa.field("user_id", pa.int64(), nullable=False), *list(ITEM_MAP_SCHEMA)[1:]]
)

DAY_ROWS = "rows"
"""Folder of a growing dataset with the rows of each day: `user`, `item` and perhaps `timestamp`."""
TIMES = "timestamps"
"""Column of the times, which only datasets with a temporal split have."""

_DAMAGE = (pa.ArrowException, OSError, ValueError, OverflowError)
_AGAIN = "prepare the dataset again"


def part_name(index: int) -> str:
    """Returns the name of a file of sequences by its number, from 0."""
    return f"part-{index:04d}.parquet"


def write_sequences(root: Path, sequences: Sequences, users: RawIds, items: RawIds) -> None:
    """Writes the files of a dataset, except the manifest.

    The bytes depend only on the arguments.

    Raises:
        DatasetError: the sequences break the rules of the format.
    """
    sequences.check("sequences to write")
    if len(users) != sequences.num_users or len(items) != sequences.num_items:
        raise ValueError("sequences and maps have different numbers of users or items")
    (root / FOLDER).mkdir(parents=True, exist_ok=True)
    schema = _schema_of(sequences.timestamps)
    for index, first in enumerate(range(0, max(sequences.num_users, 1), PART_USERS)):
        last = min(first + PART_USERS, sequences.num_users)
        groups = (
            _sequence_table(sequences, start, min(start + ROW_GROUP_USERS, last))
            for start in range(first, last, ROW_GROUP_USERS)
        )
        write_parquet(root / FOLDER / part_name(index), schema, groups)
    _write_map(root / ITEM_MAP_FILE, ITEM_MAP_SCHEMA, items, first_id=1)
    _write_map(root / USER_MAP_FILE, USER_MAP_SCHEMA, users, first_id=0)


def _schema_of(times: Times | None) -> pa.Schema:
    if times is None:
        return SEQUENCE_SCHEMA
    kind = pa.int64() if times.dtype == np.int64 else pa.float64()
    column = pa.list_(pa.field("timestamp", kind, nullable=False))
    return SEQUENCE_SCHEMA.append(pa.field(TIMES, column, nullable=False))


def _sequence_table(sequences: Sequences, start: int, stop: int) -> pa.Table:
    schema = _schema_of(sequences.timestamps)
    offsets = sequences.offsets[start : stop + 1]
    rows = slice(offsets[0], offsets[-1])
    if rows.stop - rows.start > np.iinfo(np.int32).max:
        raise DatasetError(f"users {start} to {stop} have more than 2**31 items in one row group")
    ends = column_of((offsets - offsets[0]).astype(np.int32))
    columns = [column_of(np.arange(start, stop, dtype=np.int64))]
    values: dict[str, Any] = {"items": sequences.items, TIMES: sequences.timestamps}
    for field in list(schema)[1:]:
        array = column_of(values[field.name][rows])
        columns.append(pa.ListArray.from_arrays(ends, array, type=field.type))
    return pa.Table.from_arrays(columns, schema=schema)


def _write_map(path: Path, schema: pa.Schema, ids: RawIds, *, first_id: int) -> None:
    dense = np.arange(first_id, first_id + len(ids), dtype=str(schema.field(0).type))
    table = pa.Table.from_arrays([column_of(dense), ids.raw, column_of(ids.counts)], schema=schema)
    write_parquet(path, schema, (table,))


def write_parquet(
    path: Path, schema: pa.Schema, tables: Iterator[pa.Table] | tuple[pa.Table]
) -> None:
    """Writes tables to one file, which appears only when complete."""
    with (
        whole_file(path) as file,
        pq.ParquetWriter(file, schema, compression="snappy") as writer,
    ):
        for table in tables:
            writer.write_table(table, row_group_size=MAP_GROUP_ROWS)


def read_sequences(root: Path) -> Sequences:
    """Reads all sequences of a dataset.

    Raises:
        DatasetError: a file is missing, damaged, or breaks the rules of the format.
    """
    _require_ratings(root, ITEM_MAP_FILE)
    num_items = _count_rows(root / ITEM_MAP_FILE)
    paths = sorted((root / FOLDER).glob("part-*.parquet"))
    if [p.name for p in paths] != [part_name(i) for i in range(len(paths))] or not paths:
        raise DatasetError(
            f"{root / FOLDER}: must hold {part_name(0)}, {part_name(1)}, ... without a gap, found "
            f"{', '.join(p.name for p in paths) or 'none'}; {_AGAIN}"
        )
    schema = _schema_on_disk(paths[0])
    items, times, ends, first_user = [], [], [np.zeros(1, np.int64)], 0
    for path in paths:
        table = read_table(path, schema)
        ids = numbers_of(table.column("user_id"))
        if not np.array_equal(ids, np.arange(first_user, first_user + len(ids))):
            raise DatasetError(
                f"{path}: user_id must be {first_user}, {first_user + 1}, ... row by row; {_AGAIN}",
                path=path,
            )
        first_user += len(ids)
        items += _values(path, table.column("items"))
        for chunk in table.column("items").chunks:
            starts = numbers_of(chunk.offsets).astype(np.int64)
            ends.append(starts[1:] - starts[0] + ends[-1][-1])
        if TIMES in schema.names:
            times += _values(path, table.column(TIMES))
            lengths = (pc.list_value_length(table.column(name)) for name in ("items", TIMES))
            if not pc.all(pc.equal(*lengths), min_count=0).as_py():
                raise DatasetError(
                    f"{path}: a user has more or fewer timestamps than items; {_AGAIN}",
                    path=path,
                )
    sequences = Sequences(
        _joined(items, np.empty(0, np.int32)),
        np.concatenate(ends),
        num_items,
        _joined(times, np.empty(0, np.int64)) if TIMES in schema.names else None,
    )
    sequences.check(root / FOLDER)
    return sequences


def _schema_on_disk(path: Path) -> pa.Schema:
    """Returns the schema that all files must have, from the first one."""
    try:
        require_regular(path)
        schema = pq.read_schema(path)
    except _DAMAGE as error:
        raise DatasetError(
            f"{path}: is missing or damaged ({error}); {_AGAIN}", path=path
        ) from error
    if TIMES not in schema.names:
        return SEQUENCE_SCHEMA
    kind = schema.field(TIMES).type
    is_real = pa.types.is_list(kind) and kind.value_type == pa.float64()
    return _schema_of(np.empty(0, np.float64 if is_real else np.int64))


def _values(path: Path, column: pa.ChunkedArray) -> list[npt.NDArray[Any]]:
    """Returns the elements of each chunk's lists."""
    for chunk in column.chunks:
        if chunk.values.null_count:
            raise DatasetError(f"{path}: an item is missing (null); {_AGAIN}", path=path)
    return [numbers_of(chunk.flatten()) for chunk in column.chunks]


def _joined(arrays: list[npt.NDArray[Any]], nothing: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Joins arrays; a single array is not copied."""
    return arrays[0] if len(arrays) == 1 else np.concatenate([*arrays, nothing])


def read_item_map(root: Path) -> RawIds:
    """Reads raw ids and counts of the items 1, 2, ...

    Raises:
        DatasetError: the file is missing, damaged, or breaks the rules of the format.
    """
    _require_ratings(root, ITEM_MAP_FILE)
    return _read_map(root / ITEM_MAP_FILE, ITEM_MAP_SCHEMA, first_id=1)


def read_user_map(root: Path) -> RawIds:
    """Reads raw ids and counts of the users 0, 1, ...

    Raises:
        DatasetError: the file is missing, damaged, or breaks the rules of the format.
    """
    _require_ratings(root, USER_MAP_FILE)
    return _read_map(root / USER_MAP_FILE, USER_MAP_SCHEMA, first_id=0)


def _require_ratings(root: Path, name: str) -> None:
    """Refuses a dataset of another kind, which has no such file.

    Raises:
        DatasetError: says what it is.
    """
    if (root / name).exists():
        return
    try:
        manifest = Manifest.load(root)
    except DatasetError:  # without a manifest, the file is what is missing
        return
    manifest.require_data(root, "ratings")


def _read_map(path: Path, schema: pa.Schema, *, first_id: int) -> RawIds:
    table = read_table(path, schema)
    ids = numbers_of(table.column(0))
    if not np.array_equal(ids, np.arange(first_id, first_id + len(ids))):
        raise DatasetError(
            f"{path}: {schema.names[0]} must be {first_id}, {first_id + 1}, ... row by row; "
            f"{_AGAIN}",
            path=path,
        )
    raw = table.column("raw_id").combine_chunks()
    return RawIds(raw, numbers_of(table.column("count")))


def _count_rows(path: Path) -> int:
    try:
        require_regular(path)
        return int(pq.read_metadata(path).num_rows)
    except _DAMAGE as error:
        raise DatasetError(
            f"{path}: is missing or damaged ({error}); {_AGAIN}", path=path
        ) from error


def read_table(path: Path, schema: pa.Schema) -> pa.Table:
    """Reads a file that must have the columns of a schema, and no nulls.

    Raises:
        DatasetError: the file is missing, damaged, or has other columns.
    """
    try:
        require_regular(path)
        with pq.ParquetFile(path) as file:
            table = file.read()
        table.validate(full=True)
    except _DAMAGE as error:
        raise DatasetError(
            f"{path}: is missing or damaged ({error}); {_AGAIN}", path=path
        ) from error
    if _columns(table.schema) != _columns(schema):
        raise DatasetError(
            f"{path}: columns must be {_show(schema)}, found {_show(table.schema)}; {_AGAIN}",
            path=path,
        )
    nulls = [n for n in table.column_names if table.column(n).null_count]
    if nulls:
        raise DatasetError(f"{path}: has missing values in {', '.join(nulls)}; {_AGAIN}", path=path)
    return table


def _columns(schema: pa.Schema) -> list[tuple[str, str]]:
    """Returns the names and types of the columns, without the names of list elements."""
    return [
        (f.name, f"list<{f.type.value_type}>" if pa.types.is_list(f.type) else str(f.type))
        for f in schema
    ]


def _show(schema: pa.Schema) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in _columns(schema))
