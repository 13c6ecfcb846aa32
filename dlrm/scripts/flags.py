# SPDX-License-Identifier: Apache-2.0
"""Flags of the DLRM programs: a flag per setting, presets and aliases."""

from pathlib import Path
from typing import Any

from absl import flags

from dlrm.config import SECTIONS, DlrmConfig
from recsys import flags as settings_flags
from recsys.errors import UserError
from recsys.presets import Preset, PresetFolder

PRESETS = PresetFolder(Path(__file__).resolve().parents[1] / "presets", SECTIONS)

_SHORT_NAMES = {"shuffle_batch_order": "shuffle"}

_HEAD_ALIASES = {
    "Adam_embedding_optimizer": ("embedding_optimizer", "adam"),
    "Adam_MLP_optimizer": ("mlp_optimizer", "adam"),
}
"""Flag of NVIDIA's later versions -> the setting it stands for, and its value."""


def define_flags(flag_values: flags.FlagValues, **defaults: Any) -> None:
    """Defines a flag for every setting, `--preset` and NVIDIA's aliases.

    Args:
        flag_values: absl's registry of flags.
        **defaults: setting=default, where a program's default differs from the config's.
    """
    settings_flags.define_flags(flag_values, SECTIONS, defaults=defaults, short_names=_SHORT_NAMES)
    names = ", ".join(PRESETS.names())
    flags.DEFINE_string(
        "preset",
        None,
        f"Settings that belong together: {names}, or a YAML file; flags that are given come before "
        "it",
        flag_values=flag_values,
        module_name="Preset",
    )
    for alias, (name, value) in _HEAD_ALIASES.items():
        flags.DEFINE_bool(
            alias,
            False,
            f"The same as --{name} {value}",
            flag_values=flag_values,
            module_name="Aliases",
        )


def config_from_flags(flag_values: flags.FlagValues) -> DlrmConfig:
    """Builds the config from parsed flags.

    Raises:
        UserError: a value is refused, or two flags contradict each other.
    """
    values, explicit, preset = values_from_flags(flag_values)
    with preset.located():
        return DlrmConfig.from_dict(values, frozenset(explicit))


def values_from_flags(flag_values: flags.FlagValues) -> tuple[dict[str, Any], set[str], Preset]:
    """Reads parsed flags and the preset.

    Returns:
        ({setting: value}, names of the settings that the user or the preset gave, the settings
        that were taken from the preset).

    Raises:
        UserError: a list holds something that is no integer, or two flags contradict each other.
    """
    values, explicit = settings_flags.values_from_flags(flag_values, SECTIONS)
    preset = PRESETS.fill(flag_values["preset"].value, values, explicit)
    for alias, (name, value) in _HEAD_ALIASES.items():
        if flag_values[alias].value:
            if name in explicit and values[name] != value:
                with preset.located():
                    raise UserError(f"--{alias} contradicts `{name}` {values[name]}")
            values[name] = value
            explicit.add(name)
    return values, explicit, preset
