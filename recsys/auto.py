# SPDX-License-Identifier: Apache-2.0
"""Name and budget of `auto`, the choice of settings by the data, which the models share."""

import dataclasses
from typing import Any

from absl import flags

from recsys import flags as settings_flags
from recsys.errors import UserError
from recsys.settings import Sections, require_positive, section_from_dict, setting

AUTO = "auto"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class AutoConfig:
    """Settings of the choice. Once it is made, no run depends on them."""

    budget: int = setting(
        600,
        "Approximate time limit for auto to choose, train and validate; for a DLRM up to a million "
        "training rows. It shortens trials and training. The final test and its baselines take "
        "additional time",
        unit="seconds",
    )

    def __post_init__(self) -> None:
        """Refuses a budget of zero seconds or less."""
        require_positive(self, "budget")


_SECTIONS: Sections = {AutoConfig: "auto"}


def define_flags(flag_values: flags.FlagValues) -> None:
    """Defines a flag for every setting of the choice."""
    settings_flags.define_flags(flag_values, _SECTIONS)


def budget_from_flags(flag_values: flags.FlagValues, flag: str) -> int:
    """Returns the seconds that auto may take.

    Args:
        flag_values: parsed flags.
        flag: the flag that asks for auto.

    Raises:
        UserError: the budget is refused, or given without auto.
    """
    values, explicit = settings_flags.values_from_flags(flag_values, _SECTIONS)
    if "budget" in explicit and flag_values[flag].value != AUTO:
        raise UserError(
            f"`budget` limits `{flag}` {AUTO}, which this run does not use: leave it out",
            settings=("budget", flag),
        )
    return section_from_dict(AutoConfig, values).budget


def require_training(flag: str, mode: str, load_checkpoint_path: Any) -> None:
    """Refuses auto for a run that takes its settings from a checkpoint.

    Args:
        flag: the flag that asks for auto.
        mode: mode of the run.
        load_checkpoint_path: checkpoint that the run starts from; None for none.

    Raises:
        UserError: the run does not train, or starts from a checkpoint.
    """
    for name, is_wrong in (
        (f"`mode` {mode}", mode != "train"),
        ("`load_checkpoint_path`", load_checkpoint_path is not None),
    ):
        if is_wrong:
            raise UserError(
                f"{name} takes its settings from a checkpoint, but `{flag}` {AUTO} chooses others: "
                "leave it out",
                setting=flag,
            )
