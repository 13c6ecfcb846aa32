# SPDX-License-Identifier: Apache-2.0
"""Item sequences of users, with writer and reader.

docs/dataset_format.md describes the files.
"""

import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import xxhash

from recsys.data.errors import DatasetError

_BLOCK_USERS = 1 << 18
FOLDER = "sequences"
ITEM_MAP_FILE = "item_map.parquet"
USER_MAP_FILE = "user_map.parquet"

MIN_LENGTH = 3
"""Length of the shortest sequence: an item each to train, validate and test on."""
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

_DAMAGE = (pa.ArrowException, OSError, ValueError, OverflowError)
_AGAIN = "prepare the dataset again"


@dataclasses.dataclass(frozen=True, slots=True)
class Sequences:
    """The histories of all users, in time order.

    User u has `items[offsets[u] : offsets[u + 1]]`; the last item is for the test, the last but
    one for validation, the rest for training.

    Attributes:
        items: int32 item numbers, from 1 to `num_items`, of all users one after the other.
        offsets: [U + 1] int64 index of each user's first item, then the number of all items.
        num_items: items of the catalogue; 0 is padding.
    """

    items: npt.NDArray[np.int32]
    offsets: npt.NDArray[np.int64]
    num_items: int

    @property
    def num_users(self) -> int:
        """Users, numbered from 0."""
        return len(self.offsets) - 1

    def __getitem__(self, user: int) -> npt.NDArray[np.int32]:
        """Returns the whole history of a user, as a view."""
        if not 0 <= user < self.num_users:
            raise IndexError(f"user {user} of {self.num_users}")
        return self.items[self.offsets[user] : self.offsets[user + 1]]

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """[U] items of each user."""
        return np.diff(self.offsets)

    @property
    def test_items(self) -> npt.NDArray[np.int32]:
        """[U] the last item of each user."""
        return self.items[self.offsets[1:] - 1]

    @property
    def validation_items(self) -> npt.NDArray[np.int32]:
        """[U] the last item but one of each user."""
        return self.items[self.offsets[1:] - 2]

    def check(self, where: Path | str) -> None:
        """Refuses sequences that break the rules of the format.

        Raises:
            DatasetError: a sequence is too short, or an id is outside the catalogue.
        """
        short = np.flatnonzero(self.lengths < MIN_LENGTH)
        if len(short):
            raise DatasetError(
                f"{where}: user {short[0]} has {self.lengths[short[0]]} items, the shortest "
                f"sequence that splits has {MIN_LENGTH}; {_AGAIN}"
            )
        if not len(self.items):
            return
        if self.items.min() < 1 or self.items.max() > self.num_items:
            first_bad = int(np.argmax((self.items < 1) | (self.items > self.num_items)))
            user = int(np.searchsorted(self.offsets, first_bad, side="right")) - 1
            raise DatasetError(
                f"{where}: user {user} has the item {self.items[first_bad]}, ids lie in "
                f"[1, {self.num_items}]; {_AGAIN}"
            )


@dataclasses.dataclass(frozen=True, slots=True)
class RawIds:
    """Raw ids and counts, in the order of users or items.

    Attributes:
        raw: raw ids as strings.
        counts: interactions of each.
    """

    raw: pa.Array
    counts: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.counts)


def part_name(index: int) -> str:
    """Returns the name of a file of sequences by its number."""
    return f"part-{index:04d}.parquet"


def write_sequences(root: Path, sequences: Sequences, users: RawIds, items: RawIds) -> None:
    """Writes the files of a dataset, without the manifest.

    The bytes depend on the arguments alone.

    Raises:
        DatasetError: the sequences break the rules of the format.
    """
    sequences.check("sequences to write")
    if len(users) != sequences.num_users or len(items) != sequences.num_items:
        raise ValueError("sequences and maps have different numbers of users or items")
    (root / FOLDER).mkdir(parents=True, exist_ok=True)
    for index, first in enumerate(range(0, max(sequences.num_users, 1), PART_USERS)):
        last = min(first + PART_USERS, sequences.num_users)
        groups = (
            _sequence_table(sequences, start, min(start + ROW_GROUP_USERS, last))
            for start in range(first, last, ROW_GROUP_USERS)
        )
        write_parquet(root / FOLDER / part_name(index), SEQUENCE_SCHEMA, groups)
    _write_map(root / ITEM_MAP_FILE, ITEM_MAP_SCHEMA, items, first_id=1)
    _write_map(root / USER_MAP_FILE, USER_MAP_SCHEMA, users, first_id=0)


def _sequence_table(sequences: Sequences, start: int, stop: int) -> pa.Table:
    offsets = sequences.offsets[start : stop + 1]
    items = sequences.items[offsets[0] : offsets[-1]]
    if len(items) > np.iinfo(np.int32).max:
        raise DatasetError(f"users {start} to {stop} have more than 2**31 items in one row group")
    lists = pa.ListArray.from_arrays(
        pa.array((offsets - offsets[0]).astype(np.int32)),
        pa.array(items),
        type=SEQUENCE_SCHEMA.field("items").type,
    )
    ids = pa.array(np.arange(start, stop, dtype=np.int64))
    return pa.Table.from_arrays([ids, lists], schema=SEQUENCE_SCHEMA)


def _write_map(path: Path, schema: pa.Schema, ids: RawIds, *, first_id: int) -> None:
    dense = np.arange(first_id, first_id + len(ids), dtype=str(schema.field(0).type))
    table = pa.Table.from_arrays([pa.array(dense), ids.raw, pa.array(ids.counts)], schema=schema)
    write_parquet(path, schema, (table,))


def write_parquet(
    path: Path, schema: pa.Schema, tables: Iterator[pa.Table] | tuple[pa.Table]
) -> None:
    """Writes tables to one file, which appears when it is complete."""
    temporary = path.with_name(path.name + ".tmp")
    try:
        with (
            temporary.open("wb") as file,
            pq.ParquetWriter(file, schema, compression="snappy") as writer,
        ):
            for table in tables:
                writer.write_table(table, row_group_size=MAP_GROUP_ROWS)
            writer.close()
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def read_sequences(root: Path) -> Sequences:
    """Reads all sequences of a dataset.

    Raises:
        DatasetError: a file is missing, damaged, or breaks the rules of the format.
    """
    num_items = _count_rows(root / ITEM_MAP_FILE)
    paths = sorted((root / FOLDER).glob("part-*.parquet"))
    if [p.name for p in paths] != [part_name(i) for i in range(len(paths))] or not paths:
        raise DatasetError(
            f"{root / FOLDER}: must hold {part_name(0)}, {part_name(1)}, ... without a gap, found "
            f"{', '.join(p.name for p in paths) or 'none'}; {_AGAIN}"
        )
    items, ends, first_user = [], [np.zeros(1, np.int64)], 0
    for path in paths:
        table = read_table(path, SEQUENCE_SCHEMA)
        ids = table.column("user_id").to_numpy()
        if not np.array_equal(ids, np.arange(first_user, first_user + len(ids))):
            raise DatasetError(
                f"{path}: user_id must be {first_user}, {first_user + 1}, ... row by row; {_AGAIN}"
            )
        first_user += len(ids)
        for chunk in table.column("items").chunks:
            if chunk.values.null_count:
                raise DatasetError(f"{path}: an item is missing (null); {_AGAIN}")
            items.append(chunk.flatten().to_numpy())
            starts = chunk.offsets.to_numpy().astype(np.int64)
            ends.append(starts[1:] - starts[0] + ends[-1][-1])
    flat = items[0] if len(items) == 1 else np.concatenate([*items, np.empty(0, np.int32)])
    sequences = Sequences(flat, np.concatenate(ends), num_items)
    sequences.check(root / FOLDER)
    return sequences


def read_item_map(root: Path) -> RawIds:
    """Reads raw ids and counts of the items 1, 2, ...

    Raises:
        DatasetError: the file is missing, damaged, or breaks the rules of the format.
    """
    return _read_map(root / ITEM_MAP_FILE, ITEM_MAP_SCHEMA, first_id=1)


def read_user_map(root: Path) -> RawIds:
    """Reads raw ids and counts of the users 0, 1, ...

    Raises:
        DatasetError: the file is missing, damaged, or breaks the rules of the format.
    """
    return _read_map(root / USER_MAP_FILE, USER_MAP_SCHEMA, first_id=0)


def _read_map(path: Path, schema: pa.Schema, *, first_id: int) -> RawIds:
    table = read_table(path, schema)
    ids = table.column(0).to_numpy()
    if not np.array_equal(ids, np.arange(first_id, first_id + len(ids))):
        raise DatasetError(
            f"{path}: {schema.names[0]} must be {first_id}, {first_id + 1}, ... row by row; "
            f"{_AGAIN}"
        )
    raw = table.column("raw_id").combine_chunks()
    return RawIds(raw, table.column("count").to_numpy())


def _count_rows(path: Path) -> int:
    try:
        return int(pq.read_metadata(path).num_rows)
    except _DAMAGE as error:
        raise DatasetError(f"{path}: is missing or damaged ({error}); {_AGAIN}") from error


def read_table(path: Path, schema: pa.Schema) -> pa.Table:
    """Reads a file whose columns are those of a schema, without nulls.

    Raises:
        DatasetError: it is missing, damaged, or has other columns.
    """
    try:
        with pq.ParquetFile(path) as file:
            table = file.read()
        table.validate(full=True)
    except _DAMAGE as error:
        raise DatasetError(f"{path}: is missing or damaged ({error}); {_AGAIN}") from error
    if _columns(table.schema) != _columns(schema):
        raise DatasetError(
            f"{path}: columns must be {_show(schema)}, found {_show(table.schema)}; {_AGAIN}"
        )
    nulls = [n for n in table.column_names if table.column(n).null_count]
    if nulls:
        raise DatasetError(f"{path}: has missing values in {', '.join(nulls)}; {_AGAIN}")
    return table


def _columns(schema: pa.Schema) -> list[tuple[str, str]]:
    """Returns names and types, without the name of a list's elements."""
    return [
        (f.name, f"list<{f.type.value_type}>" if pa.types.is_list(f.type) else str(f.type))
        for f in schema
    ]


def _show(schema: pa.Schema) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in _columns(schema))


def order_raw_ids(raw: pa.Array) -> npt.NDArray[np.int64]:
    """Sorts raw ids by length, then by bytes, and returns the order.

    For integers without leading zeros this is the order of their values.
    """
    table = pa.table({"length": pc.binary_length(raw), "raw": raw})
    order: npt.NDArray[np.uint64] = pc.sort_indices(
        table, sort_keys=[("length", "ascending"), ("raw", "ascending")]
    ).to_numpy()
    return order.astype(np.int64)


def split_fingerprint(sequences: Sequences, users: RawIds, items: RawIds) -> str:
    """Returns a checksum of the leave-one-out split, in raw ids.

    It depends on the raw log alone: XXH3-128 over a line `user TAB training items TAB validation
    item TAB test item LF` of each user, in the order of `order_raw_ids`.
    """
    digest = xxhash.xxh3_128()
    order = order_raw_ids(users.raw)
    train = sequences.lengths - 2
    validation, test = sequences.validation_items - 1, sequences.test_items - 1
    for start in range(0, len(order), _BLOCK_USERS):
        chosen = order[start : start + _BLOCK_USERS]
        columns = [
            users.raw.take(pa.array(chosen)),
            pc.cast(pa.array(train[chosen]), pa.string()),
            items.raw.take(pa.array(validation[chosen])),
            pc.binary_join_element_wise(items.raw.take(pa.array(test[chosen])), "", "\n"),
        ]
        lines = pc.binary_join_element_wise(*columns, "\t")
        digest.update(
            pc.binary_join(pa.ListArray.from_arrays([0, len(lines)], lines), "")[0].as_buffer()
        )
    return digest.hexdigest()
