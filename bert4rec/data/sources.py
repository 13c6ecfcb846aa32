# SPDX-License-Identifier: Apache-2.0
"""Opens the sequences that the settings name."""

from pathlib import Path

from bert4rec.config import DataConfig
from bert4rec.data.random_sequences import random_sequences
from dataspec.sequences import Sequences, read_sequences


def open_sequences(config: DataConfig, seed: int) -> Sequences:
    """Returns the sequences of a run.

    Args:
        config: names the dataset.
        seed: of the dataset `random`.

    Raises:
        ValueError: the dataset is not there, damaged, or not prepared.
    """
    if config.dataset_name == "random":
        return random_sequences(
            config.random_user_count,
            config.random_item_count,
            config.random_size,
            config.min_user_count,
            seed,
        )
    root = Path(config.dataset_path or config.dataset_name)
    if not (root / "manifest.json").is_file():
        program = "amazon" if config.dataset_name == "amazon" else "movielens"
        raise ValueError(
            f"--dataset_path {root}: no prepared dataset (no manifest.json). Make one from the raw "
            f"ratings with `python -m preproc.{program}`, then name its output folder"
        )
    return read_sequences(root)
