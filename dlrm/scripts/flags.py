# SPDX-License-Identifier: Apache-2.0
"""Flags of the DLRM programs: one flag per setting, and presets."""

import itertools
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from absl import flags

from dlrm.auto import choice
from dlrm.auto.candidates import CHOSEN, Candidate
from dlrm.auto.choice import Choice, Contender
from dlrm.config import DlrmConfig, ModelConfig, OptimizerConfig
from recsys import auto, program
from recsys import flags as settings_flags
from recsys.auto import AUTO
from recsys.presets import Preset, PresetFolder
from recsys.settings import declared

SECTIONS = DlrmConfig.sections
PRESETS = PresetFolder(Path(__file__).resolve().parents[1] / "presets", SECTIONS)

DAILY = "daily"
"""The preset of a run with --grow for which the user gives no settings of model or optimizer."""

_SHORT_NAMES = {"shuffle_batch_order": "shuffle"}

_THEIR_VALUES = {
    "dataset_type": {"parametric": "split"},
    "embedding_type": {"custom_cuda": "joint_fused"},
}
"""{flag: {value in NVIDIA's later versions: our value}}."""


def define_flags(flag_values: flags.FlagValues, **defaults: Any) -> None:
    """Defines a flag for every setting, and `--preset`.

    Args:
        flag_values: absl's registry of flags.
        **defaults: setting=default, for each default that differs from the config's.
    """
    settings_flags.define_flags(flag_values, SECTIONS, defaults=defaults, short_names=_SHORT_NAMES)
    names = ", ".join(PRESETS.names())
    flags.DEFINE_string(
        "preset",
        None,
        f"Set of settings: {names}, a YAML file, or {AUTO}, which chooses settings by the dataset "
        "and its validation split; flags that you give override the preset. The default is "
        f"{AUTO} if you train on a dataset made with a schema and give no setting of the model "
        "(except --seeds) or the optimizer and no checkpoint to load, and "
        f"{DAILY} with --grow",
        flag_values=flag_values,
        module_name="Preset",
    )
    auto.define_flags(flag_values)
    for name, theirs in _THEIR_VALUES.items():
        parser: Any = flag_values[name].parser
        flag_values[name].parser = _TheirEnum(list(parser.enum_values), theirs)


class _TheirEnum(flags.EnumParser):
    """A parser of choices that also accepts NVIDIA's names for them."""

    def __init__(self, choices: list[str], theirs: Mapping[str, str]) -> None:
        super().__init__(choices)
        self._theirs = theirs

    def parse(self, argument: str) -> str:
        """Returns the choice that an argument names."""
        return super().parse(self._theirs.get(argument, argument))


def take_default_preset(flag_values: flags.FlagValues) -> None:
    """Sets `preset` to auto or None if the user gave none.

    If auto is the command's own default, it applies to datasets of any kind.
    """
    preset = flag_values["preset"]
    if not preset.present:
        values, explicit = settings_flags.values_from_flags(flag_values, SECTIONS)
        is_auto = choice.is_default(values, explicit, any_kind=preset.default == AUTO)
        preset.value = AUTO if is_auto else None
        if values["grow"] and choice.is_open(values, explicit):
            preset.value = DAILY


def describe(flag_values: flags.FlagValues) -> None:
    """Marks in the help which settings the preset chooses."""
    values, explicit = settings_flags.values_from_flags(flag_values, SECTIONS)
    preset = flag_values["preset"]
    if preset.value is not None and (preset.present or choice.is_open(values, explicit)):
        chosen = CHOSEN if preset.value == AUTO else PRESETS.read(preset.value).values
        settings_flags.show_chosen(flag_values, chosen)


def config_from_flags(flag_values: flags.FlagValues) -> DlrmConfig:
    """Builds the config from parsed flags; for auto, that of its first candidate.

    Raises:
        UserError: a value is refused, or two flags contradict each other.
    """
    values, explicit, preset = values_from_flags(flag_values)
    return _config(values, explicit, preset)


def refuse_unused(
    flag_values: flags.FlagValues, config: DlrmConfig, searched: Collection[str] = ()
) -> None:
    """Refuses flags that have no effect under a config; see `recsys.flags.refuse_unused`.

    Args:
        flag_values: parsed flags.
        config: settings of the run, from these flags.
        searched: settings whose values a search tries.
    """
    later = set(searched)
    if config.run.load_checkpoint_path is not None or flag_values["preset"].value == AUTO:
        of_model = itertools.chain(declared(ModelConfig), declared(OptimizerConfig))
        later |= {field.name for field in of_model if not flag_values[field.name].present}
    settings_flags.refuse_unused(flag_values, config.to_dict(), SECTIONS, later)


def contenders_from_flags(
    flag_values: flags.FlagValues,
) -> tuple[Choice, list[Contender], set[str]]:
    """Builds the configs that `--preset auto` chooses from.

    Returns:
        (the choice, its distinct candidates, names of the settings that the user gave).

    Raises:
        UserError: a value is refused, or two flags contradict each other.
    """
    values, given = settings_flags.values_from_flags(flag_values, SECTIONS)
    chosen = choice.choose_from(values, given)
    found: list[Contender] = []
    for candidate in chosen.candidates:
        contender = _contender(candidate, values, given)
        # Candidates may differ only in settings that the user gave.
        if contender.config not in [other.config for other in found]:
            found.append(contender)
    return chosen, found, given


def _contender(candidate: Candidate, values: Mapping[str, Any], given: set[str]) -> Contender:
    filled, explicit = dict(values), set(given)
    chosen = settings_flags.of_use(candidate.settings, values, given, SECTIONS)
    preset = _preset_of(chosen).fill(filled, explicit)
    config, refined = _config(filled, explicit, preset), candidate.refined
    of_refined = None if refined is None else _contender(refined, values, given)
    return Contender(candidate.name, config, of_refined)


def settings_of_auto(flag_values: flags.FlagValues) -> list[dict[str, Any]]:
    """Returns the settings of each candidate of `--preset auto`; empty for another preset."""
    if flag_values["preset"].value != AUTO:
        return []
    values, given = settings_flags.values_from_flags(flag_values, SECTIONS)
    return [candidate.settings for candidate in choice.choose_from(values, given).candidates]


def _config(values: dict[str, Any], explicit: set[str], preset: Preset) -> DlrmConfig:
    with preset.located():
        return DlrmConfig.from_dict(values, frozenset(explicit))


def _preset_of(settings: dict[str, Any]) -> Preset:
    return Preset(dict(settings), dict.fromkeys(settings, f"`preset` {AUTO}"))


def command_of(config: DlrmConfig, given: set[str]) -> str:
    """Returns the command for the run of a config without `--preset auto`.

    Args:
        config: settings of the run.
        given: names of the settings that the user gave; others are left out if they have their
            defaults.
    """
    values = config.to_dict()
    told = {
        field.name
        for field in itertools.chain.from_iterable(map(declared, SECTIONS))
        if field.name in given or values[field.name] != _plain(field.default)
    }
    told &= config.explicit - {"mode", "resume"}
    return program.command_of("dlrm.scripts.main", values, SECTIONS, told)


def _plain(default: Any) -> Any:
    return list(default) if isinstance(default, tuple) else default


def values_from_flags(flag_values: flags.FlagValues) -> tuple[dict[str, Any], set[str], Preset]:
    """Reads parsed flags and the preset.

    Returns:
        ({setting: value}, names of the settings that the user or the preset gave, the settings
        taken from the preset; for auto, from its first candidate).

    Raises:
        UserError: a list contains something other than integers, or two flags contradict each
            other.
    """
    values, explicit = settings_flags.values_from_flags(flag_values, SECTIONS)
    auto.budget_from_flags(flag_values, "preset")
    name = flag_values["preset"].value
    if name == AUTO:
        first = choice.choose_from(values, explicit).candidates[0]
        return values, explicit, _preset_of(first.settings).fill(values, explicit)
    return values, explicit, PRESETS.fill(name, values, explicit)
