# SPDX-License-Identifier: Apache-2.0
"""Opens the click log of a run: its folder, manifest and features."""

import contextlib
import dataclasses
import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dlrm.config import DataConfig
from recsys.data.errors import DatasetError
from recsys.data.feature_spec import MODEL_SIZE_FILE, SPEC_FILE, FeatureSpec
from recsys.data.formats.npy_days import NpyReader
from recsys.data.formats.records import BinaryRecordsReader
from recsys.data.manifest import LOG_KINDS, MANIFEST_FILE, Manifest, fingerprint
from recsys.data.parquet import ParquetReader
from recsys.data.positioned_io import open_for_reading, read_array
from recsys.data.row_reader import RowReader
from recsys.data.split_binary import Access, SplitBinaryReader
from recsys.data.split_layout import GROUP_DTYPE, GROUP_FILE, find_split
from recsys.train.origin import Origin

logger = logging.getLogger(__name__)

_MAX_LENGTH = 2
"""Index of the greatest length in the rule of a list that a manifest records."""
_DICTIONARIES = "dictionaries/cat_"
_GENERATED = "synthetic"
"""Fingerprint of all generated data: its ids have no meaning."""
_MEANINGLESS = frozenset({"preset", "shuffle_seed", "unlabelled", "applied"})
"""Keys of the semantics that do not change ids, numbers or the split of a training row."""


@dataclasses.dataclass(frozen=True, slots=True)
class OpenedDataset:
    """A click log on disk, or generated data.

    Attributes:
        config: settings of the dataset.
        spec: features of the dataset.
        manifest: manifest of the dataset; None if it is missing or not readable.
        column_lines: for parquet without a spec, lines that say how each column is used.
    """

    config: DataConfig
    spec: FeatureSpec
    manifest: Manifest | None = None
    column_lines: Sequence[str] = ()

    @classmethod
    def open(cls, config: DataConfig, num_numerical: int) -> "OpenedDataset":
        """Opens the dataset of a run.

        Args:
            config: settings of the dataset, and table sizes if given.
            num_numerical: number of numerical features, for data without this number: synthetic
                data, model_size.json and folders without a spec.

        Raises:
            DatasetError: the folder or the spec is missing or malformed.
        """
        config.require_folder()
        root = config.folder
        manifest = _read_manifest(root)
        if config.is_synthetic:
            spec = FeatureSpec.criteo(config.synthetic_dataset_table_sizes, num_numerical)
            return cls(config, spec, manifest)
        if manifest is not None:
            manifest.require_data(root, "clicks", "dataset")
        sizes, lines = config.num_embeddings_per_feature, list[str]()
        files = ((root / name).is_file() for name in (SPEC_FILE, MODEL_SIZE_FILE))
        has_spec = any(files)
        if config.dataset_type == "parquet":
            reader = ParquetReader(root, "train", cardinalities=() if has_spec else sizes)
            spec, lines = reader.spec, [] if has_spec else reader.column_lines
        elif sizes and not has_spec:
            spec = FeatureSpec.criteo(sizes, num_numerical, "float32")
        else:
            spec = FeatureSpec.load(root, num_numerical)
        if spec.lists and manifest is None:
            raise DatasetError(
                f"`dataset`: {root} has lists but no {MANIFEST_FILE} with their greatest lengths; "
                "get the dataset again",
                setting="dataset",
            )
        spec = _resized(spec, sizes) if sizes and has_spec else spec
        return cls(config, spec, manifest, lines)

    @property
    def root(self) -> Path:
        """Folder of the dataset."""
        return self.config.folder

    @property
    def has_labels(self) -> bool:
        """Whether the rows have labels."""
        return self.manifest is None or not self.manifest.is_unlabelled

    @property
    def shares_id_zero(self) -> bool:
        """Whether id 0 means missing, rare and unseen values.

        The manifest shows which program assigned the ids. In a dataset without a manifest, 0 may be
        an ordinary id.
        """
        return self.manifest is not None and self.manifest.kind in LOG_KINDS

    @property
    def group_column(self) -> str | None:
        """Column by which a schema groups rows for GAUC; None if there is none."""
        schema = (self.manifest.semantics.get("schema") if self.manifest else None) or {}
        groups = (column["name"] for column in schema.get("columns", ()) if column.get("group"))
        return next(groups, None)

    def groups(self, split: str) -> npt.NDArray[np.int64]:
        """Returns [rows] group of each row of a split, -1 for rows without a group.

        Raises:
            DatasetError: the file of groups is missing or cut short.
        """
        if self.config.dataset_type not in ("split", "memmap"):
            raise DatasetError(
                f"`dataset_type` {self.config.dataset_type} does not store groups of a schema; "
                "use split"
            )
        path = find_split(self.root, split) / GROUP_FILE
        with contextlib.ExitStack() as closing:
            fd = open_for_reading(path)
            closing.callback(os.close, fd)
            return read_array(fd, path, GROUP_DTYPE, 0, self.rows(split).num_rows)

    def with_features(self, features: Sequence[int]) -> "OpenedDataset":
        """Returns the dataset with only some of its categorical features."""
        return dataclasses.replace(self, spec=self.spec.with_features(features))

    def rows(self, split: str, *, check_ids: bool = True) -> RowReader:
        """Opens the rows of a split.

        Args:
            split: `train`, `validation` or `test`.
            check_ids: whether to refuse ids outside their tables.

        Raises:
            DatasetError: the split is missing or damaged.
        """
        if self.config.dataset_type == "parquet":
            return ParquetReader(self.root, split, self.spec, check_ids=check_ids)
        if self.config.dataset_type == "binary":
            return BinaryRecordsReader(self.root, split, self.spec, check_ids=check_ids)
        if self.config.dataset_type == "npy":
            return NpyReader(self.root, split, self.spec, check_ids=check_ids)
        return self.columns(split, check_ids=check_ids)

    def columns(self, split: str, *, check_ids: bool = True) -> SplitBinaryReader:
        """Opens a split stored as one file per column, see `rows`."""
        access: Access = "memmap" if self.config.dataset_type == "memmap" else "pread"
        reader = SplitBinaryReader(self.root, split, self.spec, access, check_ids=check_ids)
        reader.advise_sequential()
        return reader

    def origin(self, table_sizes: Sequence[int]) -> Origin:
        """Returns the identity of the dataset: tables, dictionaries and settings.

        All formats and layouts of the same data have the same identity.

        Args:
            table_sizes: rows of the table of each categorical feature.
        """
        names = self.spec.table_names
        sizes = {f"rows of {name}": n for name, n in zip(names, table_sizes, strict=True)}
        manifest = self.manifest
        if self.config.is_synthetic or (manifest is not None and manifest.kind == _GENERATED):
            return Origin(sizes, _GENERATED)
        if manifest is None:
            return Origin(sizes)
        files = {n: f for n, f in manifest.files.items() if n.startswith(_DICTIONARIES)}
        semantics = {
            name: value
            for name, value in manifest.semantics.items()
            if name not in _MEANINGLESS and value is not False  # older manifests lack the setting
        }
        # Without ids, only the semantics determine what the numbers mean, not the rows.
        has_dictionaries = bool(files) or not sizes
        own = fingerprint(files) if has_dictionaries else manifest.fingerprint
        return Origin(sizes, own, semantics)


def list_lengths(semantics: Mapping[str, Any]) -> tuple[int, ...]:
    """Returns the greatest lengths of the lists of a schema."""
    columns = (semantics.get("schema") or {}).get("columns", ())
    return tuple(each["list"][_MAX_LENGTH] for each in columns if each.get("list"))


def _read_manifest(root: Path) -> Manifest | None:
    if not (root / MANIFEST_FILE).is_file():
        return None
    try:
        return Manifest.load(root)
    except DatasetError as error:
        logger.warning("%s", error)
        return None


def _resized(spec: FeatureSpec, sizes: Sequence[int]) -> FeatureSpec:
    if len(sizes) != len(spec.categorical):
        raise DatasetError(
            f"`num_embeddings_per_feature` gives {len(sizes)} sizes, but the feature spec of the "
            f"dataset has {len(spec.categorical)} categorical features; give one size for each",
            setting="num_embeddings_per_feature",
        )
    resized = (
        dataclasses.replace(feature, cardinality=size)
        for feature, size in zip(spec.categorical, sizes, strict=True)
    )
    return dataclasses.replace(spec, categorical=tuple(resized))
