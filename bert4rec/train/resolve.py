# SPDX-License-Identifier: Apache-2.0
"""Completes settings from the checkpoint and the dataset."""

import dataclasses
import logging
from pathlib import Path
from typing import Any

from bert4rec.config import Bert4RecConfig, ModelConfig, ObjectiveConfig
from bert4rec.model.weights import Bert4RecCheckpoint
from recsys.errors import UserError
from recsys.ratings.data.opened import OpenedHistories
from recsys.ratings.data.resolve import data_settings
from recsys.train.checkpoint import read_pointers
from recsys.train.recipe import adopt

logger = logging.getLogger(__name__)


def complete(
    config: Bert4RecConfig, loaded: Bert4RecCheckpoint | None, dataset: OpenedHistories
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
    checkpoint = None
    if loaded is not None and config.run.load_checkpoint_path is not None:
        checkpoint = loaded.checkpoint
    changes |= data_settings(
        config, dataset, checkpoint, ignore_fingerprint=config.run.ignore_fingerprint
    )
    return adopt(config, changes)


def model_settings(config: Bert4RecConfig, loaded: Bert4RecCheckpoint) -> dict[str, Any]:
    """Returns model settings and objective of the checkpoint that the run loads.

    The objective decides whether the model predicts at a mask item. Settings that the user gave are
    kept, with a warning if the objective differs from the checkpoint's. Adapters and the popularity
    correction come from the checkpoint too, except in training, which has its own.

    Raises:
        UserError: the user asked for other adapters than the checkpoint's.
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


def open_loaded(config: Bert4RecConfig) -> Bert4RecCheckpoint | None:
    """Opens the checkpoint that gives the model's settings, if any.

    Raises:
        CheckpointError: the checkpoint is damaged, or of another model.
        UserError: adapters are to be trained further, but there is no checkpoint.
    """
    run = config.run
    if run.load_checkpoint_path is not None:
        return Bert4RecCheckpoint.open(Path(run.load_checkpoint_path))
    # A resumed run of adapters took its model's settings from another checkpoint.
    if run.mode != "train" or config.adapter.adapter == "none":
        return None
    folder = Path(run.export_root)
    if not read_pointers(folder):
        raise UserError(
            f"`resume`: {folder} has no checkpoint yet, and `adapter` {config.adapter.adapter} "
            "starts from a trained model: give `load_checkpoint_path` instead of `resume`",
            settings=("resume", "adapter", "load_checkpoint_path"),
        )
    opened = Bert4RecCheckpoint.open(folder)
    if opened.checkpoint.held is not None:
        opened.checkpoint.held.release()  # its settings are read, and this run replaces it
    return opened
