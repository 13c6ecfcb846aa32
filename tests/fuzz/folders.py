# SPDX-License-Identifier: Apache-2.0
"""Folders of files - datasets, checkpoints, deployed versions - of which some are damaged.

A reader gives the right values or an error for people. Behind a checksum that agrees with the
damage, it may give other values, but nothing else.
"""

import contextlib
import dataclasses
import functools
import io
import json
import os
import shutil
import struct
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from recsys.data.manifest import file_checksum, fingerprint
from recsys.files.json_text import is_intact, signed
from tests.fuzz.documents import edited_json, edited_yaml
from tests.fuzz.target import Draws


@dataclasses.dataclass(frozen=True, slots=True)
class Folder:
    """A folder and what is done with it.

    Attributes:
        make: writes it, always the same.
        read: reads a copy.
        repair: makes the checksums of a copy agree with its files.
        expected: errors for people.
    """

    make: Callable[[Path], None]
    read: Callable[[Path], object]
    repair: Callable[[Path], None]
    expected: tuple[type[Exception], ...]

    def check(self, folder: Path, data: bytes) -> None:
        """Damages a copy of the folder and reads it."""
        draws, copy = Draws(data), folder / "copy"
        sound = made(self.make, folder.parent)
        shutil.copytree(sound, copy, copy_function=os.link)
        files = sorted(path for path in copy.rglob("*") if path.is_file())
        for _ in range(1 + draws.below(2)):
            _damage(draws, draws.pick(files))
        if draws.below(3):
            self.repair(copy)
        with contextlib.suppress(*self.expected):
            self.read(copy)


@functools.cache
def made(make: Callable[[Path], None], parent: Path) -> Path:
    """Returns a folder that is made once in a process, on the same disk as the copies."""
    folder = Path(tempfile.mkdtemp(prefix="fuzz_made_", dir=parent))
    make(folder)
    return folder


def replace(path: Path, content: bytes) -> None:
    """Replaces a file without a change of what it is linked to."""
    path.unlink(missing_ok=True)
    path.write_bytes(content)


def _damage(draws: Draws, path: Path) -> None:
    if not path.is_file():  # damaged before
        return
    content, kind = path.read_bytes(), draws.below(8)
    if kind == 0:
        path.unlink()
        how = draws.below(3)
        if how == 1:
            path.mkdir()
        elif how == 2:
            path.symlink_to(draws.pick(("nowhere", path.name, "/dev/null")))
    elif kind < 6 and path.suffix in _EDITS:
        try:
            content = _EDITS[path.suffix](draws, content)
        except (ValueError, struct.error, pa.ArrowException, OSError):  # damaged before
            content = draws.edited(content)
        replace(path, content)
    elif kind == 6:
        replace(path, draws.bytes(64))
    else:
        replace(path, draws.edited(content))


def _edited_safetensors(draws: Draws, content: bytes) -> bytes:
    (length,) = struct.unpack("<Q", content[:8])
    header = edited_json(draws, content[8 : 8 + length])
    header += b" " * (-len(header) % 8)
    size = draws.pick((len(header), len(header), len(header), len(header) + 8, 0, 2**63))
    return struct.pack("<Q", size) + header + content[8 + length :]


def _edited_parquet(draws: Draws, content: bytes) -> bytes:
    table = pq.read_table(io.BytesIO(content))
    for _ in range(1 + draws.below(2)):
        table = _edited_table(draws, table)
    out = io.BytesIO()
    pq.write_table(table, out, row_group_size=max(1, table.num_rows // (1 + draws.below(3))))
    return out.getvalue()


_TYPES: tuple[pa.DataType, ...] = (
    *(pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint32(), pa.uint64(), pa.float16()),
    *(pa.float32(), pa.float64(), pa.bool_(), pa.string(), pa.large_string(), pa.binary()),
    *(pa.timestamp("ms"), pa.date32(), pa.decimal128(20, 3), pa.null(), pa.list_(pa.int64())),
    *(pa.dictionary(pa.int32(), pa.string()), pa.binary(4), pa.string_view(), pa.duration("s")),
)


def _edited_table(draws: Draws, table: pa.Table) -> pa.Table:
    if not table.num_columns:
        return table
    at, kind = draws.below(table.num_columns), draws.below(7)
    column, name = table.column(at), table.column_names[at]
    if kind == 0:
        return table.remove_column(at)
    if kind == 1:
        return table.rename_columns(
            [
                draws.pick(("x", "", *table.column_names)) if i == at else n
                for i, n in enumerate(table.column_names)
            ]
        )
    if kind == 2:
        return table.slice(draws.below(4), draws.below(table.num_rows + 1))
    if kind == 3:
        return pa.concat_tables([table, table.slice(0, draws.below(3))])
    try:
        if kind == 4:
            column = column.cast(draws.pick(_TYPES))
        else:
            values = column.to_pylist()
            for _ in range(1 + draws.below(3)):
                if values:
                    odd: tuple[Any, ...] = (None, 0, -1, 2**31 - 1, 2**62, "", "x", True, 0.5)
                    values[draws.below(len(values))] = draws.pick((*odd, *values[:8]))
            column = pa.array(values, column.type)
        return table.set_column(at, name, column)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return table.set_column(at, name, pa.nulls(table.num_rows, draws.pick(_TYPES[:14])))


def _edited_numpy(draws: Draws, content: bytes) -> bytes:
    array = np.load(io.BytesIO(content))
    kind = draws.below(3)
    out = io.BytesIO()
    if kind == 0:
        array = array.astype(draws.pick(("i1", "u8", ">i4", "f2", "f8", "?", "U3", "M8[s]")))
    elif kind == 1:
        array = array[..., None] if draws.below(2) else array[:1]
    else:
        array = array.copy()
        array.flat[draws.below(max(1, array.size))] = draws.pick((0, -1, 127))
    np.save(out, array)
    return out.getvalue()


_EDITS: dict[str, Callable[[Draws, bytes], bytes]] = {
    ".json": edited_json,
    ".yaml": edited_yaml,
    ".safetensors": _edited_safetensors,
    ".parquet": _edited_parquet,
    ".npy": _edited_numpy,
}


def repair_manifest(root: Path) -> None:
    """Makes the manifest of a folder agree with its files, unless it was damaged itself."""
    path = root / "manifest.json"
    try:
        text = path.read_text()
        document = json.loads(text)
    except (OSError, ValueError):
        return
    if not is_intact(text):
        return
    del document["checksum"]
    for name, entry in document["files"].items():
        if (root / name).is_file():
            entry |= {"bytes": (root / name).stat().st_size, "xxh3_128": file_checksum(root / name)}
    if "fingerprint" in document:  # of a dataset
        document["fingerprint"] = fingerprint(document["files"])
    replace(path, signed(document).encode())
