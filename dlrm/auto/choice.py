# SPDX-License-Identifier: Apache-2.0
"""Decides whether `preset` auto applies, and which settings it may choose.

This module does not import torch.
"""

import dataclasses
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from dlrm.auto.candidates import CHOSEN, Candidate, Traits, candidates
from dlrm.config import DataConfig, DlrmConfig, ModelConfig, OptimizerConfig, RunConfig
from recsys.auto import require_training
from recsys.data.errors import DatasetError
from recsys.data.manifest import CLICKS_KIND, LOG_KINDS, Manifest
from recsys.settings import declared


@dataclasses.dataclass(frozen=True, slots=True)
class Choice:
    """The candidates of `preset` auto.

    Attributes:
        why: describes what decides.
        candidates: candidates; if there are several, a race chooses.
        is_made: whether the choice is that of a run to resume.
    """

    why: str
    candidates: list[Candidate]
    is_made: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Contender:
    """A candidate with all settings of its run.

    Attributes:
        name: name of the candidate.
        config: settings of its run.
        refined: see `Candidate`.
    """

    name: str
    config: DlrmConfig
    refined: "Contender | None"


_SETTLED = frozenset(
    field.name for section in (ModelConfig, OptimizerConfig) for field in declared(section)
) - {"seeds", "num_numerical_features", "optimized_mlp"}
"""Settings that, if given, leave no choice to auto."""
_RESUMED = _SETTLED | CHOSEN
"""Settings that a resumed run keeps, without those that depend on dataset and machine."""


def is_open(values: Mapping[str, Any], explicit: Collection[str]) -> bool:
    """Returns True if the settings of a run leave the choice to auto.

    They do if the run trains, does not load a checkpoint, and the user gave no setting of the model
    or the optimizer except `seeds`.

    Args:
        values: {setting: value} of all settings.
        explicit: names of the settings that the user gave.
    """
    trains = values["mode"] == "train" and not values["load_checkpoint_path"]
    return trains and not _SETTLED & set(explicit)


def is_default(values: Mapping[str, Any], explicit: Collection[str], *, any_kind: bool) -> bool:
    """Returns True if a run without `preset` uses auto.

    It does if its settings leave the choice open and its dataset was made with a schema.

    Args:
        values: {setting: value} of all settings.
        explicit: names of the settings that the user gave.
        any_kind: whether datasets in Criteo's format use auto too.
    """
    if not is_open(values, explicit):
        return False
    try:
        kind = Manifest.load(Path(values["dataset"] or "")).kind
    except DatasetError:
        return False
    return kind in (LOG_KINDS if any_kind else (CLICKS_KIND,))


def choose_from(values: Mapping[str, Any], explicit: Collection[str]) -> Choice:
    """Returns the candidates of auto; for a run that is resumed, its earlier choice.

    Args:
        values: {setting: value} of all settings.
        explicit: names of the settings that the user gave.

    Raises:
        UserError: auto cannot choose here, or the dataset is refused.
    """
    sections = (DataConfig, RunConfig)
    names = {field.name for section in sections for field in declared(section)}
    given = {name: value for name, value in values.items() if name in names}
    config = DlrmConfig.from_dict(given, frozenset(explicit))
    require_training("preset", config.run.mode, config.run.load_checkpoint_path)
    if config.run.resume and (made := _made_choice(config, values)) is not None:
        return made
    traits = Traits.of(config.data, values["num_numerical_features"])
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    own = {name: values[name] for name in explicit}
    return Choice(str(traits), candidates(traits, own, world_size))


def _made_choice(config: DlrmConfig, values: Mapping[str, Any]) -> Choice | None:
    """Returns the settings of a run to resume; None if it has not saved a checkpoint."""
    from recsys.train.checkpoint import latest_config  # imports torch

    assert config.checkpoint_folder is not None
    made = latest_config(config.checkpoint_folder)
    if made is None:
        return None
    checkpoint, stored = made
    taken = {n: v for n, v in stored.items() if n in _RESUMED and _differ(v, values[n])}
    why = f"continues with the settings of {checkpoint}"
    return Choice(why, [Candidate("resumed run", taken)], is_made=True)


def _differ(stored: Any, value: Any) -> bool:
    return bool(stored != (list(value) if isinstance(value, tuple) else value))
