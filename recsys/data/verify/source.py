# SPDX-License-Identifier: Apache-2.0
"""Opens a split in each of its formats."""

import functools
from collections.abc import Callable
from pathlib import Path

from recsys.data.errors import DatasetError
from recsys.data.feature_spec import FeatureSpec
from recsys.data.formats.npy_days import NpyReader, find_folder
from recsys.data.formats.records import SPLIT_FILES, BinaryRecordsReader
from recsys.data.parquet import ParquetReader, has_parquet
from recsys.data.row_reader import RowReader
from recsys.data.split_binary import SplitBinaryReader
from recsys.data.split_layout import split_folders


def open_readers(
    root: Path, split: str, spec: FeatureSpec
) -> tuple[list[RowReader], list[DatasetError]]:
    """Opens a split in each of its formats.

    Returns:
        (readers of the formats that are there, errors of those that cannot be opened).
    """
    has_columns = any(any(folder.glob("[!._]*.bin")) for folder in split_folders(root, split))
    if split in spec.files:
        has_columns |= (root / spec.files[split].label).is_file()
    formats: list[tuple[bool, Callable[[Path, str, FeatureSpec], RowReader]]] = [
        (has_columns, functools.partial(SplitBinaryReader, check_ids=True)),  # of lists
        (has_parquet(root, split), ParquetReader),
        (any((root / name).is_file() for name in SPLIT_FILES[split]), BinaryRecordsReader),
        (find_folder(root) is not None, NpyReader),
    ]
    readers, errors = [], []
    for is_present, open_reader in formats:
        if is_present:
            try:
                readers.append(open_reader(root, split, spec))
            except DatasetError as error:
                errors.append(error)
    return readers, errors
