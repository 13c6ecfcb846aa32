# SPDX-License-Identifier: Apache-2.0
"""Completes settings of the data from the dataset and the checkpoint."""

from collections.abc import Mapping
from typing import Any

from recsys.data.sequences.split import LEAVE_ONE_OUT
from recsys.errors import UserError
from recsys.ratings.config import HistoriesConfig
from recsys.ratings.data.opened import OpenedHistories
from recsys.train.checkpoint import Checkpoint
from recsys.train.config import SettingsOfRun

_FILTERS = ("min_user_count", "min_item_count", "min_rating", "split")
_TEMPORAL = frozenset({"temporal_targets", "temporal_validation"})


def data_settings(
    config: SettingsOfRun,
    dataset: OpenedHistories,
    checkpoint: Checkpoint | None,
    *,
    ignore_fingerprint: bool,
) -> dict[str, Any]:
    """Returns the filters and the split of the prepared dataset and the trained model.

    Args:
        config: settings as the user gave them, including a `HistoriesConfig`.
        checkpoint: the model that the run loads, if any.
        ignore_fingerprint: accept a model that was trained with another split.

    Raises:
        UserError: the checkpoint, the dataset and the settings contradict each other.
    """
    values = config.to_dict()
    changes = _dataset_filters(config, dataset)
    if changes.get("split", values["split"]) == LEAVE_ONE_OUT:
        for name in sorted(_TEMPORAL & config.explicit):
            raise UserError(
                f"`{name}` needs a temporal split, but the dataset has the `split` "
                f"{LEAVE_ONE_OUT}: leave it out, or prepare the ratings with a `split` such as "
                "temporal:0.9",
                settings=(name, "split"),
            )
    if checkpoint is not None:
        changes |= _checkpoint_split(
            values | changes, config.explicit, checkpoint, ignore_fingerprint
        )
    return changes


def _dataset_filters(config: SettingsOfRun, dataset: OpenedHistories) -> dict[str, Any]:
    """Returns the filters that the dataset was prepared with.

    Raises:
        UserError: the user gave a filter or a source that differs from the dataset's.
    """
    root, manifest = dataset.root, dataset.manifest
    if manifest is None:
        return {}
    recorded = {"split": LEAVE_ONE_OUT} | manifest.semantics
    source = recorded.get("source")
    values = config.to_dict()
    is_amazon = values["dataset_name"] == "amazon"
    if "dataset_name" in config.explicit and is_amazon != (source == "amazon"):
        raise UserError(
            f"`dataset_name` {values['dataset_name']}: the dataset in {root} was made from "
            f"{source} ratings",
            setting="dataset_name",
        )
    for name in _FILTERS:
        if name in config.explicit and name in recorded and recorded[name] != values[name]:
            raise UserError(
                f"`{name}` {values[name]}: the dataset in {root} was prepared with `{name}` "
                f"{recorded[name]}; leave the flag out, or prepare the ratings again with "
                f"`recsys-recipes prepare {source} `{name}` {values[name]}`",
                setting=name,
            )
    return {name: recorded[name] for name in _FILTERS if name in recorded}


def _checkpoint_split(
    values: Mapping[str, Any],
    explicit: frozenset[str],
    checkpoint: Checkpoint,
    ignore_fingerprint: bool,
) -> dict[str, Any]:
    """Returns the split of the checkpoint that the run loads.

    The targets may differ from those of the training, as long as the model was not trained on
    them.

    Raises:
        UserError: the checkpoint was trained with another split.
    """
    stored = {"split": LEAVE_ONE_OUT} | checkpoint.settings(HistoriesConfig)
    of_split = {"validation_users"} if stored["split"] == LEAVE_ONE_OUT else _TEMPORAL
    stored = {name: stored[name] for name in {"split"} | of_split if name in stored}
    for name in ("split", "temporal_validation", "validation_users"):
        is_given = name == "split" or name in explicit
        # If all users validated (None), the model was trained on no validation target.
        if is_given and stored.get(name) not in {None, values[name]}:
            if ignore_fingerprint:
                continue
            raise UserError(
                f"{checkpoint.path}: was trained with `{name}` {stored[name]}, but this run has "
                f"{values[name]}: the model may have been trained on the targets. Use the dataset "
                "and the settings of its training, or add `ignore_fingerprint`",
                settings=(name, "ignore_fingerprint"),
                path=checkpoint.path,
            )
    return {name: stored[name] for name in of_split & stored.keys()}
