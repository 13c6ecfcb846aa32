# SPDX-License-Identifier: Apache-2.0
"""Completes settings from the checkpoint and the dataset."""

import dataclasses
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bert4rec.config import Bert4RecConfig, DataConfig, ModelConfig, ObjectiveConfig
from bert4rec.model.weights import OpenedCheckpoint
from recsys.data.sequences.split import LEAVE_ONE_OUT
from recsys.errors import UserError
from recsys.ratings.data.opened import OpenedDataset
from recsys.train.checkpoint import Checkpoint, read_pointers
from recsys.train.recipe import adopt

logger = logging.getLogger(__name__)

_FILTERS = ("min_user_count", "min_item_count", "min_rating", "split")
_TEMPORAL = frozenset({"temporal_targets", "temporal_validation"})


def complete(
    config: Bert4RecConfig, loaded: OpenedCheckpoint | None, dataset: OpenedDataset
) -> Bert4RecConfig:
    """Completes the settings of a run that opens a dataset.

    Args:
        config: settings as the user gave them.
        loaded: result of `open_loaded`.
        dataset: dataset of the run.

    Raises:
        UserError: the checkpoint, the dataset and the settings contradict each other.
    """
    changes = {} if loaded is None else model_settings(config, loaded)
    changes |= _dataset_filters(config, dataset)
    if changes.get("split", config.data.split) == LEAVE_ONE_OUT:
        for name in sorted(_TEMPORAL & config.explicit):
            raise UserError(
                f"`{name}` is of temporal splits, the dataset has the `split` {LEAVE_ONE_OUT}: "
                "leave it out, or prepare the ratings with a `split` such as temporal:0.9",
                settings=(name, "split"),
            )
    if loaded is not None and config.run.load_checkpoint_path is not None:
        changes |= _checkpoint_split(config.to_dict() | changes, config, loaded.checkpoint)
    return adopt(config, changes)


def model_settings(config: Bert4RecConfig, loaded: OpenedCheckpoint) -> dict[str, Any]:
    """Returns model settings and objective of the checkpoint that the run loads.

    The objective decides whether the model predicts at a mask item. Settings that the user gave are
    kept; another objective than the checkpoint's is warned of. Adapters and the correction of the
    popularity are those of the checkpoint too, except in training, which has its own.

    Raises:
        UserError: other adapters than the checkpoint's are asked for.
    """
    checkpoint = loaded.checkpoint
    stored = checkpoint.settings(ModelConfig)
    given, trained_with = config.objective.objective, checkpoint.settings(ObjectiveConfig)
    if "objective" in trained_with:
        stored["objective"] = trained_with["objective"]
        if "objective" in config.explicit and given != stored["objective"]:
            logger.warning(
                "`objective` %s: the checkpoint was trained with %s", given, stored["objective"]
            )
    if config.run.mode != "train":
        stored["popularity_correction"] = trained_with.get("popularity_correction", 0.0)
        adapter, values = dataclasses.asdict(loaded.adapter), config.to_dict()
        for name in sorted(adapter.keys() & config.explicit):
            if values[name] != adapter[name]:
                raise UserError(
                    f"`{name}` {values[name]}: {loaded.path} was trained with `{name}` "
                    f"{adapter[name]}; leave the flag out",
                    setting=name,
                )
        stored |= adapter
    return stored


def open_loaded(config: Bert4RecConfig) -> OpenedCheckpoint | None:
    """Opens the checkpoint that gives the model's settings, if any.

    Raises:
        CheckpointError: it is damaged, or of another model.
        UserError: adapters are to be trained further, and there is no checkpoint.
    """
    run = config.run
    if run.load_checkpoint_path is not None:
        return OpenedCheckpoint.open(Path(run.load_checkpoint_path))
    # The run of adapters that is resumed took its model from another checkpoint's settings.
    if run.mode != "train" or config.adapter.adapter == "none":
        return None
    folder = Path(run.export_root)
    if not read_pointers(folder):
        raise UserError(
            f"`resume`: {folder} has no checkpoint yet, and `adapter` {config.adapter.adapter} "
            "begins with a trained model: name it by `load_checkpoint_path` in place of `resume`",
            settings=("resume", "adapter", "load_checkpoint_path"),
        )
    opened = OpenedCheckpoint.open(folder)
    if opened.checkpoint.held is not None:
        opened.checkpoint.held.let_go()  # its settings are read, and this run replaces it
    return opened


def _dataset_filters(config: Bert4RecConfig, dataset: OpenedDataset) -> dict[str, Any]:
    """Returns the filters that the dataset was prepared with.

    Raises:
        UserError: the user gave another filter or another source than the dataset's.
    """
    root, manifest = dataset.root, dataset.manifest
    if manifest is None:
        return {}
    recorded = {"split": LEAVE_ONE_OUT} | manifest.semantics
    source = recorded.get("source")
    is_amazon = config.data.dataset_name == "amazon"
    if "dataset_name" in config.explicit and is_amazon != (source == "amazon"):
        raise UserError(
            f"`dataset_name` {config.data.dataset_name}: the dataset in {root} was made from "
            f"{source} ratings",
            setting="dataset_name",
        )
    values = config.to_dict()
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
    values: Mapping[str, Any], config: Bert4RecConfig, checkpoint: Checkpoint
) -> dict[str, Any]:
    """Returns the split of the checkpoint that the run loads.

    The targets may be others than those of the training; what it saw may not.

    Raises:
        UserError: the checkpoint was trained with another split.
    """
    stored = {"split": LEAVE_ONE_OUT} | checkpoint.settings(DataConfig)
    of_split = {"validation_users"} if stored["split"] == LEAVE_ONE_OUT else _TEMPORAL
    stored = {name: stored[name] for name in {"split"} | of_split if name in stored}
    for name in ("split", "temporal_validation", "validation_users"):
        is_given = name == "split" or name in config.explicit
        # Where all users validated (None), no validation target was trained on.
        if is_given and stored.get(name) not in {None, values[name]}:
            if config.run.ignore_fingerprint:
                continue
            raise UserError(
                f"{checkpoint.path}: was trained with `{name}` {stored[name]}, this run has "
                f"{values[name]}: it may have seen the targets. Use the dataset and the settings "
                "of its training, or add `ignore_fingerprint`",
                settings=(name, "ignore_fingerprint"),
                path=checkpoint.path,
            )
    return {name: stored[name] for name in of_split & stored.keys()}
