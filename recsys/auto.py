# SPDX-License-Identifier: Apache-2.0
"""What the choice of settings by the data, `auto`, shares between models: name and budget."""

import dataclasses
from typing import Any

from absl import flags

from recsys import flags as settings_flags
from recsys.errors import UserError
from recsys.settings import Sections, require_positive, section_from_dict, setting

AUTO = "auto"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class AutoConfig:
    """Settings of the choice. No run depends on them once the choice is made."""

    budget: int = setting(
        600,
        "About the longest that auto may take to choose, train and validate; for a DLRM up to a "
        "million training rows. It shortens trials and training. The test at the end and its "
        "baselines come on top",
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
            f"`budget` limits `{flag}` {AUTO}, which this run does not use",
            settings=("budget", flag),
        )
    return section_from_dict(AutoConfig, values).budget


def require_training(flag: str, mode: str, load_checkpoint_path: Any) -> None:
    """Refuses auto for a run that takes the settings of a checkpoint.

    Args:
        flag: the flag that asks for auto.
        mode: of the run.
        load_checkpoint_path: of the run.

    Raises:
        UserError: the run does not train, or begins with a checkpoint.
    """
    for name, is_wrong in (
        (f"`mode` {mode}", mode != "train"),
        ("`load_checkpoint_path`", load_checkpoint_path is not None),
    ):
        if is_wrong:
            raise UserError(
                f"{name} takes the settings of a checkpoint, and `{flag}` {AUTO} chooses others: "
                "leave it out",
                setting=flag,
            )
