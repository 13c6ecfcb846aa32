# SPDX-License-Identifier: Apache-2.0
"""A run's histories, opened once: folder, manifest and sequences."""

import dataclasses
from pathlib import Path

import numpy as np
import pyarrow as pa

from recsys.data.manifest import TITLES_FILE, Manifest
from recsys.data.sequences.files import read_item_map, read_sequences, read_user_map
from recsys.data.sequences.histories import MIN_LENGTH, Sequences
from recsys.data.sequences.split import DICTIONARIES, parse_split
from recsys.errors import UserError
from recsys.ratings.config import HistoriesConfig
from recsys.ratings.data.split import validate_some_users
from recsys.ratings.data.temporal import split_by_time
from recsys.train.origin import Origin, check_same_dataset


@dataclasses.dataclass(frozen=True, slots=True)
class OpenedHistories:
    """A dataset of histories, or `random` without folder and manifest.

    Attributes:
        root: folder of the dataset; None for `random`.
        manifest: manifest of the dataset; None for `random`.
        setting: setting that names the dataset, for messages.
    """

    root: Path | None
    manifest: Manifest | None
    setting: str = "dataset_path"

    @classmethod
    def open(cls, config: HistoriesConfig) -> "OpenedHistories":
        """Opens the dataset that the settings name.

        Raises:
            UserError: the dataset is missing, not prepared, or of another kind.
        """
        config.require_folder()
        root = config.folder
        return cls(None, None) if root is None else cls.of_folder(root)

    @classmethod
    def of_folder(cls, root: Path, setting: str = "dataset_path") -> "OpenedHistories":
        """Opens a prepared dataset.

        Args:
            setting: setting that names the folder, for the message.

        Raises:
            UserError: it has no manifest, is of another kind, or a file was changed after it was
                prepared.
        """
        manifest = Manifest.load(root)
        manifest.require_data(root, "ratings", setting)
        manifest.check_newer(root, [root / name for name in manifest.files.keys() - {TITLES_FILE}])
        return cls(root, manifest, setting)

    @property
    def name(self) -> str:
        """Folder of the dataset, or "random", for messages."""
        return str(self.root or "random")

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the manifest; "random" for `random`, which its settings determine."""
        return "random" if self.manifest is None else self.manifest.fingerprint

    def follows(self, trained_on: Origin) -> bool:
        """Returns True if this is a later day of the dataset that a model was trained on."""
        history = [] if self.manifest is None else self.manifest.history
        return trained_on.fingerprint in {day["fingerprint"] for day in history}

    def check_model(
        self,
        checkpoint: Path,
        trained_on: Origin,
        num_items: int,
        *,
        new_users: bool = True,
        ignore_fingerprint: bool = False,
    ) -> None:
        """Refuses a model that was trained on other items; see `check_same_dataset`.

        Args:
            checkpoint: folder of the model's checkpoint.
            trained_on: training dataset of the model.
            num_items: items of this dataset.
            new_users: accept other users, if the items have the ids of the training dataset.
            ignore_fingerprint: compare only the number of items.
        """
        given_by = {} if self.manifest is None else self.manifest.semantics
        if new_users and trained_on.fingerprint in given_by.get(DICTIONARIES, []):
            return
        check_same_dataset(
            checkpoint,
            trained_on,
            Origin({"items": num_items}, self.fingerprint),
            self.name,
            f"name the training dataset with `{self.setting}`, or prepare new ratings with its "
            "items (recsys-recipes prepare ratings --dictionaries)",
            ignore_fingerprint=ignore_fingerprint,
        )

    def raw_ids(self, sequences: Sequences) -> tuple[pa.Array, pa.Array]:
        """Returns the raw ids of all users and items; numbers for `random`."""
        if self.root is not None:
            return read_user_map(self.root).raw, read_item_map(self.root).raw
        counts = (sequences.num_users, sequences.num_items)
        users, items = (pa.array([str(i + 1) for i in range(count)]) for count in counts)
        return users, items

    def sequences(self, config: HistoriesConfig, seed: int) -> Sequences:
        """Reads the histories and splits them.

        Args:
            config: settings of the split, and of `random`.
            seed: seeds the dataset `random`.

        Raises:
            UserError: the dataset is damaged.
        """
        if self.root is None:
            sequences = random_sequences(
                config.random_user_count,
                config.random_item_count,
                config.random_size,
                config.min_user_count,
                seed,
            )
        else:
            sequences = read_sequences(self.root)
        if config.validation_users is not None:
            users, _ = self.raw_ids(sequences)
            sequences = validate_some_users(sequences, config.validation_users, users)
        quantile = parse_split(config.split)
        if self.root is not None and quantile is not None:
            sequences = split_by_time(
                sequences,
                quantile,
                config.temporal_targets,
                config.temporal_validation,
                read_user_map(self.root).raw,
            )
        if sequences.num_items < 2:
            raise UserError(
                f"{self.root or '`random_item_count` 1'}: a catalogue of one item leaves nothing "
                "to rank, so every metric would be 1; use two or more items",
                setting="random_item_count",
            )
        return sequences


def random_sequences(
    num_users: int, num_items: int, num_interactions: int, min_user_count: int, seed: int
) -> Sequences:
    """Draws interactions uniformly, then drops users with too few.

    Args:
        num_users: users before short histories are dropped.
        num_interactions: interactions of all users together.
        min_user_count: shortest history that is kept, at least 3.
        seed: seeds the draws.

    Raises:
        UserError: no user is left.
    """
    generator = np.random.default_rng(seed)
    try:
        owners = generator.integers(0, num_users, num_interactions, dtype=np.int32)
        items = generator.integers(1, num_items + 1, num_interactions, dtype=np.int32)
    except (MemoryError, ValueError) as error:  # NumPy: exceeds memory, or the size of an array
        raise UserError(
            f"`random_size` {num_interactions} is too large: {error}; lower it",
            setting="random_size",
        ) from error
    lengths = np.bincount(owners, minlength=num_users)
    # Items are independent of users, so only the lengths of the histories matter.
    kept = lengths[lengths >= max(min_user_count, MIN_LENGTH)]
    if not len(kept):
        raise UserError(
            f"`dataset_name` random: none of {num_users} users got `min_user_count` "
            f"{min_user_count} of {num_interactions} interactions; raise `random_size` or lower "
            "`random_user_count`",
            settings=("dataset_name", "min_user_count", "random_size", "random_user_count"),
        )
    offsets = np.concatenate([[0], kept.cumsum()])
    return Sequences(items[: offsets[-1]], offsets, num_items)
