# SPDX-License-Identifier: Apache-2.0
"""Opens the sequences that the settings name, or draws those of `random`."""

from pathlib import Path

import numpy as np
import pyarrow as pa

from bert4rec.config import DataConfig
from bert4rec.data.split import validate_some_users
from bert4rec.data.temporal import split_by_time
from recsys.data.manifest import MANIFEST_FILE, TITLES_FILE, Manifest
from recsys.data.sequences import (
    DICTIONARIES,
    MIN_LENGTH,
    Sequences,
    parse_split,
    read_item_map,
    read_sequences,
    read_user_map,
)
from recsys.errors import UserError


def dataset_root(config: DataConfig) -> Path | None:
    """Returns the folder of the dataset; None for `random`, which has none."""
    if config.dataset_name == "random":
        return None
    return Path(config.dataset_path or config.dataset_name)


def dataset_fingerprint(config: DataConfig) -> str:
    """Returns a prepared dataset's fingerprint; "random" for `random`.

    The settings of `random` fix its sequences.
    """
    root = dataset_root(config)
    return "random" if root is None else Manifest.load(root).fingerprint


def item_sources(root: Path | None) -> list[str]:
    """Returns fingerprints of the datasets that gave the item ids."""
    return [] if root is None else Manifest.load(root).semantics.get(DICTIONARIES, [])


def raw_ids(config: DataConfig, sequences: Sequences) -> tuple[pa.Array, pa.Array]:
    """Returns the raw ids of all users and items; numbers for `random`."""
    root = dataset_root(config)
    if root is not None:
        return read_user_map(root).raw, read_item_map(root).raw
    counts = (sequences.num_users, sequences.num_items)
    users, items = (pa.array([str(i + 1) for i in range(count)]) for count in counts)
    return users, items


def open_sequences(config: DataConfig, seed: int) -> Sequences:
    """Returns the sequences of a run.

    Args:
        config: settings that name the dataset.
        seed: seeds the dataset `random`.

    Raises:
        UserError: the dataset is not there, damaged, or not prepared.
    """
    root = dataset_root(config)
    if root is None:
        sequences = random_sequences(
            config.random_user_count,
            config.random_item_count,
            config.random_size,
            config.min_user_count,
            seed,
        )
    else:
        require_prepared(config, root)
        sequences = read_sequences(root)
        manifest = Manifest.load(root)
        manifest.check_newer(root, [root / name for name in manifest.files.keys() - {TITLES_FILE}])
        quantile = parse_split(config.split)
        if quantile is not None:
            sequences = split_by_time(
                sequences,
                quantile,
                config.temporal_targets,
                config.temporal_validation,
                read_user_map(root).raw,
            )
    if config.validation_users is not None:
        users, _ = raw_ids(config, sequences)
        sequences = validate_some_users(sequences, config.validation_users, users)
    if sequences.num_items < 2:
        raise UserError(
            f"{root or '`random_item_count` 1'}: a catalogue of one item leaves nothing to rank, "
            "every metric would be 1"
        )
    return sequences


def require_prepared(config: DataConfig, root: Path) -> None:
    """Refuses a folder without a prepared dataset.

    Raises:
        UserError: says how to make and to name one.
    """
    if (root / MANIFEST_FILE).is_file():
        return
    default = "" if config.dataset_path else f", the default for `dataset_name` {root}"
    program = "amazon" if config.dataset_name == "amazon" else "movielens"
    raise UserError(
        f"`dataset_path` {root}{default}: no prepared dataset (no {MANIFEST_FILE}). Make one from "
        f"the raw ratings with `python -m preproc.{program}`, then name its output folder"
    )


def random_sequences(
    num_users: int, num_items: int, num_interactions: int, min_user_count: int, seed: int
) -> Sequences:
    """Draws interactions uniformly, then leaves out users with too few.

    Args:
        num_users: users to draw for, before short histories are left out.
        num_items: items of the catalogue.
        num_interactions: draws for all users together.
        min_user_count: shortest history that is kept, at least 3.
        seed: seeds the draws.

    Raises:
        UserError: no user is left.
    """
    generator = np.random.default_rng(seed)
    try:
        owners = generator.integers(0, num_users, num_interactions, dtype=np.int32)
        items = generator.integers(1, num_items + 1, num_interactions, dtype=np.int32)
    except (MemoryError, ValueError) as error:  # NumPy: more than memory, or than an array holds
        raise UserError(f"`random_size` {num_interactions} is too large: {error}") from error
    lengths = np.bincount(owners, minlength=num_users)
    # Items are independent of users, so only the length of each history matters.
    kept = lengths[lengths >= max(min_user_count, MIN_LENGTH)]
    if not len(kept):
        raise UserError(
            f"`dataset_name` random: no user of {num_users} got `min_user_count` {min_user_count} "
            f"of {num_interactions} interactions; raise `random_size` or lower "
            "`random_user_count`"
        )
    offsets = np.concatenate([[0], kept.cumsum()])
    return Sequences(items[: offsets[-1]], offsets, num_items)
