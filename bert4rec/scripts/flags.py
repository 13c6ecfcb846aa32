# SPDX-License-Identifier: Apache-2.0
"""Flags of the BERT4Rec programs."""

from pathlib import Path
from typing import Any

from absl import flags

from bert4rec.config import SECTIONS, Bert4RecConfig
from recsys import flags as settings_flags
from recsys.errors import UserError
from recsys.presets import PresetFolder

PRESETS = PresetFolder(Path(__file__).resolve().parents[1] / "configs", SECTIONS, "`config`")


def define_flags(flag_values: flags.FlagValues, **defaults: Any) -> None:
    """Defines every flag.

    Args:
        flag_values: receives the definitions.
        **defaults: defaults that replace those of the config, by setting.
    """
    settings_flags.define_flags(flag_values, SECTIONS, defaults=defaults)
    names = ", ".join(PRESETS.names())
    flags.DEFINE_string(
        "config",
        None,
        f"YAML file of settings, or one of {names}; flags that are given come before it",
        flag_values=flag_values,
        module_name="Config",
    )


def config_from_flags(flag_values: flags.FlagValues) -> Bert4RecConfig:
    """Builds the config from parsed flags and their YAML file.

    Raises:
        UserError: a value is refused, or the file has a key that is no setting.
    """
    values, explicit = settings_flags.values_from_flags(flag_values, SECTIONS)
    with PRESETS.fill(flag_values["config"].value, values, explicit).located():
        if values["mode"] in ("ddp", "dmp"):
            if "parallelism" in explicit and values["parallelism"] != values["mode"]:
                raise UserError(
                    f"`mode` {values['mode']} contradicts `parallelism` {values['parallelism']}"
                )
            values["parallelism"], values["mode"] = values["mode"], "train"
        return Bert4RecConfig.from_dict(values, frozenset(explicit))
