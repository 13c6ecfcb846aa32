# SPDX-License-Identifier: Apache-2.0
"""Identifies a run's dataset, so that checkpoints can be tied to it."""

import logging
from collections.abc import Sequence

from dlrm.config import DataConfig
from dlrm.data.sources import dataset_root
from recsys.data.errors import DatasetError
from recsys.data.feature_spec import FeatureSpec
from recsys.data.manifest import MANIFEST_FILE, Manifest, fingerprint
from recsys.train.origin import Origin

logger = logging.getLogger(__name__)

_DICTIONARIES = "dictionaries/"
_GENERATED = "synthetic"
"""Fingerprint of all generated data, whose ids mean nothing."""
_MEANINGLESS = frozenset({"preset", "shuffle_seed"})
"""Keys of the semantics that change neither an id, nor a number, nor a row's split."""


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
    root = dataset_root(config)
    if not (root / MANIFEST_FILE).is_file():
        return Origin(sizes)
    try:
        manifest = Manifest.load(root)
    except DatasetError as error:
        logger.warning("%s", error)
        return Origin(sizes)
    if manifest.kind == _GENERATED:
        return Origin(sizes, _GENERATED)
    files = {n: f for n, f in manifest.files.items() if n.startswith(_DICTIONARIES)}
    semantics = {n: v for n, v in manifest.semantics.items() if n not in _MEANINGLESS}
    return Origin(sizes, fingerprint(files) if files else manifest.fingerprint, semantics)
