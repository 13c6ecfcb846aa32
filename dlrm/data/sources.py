# SPDX-License-Identifier: Apache-2.0
"""Opens the rows of a split, of any dataset type on disk."""

import dataclasses
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

from dlrm.config import DataConfig
from recsys.data.click_columns import ClickColumns
from recsys.data.errors import DatasetError
from recsys.data.feature_spec import MODEL_SIZE_FILE, SPEC_FILE, FeatureSpec
from recsys.data.manifest import SEQUENCES_KIND, Manifest
from recsys.data.npy_days import NpyReader
from recsys.data.parquet import ParquetReader
from recsys.data.records import BinaryRecordsReader
from recsys.data.split_binary import Access, SplitBinaryReader


class RowSource(Protocol):
    """Random access to the rows of a split."""

    @property
    def spec(self) -> FeatureSpec:
        """Features of the rows."""
        ...

    @property
    def num_rows(self) -> int:
        """Rows of the split."""
        ...

    @property
    def files(self) -> Sequence[Path]:
        """Files of the split."""
        ...

    def read(self, start: int, stop: int) -> ClickColumns:
        """Reads rows [start, stop); several threads may call it."""
        ...


@runtime_checkable
class StreamedRows(Protocol):
    """Sequential access, for rows that are cheapest to read in order."""

    def stream(self, start: int) -> Iterator[ClickColumns]:
        """Yields the rows from number `start` on, in blocks of any length."""
        ...


@runtime_checkable
class RowsReadInto(Protocol):
    """Random access to rows that are read into given memory."""

    def read_into(self, start: int, columns: ClickColumns) -> None:
        """Reads rows from number `start` on, as many as `columns` have."""
        ...


class ParquetRows:
    """Rows of a parquet split, by number or as row groups.

    Access by number caches the last decoded row groups.

    Args:
        reader: reader of the split.
        check_ids: refuse ids outside their tables.
    """

    _KEPT_GROUPS = 3

    def __init__(self, reader: ParquetReader, check_ids: bool = True) -> None:
        self._reader = reader
        self._check_ids = check_ids
        self._groups: dict[int, ClickColumns] = {}
        self._lock = threading.Lock()
        self.spec = reader.spec
        self.num_rows = reader.num_rows
        self.files = reader.paths

    def stream(self, start: int) -> Iterator[ClickColumns]:
        """Yields the rows from number `start` on, by row group."""
        return self._reader.groups(start, check_ids=self._check_ids)

    def read(self, start: int, stop: int) -> ClickColumns:
        """Reads rows [start, stop)."""
        slices = []
        first_row = 0
        for index, rows in enumerate(self._reader.group_rows):
            if first_row < stop and first_row + rows > start:
                group = self._group(index)
                slices.append(group[max(start - first_row, 0) : min(stop - first_row, rows)])
            first_row += rows
        if not slices:
            raise IndexError(f"rows [{start}, {stop}) of {self.num_rows}")
        return slices[0] if len(slices) == 1 else ClickColumns.concatenate(slices)

    def _group(self, index: int) -> ClickColumns:
        with self._lock:
            if index not in self._groups:
                self._groups[index] = self._reader.read_group(index, check_ids=self._check_ids)
                while len(self._groups) > self._KEPT_GROUPS:
                    self._groups.pop(next(iter(self._groups)))
            return self._groups[index]


def load_feature_spec(config: DataConfig, num_numerical: int) -> FeatureSpec:
    """Loads the feature spec of a run's dataset.

    Args:
        config: dataset and, if given, table sizes.
        num_numerical: number of numerical features, for data whose spec has none: synthetic data,
            model_size.json and folders without a spec.

    Raises:
        DatasetError: the folder or the spec is missing or malformed.
    """
    if config.is_synthetic and config.synthetic_dataset_use_feature_spec:
        real = _stored_spec(config, Path(config.dataset or ""), num_numerical)
        return FeatureSpec.criteo(real.table_sizes, len(real.numerical))
    if config.is_synthetic:
        return FeatureSpec.criteo(config.synthetic_dataset_table_sizes, num_numerical)
    root = dataset_root(config)
    sizes = config.num_embeddings_per_feature
    if not sizes:
        return _stored_spec(config, root, num_numerical)
    if not _has_spec(config, root):
        if config.dataset_type == "parquet":
            return ParquetReader(root, "train", cardinalities=sizes).spec
        return FeatureSpec.criteo(sizes, num_numerical, "float32")
    return _resized(_stored_spec(config, root, num_numerical), sizes)


def column_lines(config: DataConfig, spec: FeatureSpec) -> list[str]:
    """Returns lines on what each column without a spec was taken for.

    Args:
        config: dataset of the run.
        spec: its features, as `load_feature_spec` gives them.
    """
    if config.dataset_type != "parquet":
        return []
    root = dataset_root(config)
    return [] if _has_spec(config, root) else ParquetReader(root, "train", spec).column_lines


def _has_spec(config: DataConfig, root: Path) -> bool:
    """Tells whether a file names the features."""
    files = ((root / name).is_file() for name in (SPEC_FILE, MODEL_SIZE_FILE))
    return config.feature_spec is not None or any(files)


def _resized(spec: FeatureSpec, sizes: Sequence[int]) -> FeatureSpec:
    if len(sizes) != len(spec.categorical):
        raise DatasetError(
            f"`num_embeddings_per_feature` gives {len(sizes)} sizes, the feature spec of the "
            f"dataset has {len(spec.categorical)} categorical features; give one for each"
        )
    resized = (
        dataclasses.replace(feature, cardinality=size)
        for feature, size in zip(spec.categorical, sizes, strict=True)
    )
    return dataclasses.replace(spec, categorical=tuple(resized))


def _stored_spec(config: DataConfig, root: Path, num_numerical: int) -> FeatureSpec:
    if config.feature_spec is None:
        if config.dataset_type == "parquet":
            return ParquetReader(root, "train").spec
        return FeatureSpec.load(root, num_numerical)
    path = Path(config.feature_spec)
    path = path if path.is_absolute() else root / path
    if not path.is_file():
        raise DatasetError(f"`feature_spec`: {path} is not a file")
    if path.suffix == ".json":
        return FeatureSpec.load_model_size(path, num_numerical)
    return FeatureSpec.load_yaml(path)


def open_rows(
    config: DataConfig, split: str, spec: FeatureSpec, *, check_ids: bool = True
) -> RowSource:
    """Opens a split of a run's dataset.

    Args:
        config: folder and type of the dataset.
        split: `train`, `validation` or `test`.
        spec: features to read.
        check_ids: refuse ids outside their tables.

    Raises:
        DatasetError: the split is missing or damaged.
    """
    root = dataset_root(config)
    if config.dataset_type == "parquet":
        return ParquetRows(ParquetReader(root, split, spec), check_ids)
    if config.dataset_type == "binary":
        return BinaryRecordsReader(root, split, spec, check_ids=check_ids)
    if config.dataset_type == "npy":
        return NpyReader(root, split, spec, check_ids=check_ids)
    return open_columns(config, split, spec, check_ids=check_ids)


def open_columns(
    config: DataConfig, split: str, spec: FeatureSpec, *, check_ids: bool = True
) -> SplitBinaryReader:
    """Opens a split stored as a file per column, see `open_rows`."""
    access: Access = "memmap" if config.dataset_type == "memmap" else "pread"
    reader = SplitBinaryReader(dataset_root(config), split, spec, access, check_ids=check_ids)
    reader.advise_sequential()
    return reader


def dataset_root(config: DataConfig) -> Path:
    """Returns the folder of a run's dataset.

    Raises:
        DatasetError: it is no folder.
    """
    root = Path(
        config.synthetic_dataset_dir
        if config.dataset_type == "synthetic_disk"
        else config.dataset or ""
    )
    if not root.is_dir():
        raise DatasetError(
            f"`dataset`: {root} is not a folder; python -m preproc.criteo makes one from raw logs"
        )
    _refuse_sequences(root)
    return root


def _refuse_sequences(root: Path) -> None:
    try:
        is_sequences = Manifest.load(root).kind == SEQUENCES_KIND
    except DatasetError:  # reported by whoever needs the manifest
        return
    if is_sequences:
        raise DatasetError(
            f"`dataset`: {root} is a dataset of sequences, for BERT4Rec: train it by python -m "
            "bert4rec.scripts.main with `dataset_path`; DLRM takes click logs, of which python -m "
            "preproc.criteo makes a dataset"
        )
