# SPDX-License-Identifier: Apache-2.0
"""Opens the sequences that the settings name."""

from pathlib import Path

from bert4rec.config import DataConfig
from bert4rec.data.random_sequences import random_sequences
from recsys.data.manifest import Manifest
from recsys.data.sequences import Sequences, read_sequences


def dataset_root(config: DataConfig) -> Path | None:
    """Returns the folder of the dataset; None for `random`, which has none."""
    if config.dataset_name == "random":
        return None
    return Path(config.dataset_path or config.dataset_name)


def dataset_fingerprint(config: DataConfig) -> str | None:
    """Returns a prepared dataset's fingerprint; None for `random`.

    The settings of `random` fix its sequences.
    """
    root = dataset_root(config)
    return None if root is None else Manifest.load(root).fingerprint


def open_sequences(config: DataConfig, seed: int) -> Sequences:
    """Returns the sequences of a run.

    Args:
        config: names the dataset.
        seed: of the dataset `random`.

    Raises:
        ValueError: the dataset is not there, damaged, or not prepared.
    """
    root = dataset_root(config)
    if root is None:
        return random_sequences(
            config.random_user_count,
            config.random_item_count,
            config.random_size,
            config.min_user_count,
            seed,
        )
    if not (root / "manifest.json").is_file():
        program = "amazon" if config.dataset_name == "amazon" else "movielens"
        raise ValueError(
            f"--dataset_path {root}: no prepared dataset (no manifest.json). Make one from the raw "
            f"ratings with `python -m preproc.{program}`, then name its output folder"
        )
    return read_sequences(root)
