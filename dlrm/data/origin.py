# SPDX-License-Identifier: Apache-2.0
"""Identifies a run's dataset, so that checkpoints can be tied to it."""

import logging
from collections.abc import Sequence

from dlrm.config import DataConfig
from dlrm.data.sources import dataset_root
from recsys.data.errors import DatasetError
from recsys.data.feature_spec import FeatureSpec
from recsys.data.manifest import CRITEO_KIND, MANIFEST_FILE, Manifest, fingerprint
from recsys.train.origin import Origin

logger = logging.getLogger(__name__)

_DICTIONARIES = "dictionaries/"
_GENERATED = "synthetic"
"""Fingerprint of all generated data, whose ids mean nothing."""
_MEANINGLESS = frozenset({"preset", "shuffle_seed", "unlabelled", "applied"})
"""Keys of the semantics that change neither an id, nor a number, nor a training row's split."""


def has_labels(config: DataConfig) -> bool:
    """Returns False for a dataset of rows that had no label."""
    manifest = None if config.is_synthetic else manifest_of(config)
    return manifest is None or not manifest.is_unlabelled


def shares_id_zero(config: DataConfig) -> bool:
    """Returns True if id 0 stands for missing, rare and unseen values.

    The manifest tells who gave the ids. In a dataset without one, 0 may be an id as any other.
    """
    manifest = None if config.is_synthetic else manifest_of(config)
    return manifest is not None and manifest.kind == CRITEO_KIND


def manifest_of(config: DataConfig) -> Manifest | None:
    """Returns the manifest of a dataset on disk, if it has one."""
    root = dataset_root(config)
    if not (root / MANIFEST_FILE).is_file():
        return None
    try:
        return Manifest.load(root)
    except DatasetError as error:
        logger.warning("%s", error)
        return None


def dataset_origin(config: DataConfig, spec: FeatureSpec, table_sizes: Sequence[int]) -> Origin:
    """Returns the identity of a dataset: tables, dictionaries and settings.

    It is the same for all formats and layouts of the same data.

    Args:
        config: dataset of the run.
        spec: its features.
        table_sizes: rows of the table of each categorical feature.
    """
    names = [feature.name for feature in spec.categorical]
    sizes = {f"rows of {name}": n for name, n in zip(names, table_sizes, strict=True)}
    if config.is_synthetic:
        return Origin(sizes, _GENERATED)
    manifest = manifest_of(config)
    if manifest is None:
        return Origin(sizes)
    if manifest.kind == _GENERATED:
        return Origin(sizes, _GENERATED)
    files = {n: f for n, f in manifest.files.items() if n.startswith(_DICTIONARIES)}
    semantics = {
        name: value
        for name, value in manifest.semantics.items()
        if name not in _MEANINGLESS and value is not False  # as in manifests before the setting
    }
    return Origin(sizes, fingerprint(files) if files else manifest.fingerprint, semantics)
