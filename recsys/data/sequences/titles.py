# SPDX-License-Identifier: Apache-2.0
"""Titles of items, an optional file of a dataset of sequences.

docs/dataset_format.md describes it. Only people read titles, not models, so the fingerprint of a
dataset leaves them out.
"""

from pathlib import Path

import numpy as np
import pyarrow as pa

from recsys.data.arrow_columns import numbers_of
from recsys.data.errors import DatasetError
from recsys.data.manifest import TITLES_FILE
from recsys.data.sequences.files import read_table, write_parquet

TITLE_SCHEMA = pa.schema(
    [
        pa.field("item_id", pa.int32(), nullable=False),
        pa.field("title", pa.string(), nullable=False),
    ]
)


def write_titles(root: Path, titles: list[str]) -> None:
    """Writes the titles of the items 1, 2, ...; an unknown title is empty."""
    numbers = np.arange(1, len(titles) + 1, dtype=np.int32)
    table = pa.Table.from_arrays(
        [pa.array(numbers), pa.array(titles, pa.string())], schema=TITLE_SCHEMA
    )
    write_parquet(root / TITLES_FILE, TITLE_SCHEMA, (table,))


def read_titles(root: Path, num_items: int) -> list[str] | None:
    """Reads the titles of all items; None if the dataset has no titles.

    Raises:
        DatasetError: the file is damaged, or belongs to another catalogue.
    """
    path = root / TITLES_FILE
    if not path.is_file():
        return None
    table = read_table(path, TITLE_SCHEMA)
    if not np.array_equal(numbers_of(table.column("item_id")), np.arange(1, num_items + 1)):
        raise DatasetError(
            f"{path}: item_id must be 1, 2, ... {num_items} row by row; prepare the dataset again",
            path=path,
        )
    titles: list[str] = table.column("title").to_pylist()
    return titles
