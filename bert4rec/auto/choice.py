# SPDX-License-Identifier: Apache-2.0
"""Chooses settings that suit histories, only from their lengths and counts; without torch.

The rules follow from the measurements in docs/bert4rec.md and are not specific to any dataset.
"""

import dataclasses
import math
import os
from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np

from bert4rec.config import Bert4RecConfig, DataConfig, ModelConfig, ObjectiveConfig
from bert4rec.config.optimizer import OptimizerConfig
from recsys.auto import require_training
from recsys.data.sequences.split import LEAVE_ONE_OUT
from recsys.ratings.data.opened import OpenedHistories
from recsys.ratings.data.split import training_lengths
from recsys.settings import declared

BASE = "best-short"
"""Preset that the choice changes."""
CHOSEN = frozenset(
    {
        *("max_len", "dropout", "loss", "num_negatives", "validation_users", "warmup_steps"),
        *("num_epochs", "max_steps", "test_freq", "patience"),
    }
)
"""Settings that the choice adapts to the dataset, or to the time that training may take."""

_LONG_MEDIAN, _SHORT_LEN, _LONG_LEN = 20, 50, 200
"""Median length from which histories count as long; `max_len` for short ones and long ones."""
_ITEMS_FOR_SAMPLES, _SAMPLES = 10_000, 4096
"""Catalogue size from which a step compares with sampled items only, and how many it samples."""
_OFTEN = 50
"""Interactions per item from which the dropout is less than a half."""
_EPOCHS, _ITEMS_OF_AN_EPOCH, _LEAST_STEPS = 12, 32, 400
"""Epochs of a training, items of a history in one epoch, and the fewest steps of a training. An
epoch takes one window of each history, so long histories need more epochs. With few users an epoch
has few steps."""
_VALIDATING = 2048
"""Users that are enough for a validation; the others train on their last item but one as well."""
_WARMUP, _VALIDATIONS, _PATIENCE = 0.05, 20, 8


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Traits:
    """Sizes of a dataset, on which the choice depends.

    Attributes:
        users: number of histories.
        items: number of items in the catalogue.
        interactions: items of all histories that a model may train on.
        median: median length of a history.
        longest: length of the longest history.
        leaves_one_out: True unless the split is temporal.
    """

    users: int
    items: int
    interactions: int
    median: float
    longest: int
    leaves_one_out: bool

    @classmethod
    def of(cls, config: DataConfig, seed: int) -> "Traits":
        """Reads the sizes of a dataset.

        Args:
            config: the dataset, with the split that the user gave, if any.
            seed: seeds the dataset `random`.

        Raises:
            UserError: the dataset is missing, damaged, or of another kind.
        """
        dataset = OpenedHistories.open(config)
        split = {} if dataset.manifest is None else dataset.manifest.semantics
        config = dataclasses.replace(config, split=split.get("split", LEAVE_ONE_OUT))
        sequences = dataset.sequences(config, seed)
        known = training_lengths(sequences)
        return cls(
            users=sequences.num_users,
            items=sequences.num_items,
            interactions=int(known.sum()),
            median=float(np.median(sequences.lengths)),
            longest=int(sequences.lengths.max()),
            leaves_one_out=sequences.temporal is None,
        )

    @property
    def per_item(self) -> float:
        """Interactions of an item."""
        return self.interactions / self.items

    def __str__(self) -> str:
        """Returns the sizes in words."""
        return (
            f"{self.users:,} users, {self.items:,} items, {self.per_item:,.3g} interactions to "
            f"train on per item, histories of {self.median:g} items at the median, "
            f"{self.longest:,} at most"
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Choice:
    """The settings that `config` auto chooses.

    Attributes:
        why: what the choice is based on, in words.
        reasons: a line for each decision.
        settings: chosen values by the name of the setting.
        steps: approximate steps of the training; 0 for a resumed run, whose length is known.
        step_size: sequences of a step.
        validated: approximate number of targets of a validation.
    """

    why: str
    reasons: list[str]
    settings: dict[str, Any]
    steps: int = 0
    step_size: int = 0
    validated: int = 0


def choose(traits: Traits, given: Mapping[str, Any], step_size: int) -> Choice:
    """Returns the settings that suit a dataset, on top of those of `BASE`.

    Args:
        traits: sizes of the dataset.
        given: settings that the user gave; the length and the validations follow them.
        step_size: sequences of a step.
    """
    reasons: list[str] = []
    settings: dict[str, Any] = {"warmup_steps": _WARMUP, "patience": _PATIENCE}

    def take(why: str, **chosen: Any) -> None:
        settings.update(chosen)
        told = " ".join(f"{n} {v}" for n, v in chosen.items() if n not in given)
        if told:
            reasons.append(f"{told}: {why}")

    is_long = traits.median >= _LONG_MEDIAN
    most = _LONG_LEN if is_long else _SHORT_LEN
    histories = f"{'long' if is_long else 'short'} histories, {traits.longest:,} items at most"
    take(histories, max_len=min(most, max(traits.longest, 2)))
    if traits.items >= _ITEMS_FOR_SAMPLES and not given.get("popularity_correction"):
        why = f"{traits.items:,} items are slow to compare with"
        take(why, loss="sampled", num_negatives=_SAMPLES)
    else:
        take(f"{traits.items:,} items are compared with", loss="full")
    per_item = f"{traits.per_item:,.3g} interactions per item"
    take(per_item, dropout=0.3 if traits.per_item >= _OFTEN else 0.5)
    if traits.leaves_one_out and traits.users > 2 * _VALIDATING:
        why = "these are enough to validate on, and the others train on their last item but one"
        take(why, validation_users=_VALIDATING)
    steps = _take_length(take, traits, given, step_size)
    reasons.append(f"all else as in {BASE}")
    validated = given.get("validation_users", settings.get("validation_users", traits.users))
    step_size = min(step_size, traits.users)
    return Choice(str(traits), reasons, settings, steps, step_size, validated)


def _take_length(
    take: Callable[..., None], traits: Traits, given: Mapping[str, Any], step_size: int
) -> int:
    """Chooses the epochs of a training and the steps between validations; returns its steps."""
    per_user = traits.interactions / traits.users
    of_epoch = math.ceil(traits.users / step_size)
    epochs = math.ceil(_EPOCHS * max(per_user / _ITEMS_OF_AN_EPOCH, 1))
    # A given number of steps decides how many epochs are needed.
    epochs = math.ceil(given.get("max_steps", max(epochs * of_epoch, _LEAST_STEPS)) / of_epoch)
    epochs = given.get("num_epochs", epochs)
    steps: int = min(epochs * of_epoch, given.get("max_steps", epochs * of_epoch))
    why = f"{per_user:,.3g} items to train on per history, {of_epoch:,} steps an epoch"
    take(why, num_epochs=epochs)
    freq = max(steps // _VALIDATIONS, 1)
    take(f"{_VALIDATIONS} validations, or a few more", test_freq=freq)
    return steps


_RESUMED = frozenset(
    field.name
    for section in (ModelConfig, ObjectiveConfig, OptimizerConfig)
    for field in declared(section)
) | {
    *("windows", "dupe_factor", "train_batch_size", "validation_users"),
    *("num_epochs", "max_steps", "test_freq", "patience"),
}
"""Settings that auto chooses, and all others of a section from which it chooses some."""


def choose_from(values: Mapping[str, Any], explicit: Collection[str]) -> Choice:
    """Returns the choice of auto; for a resumed run, the choice that it was started with.

    Args:
        values: every setting.
        explicit: names of those that the user gave.

    Raises:
        UserError: auto cannot choose here, or the dataset is refused.
    """
    config = Bert4RecConfig.from_dict(values, frozenset(explicit))
    run = config.run
    require_training("config", run.mode, run.load_checkpoint_path)
    if run.resume and (made := _made_choice(config)) is not None:
        return made
    traits = Traits.of(config.data, run.seed)
    given = {name: values[name] for name in explicit}
    batches = config.optimizer.accumulation_steps * int(os.environ.get("WORLD_SIZE", "1"))
    return choose(traits, given, config.data.train_batch_size * batches)


def _made_choice(config: Bert4RecConfig) -> Choice | None:
    """Returns the settings of the run to resume; None if it has saved no checkpoint."""
    from recsys.train.checkpoint import latest_config  # with torch

    assert config.checkpoint_folder is not None
    made = latest_config(config.checkpoint_folder)
    if made is None:
        return None
    checkpoint, stored = made
    taken = {name: value for name, value in stored.items() if name in _RESUMED}
    return Choice(f"continues with the settings of {checkpoint}", [], taken)
