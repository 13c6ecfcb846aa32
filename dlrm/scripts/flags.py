# SPDX-License-Identifier: Apache-2.0
"""Flags of the DLRM programs: a flag per setting, and presets."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from absl import flags

from dlrm.config import DlrmConfig
from recsys import flags as settings_flags
from recsys.presets import Preset, PresetFolder

SECTIONS = DlrmConfig.sections
PRESETS = PresetFolder(
    Path(__file__).resolve().parents[1] / "presets",
    SECTIONS,
    removed=settings_flags.REMOVED,
)

_SHORT_NAMES = {"shuffle_batch_order": "shuffle"}

_THEIR_VALUES = {
    "dataset_type": {"parametric": "split"},
    "embedding_type": {"custom_cuda": "joint_fused"},
}
"""Flag -> value of NVIDIA's later versions -> ours."""


def define_flags(flag_values: flags.FlagValues, **defaults: Any) -> None:
    """Defines a flag for every setting, and `--preset`.

    Args:
        flag_values: absl's registry of flags.
        **defaults: setting=default, where a program's default differs from the config's.
    """
    settings_flags.define_flags(flag_values, SECTIONS, defaults=defaults, short_names=_SHORT_NAMES)
    names = ", ".join(PRESETS.names())
    flags.DEFINE_string(
        "preset",
        None,
        f"Settings that belong together: {names}, or a YAML file; flags that are given override it",
        flag_values=flag_values,
        module_name="Preset",
    )
    for name, theirs in _THEIR_VALUES.items():
        parser: Any = flag_values[name].parser
        flag_values[name].parser = _TheirEnum(list(parser.enum_values), theirs)


class _TheirEnum(flags.EnumParser):
    """A parser of choices that takes NVIDIA's names for ours."""

    def __init__(self, choices: list[str], theirs: Mapping[str, str]) -> None:
        super().__init__(choices)
        self._theirs = theirs

    def parse(self, argument: str) -> str:
        """Returns the choice that an argument names."""
        return super().parse(self._theirs.get(argument, argument))


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
    return values, explicit, preset
