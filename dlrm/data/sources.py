# SPDX-License-Identifier: Apache-2.0
"""The rows of a split by number, whatever the dataset type."""

import threading
from pathlib import Path
from typing import Protocol

from dataspec.binary_records import BinaryRecordsReader
from dataspec.click_columns import ClickColumns
from dataspec.errors import DatasetError
from dataspec.feature_spec import FeatureSpec
from dataspec.parquet import ParquetReader
from dataspec.split_binary import SplitBinaryReader
from dlrm.config import DataConfig


class RowSource(Protocol):
    """Rows of one split."""

    @property
    def spec(self) -> FeatureSpec:
        """The columns."""
        ...

    @property
    def num_rows(self) -> int:
        """Rows of the split."""
        ...

    def read(self, start: int, stop: int) -> ClickColumns:
        """Returns rows [start, stop); may be called from several threads."""
        ...


class ParquetRows:
    """Rows of a parquet split by number: keeps the last row groups that were decoded.

    Args:
        reader: of the split.
    """

    _KEPT_GROUPS = 3

    def __init__(self, reader: ParquetReader) -> None:
        self._reader = reader
        self._groups: dict[int, ClickColumns] = {}
        self._lock = threading.Lock()
        self.spec = reader.spec
        self.num_rows = reader.num_rows

    def read(self, start: int, stop: int) -> ClickColumns:
        """Returns rows [start, stop)."""
        parts = []
        first_row = 0
        for index, rows in enumerate(self._reader.group_rows):
            if first_row < stop and first_row + rows > start:
                group = self._group(index)
                parts.append(group[max(start - first_row, 0) : min(stop - first_row, rows)])
            first_row += rows
        if not parts:
            raise IndexError(f"rows [{start}, {stop}) of {self.num_rows}")
        return parts[0] if len(parts) == 1 else ClickColumns.concatenate(parts)

    def _group(self, index: int) -> ClickColumns:
        with self._lock:
            if index not in self._groups:
                self._groups[index] = self._reader.read_group(index)
                while len(self._groups) > self._KEPT_GROUPS:
                    self._groups.pop(next(iter(self._groups)))
            return self._groups[index]


def load_feature_spec(config: DataConfig, num_numerical: int) -> FeatureSpec:
    """Returns the spec of the dataset of a run.

    Args:
        config: says where it is.
        num_numerical: numerical features, where the spec does not tell (synthetic data and
            model_size.json).

    Raises:
        DatasetError: the folder or the spec is missing or malformed.
    """
    if config.is_synthetic:
        return FeatureSpec.criteo(config.synthetic_dataset_table_sizes, num_numerical)
    root = _root(config)
    if config.feature_spec is None:
        if config.dataset_type == "parquet":
            return ParquetReader(root, "train").spec
        return FeatureSpec.load(root, num_numerical)
    path = Path(config.feature_spec)
    path = path if path.is_absolute() else root / path
    if not path.is_file():
        raise DatasetError(f"--feature_spec: {path} is not a file")
    if path.suffix == ".json":
        return FeatureSpec.load_model_size(path, num_numerical)
    return FeatureSpec.load_yaml(path)


def open_rows(config: DataConfig, split: str, spec: FeatureSpec) -> RowSource:
    """Opens a split of the dataset of a run.

    Raises:
        DatasetError: it is missing or damaged.
    """
    root = _root(config)
    if config.dataset_type == "binary":
        return BinaryRecordsReader(root, split, spec)
    if config.dataset_type == "parquet":
        return ParquetRows(ParquetReader(root, split, spec))
    mapped = config.dataset_type == "memmap"
    reader = SplitBinaryReader(root, split, spec, access="memmap" if mapped else "pread")
    reader.advise_sequential()
    return reader


def _root(config: DataConfig) -> Path:
    root = Path(
        config.synthetic_dataset_dir
        if config.dataset_type == "synthetic_disk"
        else config.dataset or ""
    )
    if not root.is_dir():
        raise DatasetError(
            f"--dataset: {root} is not a folder; preproc/prepare_dataset.sh makes one from raw logs"
        )
    return root
