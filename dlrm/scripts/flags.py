# SPDX-License-Identifier: Apache-2.0
"""The flags of the DLRM programs: one for each field of the config, of the same name."""

import dataclasses
import types
import typing
from typing import Any

from absl import flags

from dlrm.config import SECTIONS, DlrmConfig

_SHORT_NAMES = {"shuffle_batch_order": "shuffle"}

_HEAD_ALIASES = {
    "Adam_embedding_optimizer": ("embedding_optimizer", "adam"),
    "Adam_MLP_optimizer": ("mlp_optimizer", "adam"),
}
"""Flags of NVIDIA's later versions that say the same with another name."""


def define_flags(flag_values: flags.FlagValues, **defaults: Any) -> None:
    """Defines every flag.

    Args:
        flag_values: where to define them.
        **defaults: defaults that differ from those of the config.
    """
    flags.disclaim_key_flags()
    for section in SECTIONS:
        hints = typing.get_type_hints(section)
        for field in dataclasses.fields(section):
            default = defaults.get(field.name, field.default)
            _define(flag_values, field.name, hints[field.name], default, field.metadata["help"])
    for alias, (name, value) in _HEAD_ALIASES.items():
        flags.DEFINE_bool(alias, False, f"The same as --{name} {value}", flag_values=flag_values)


def _define(
    flag_values: flags.FlagValues, name: str, hint: Any, default: Any, help_text: str
) -> None:
    optional = isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union
    if optional:
        hint = next(a for a in typing.get_args(hint) if a is not type(None))
    common: dict[str, Any] = {"flag_values": flag_values, "short_name": _SHORT_NAMES.get(name)}
    origin = typing.get_origin(hint)
    if origin is typing.Literal:
        flags.DEFINE_enum(name, default, typing.get_args(hint), help_text, **common)
    elif origin is tuple:
        flags.DEFINE_list(name, [str(v) for v in default], help_text, **common)
    else:
        define: Any = {
            bool: flags.DEFINE_bool,
            int: flags.DEFINE_integer,
            float: flags.DEFINE_float,
            str: flags.DEFINE_string,
        }[hint]
        define(name, default, help_text, **common)


def config_from_flags(flag_values: flags.FlagValues) -> DlrmConfig:
    """Returns the settings that parsed flags say.

    Raises:
        ValueError: a value is refused, or two flags contradict each other.
    """
    names = [field.name for section in SECTIONS for field in dataclasses.fields(section)]
    values: dict[str, Any] = {name: flag_values[name].value for name in names}
    explicit = {name for name in names if flag_values[name].present}
    for alias, (name, value) in _HEAD_ALIASES.items():
        if flag_values[alias].value:
            if name in explicit and values[name] != value:
                raise ValueError(f"--{alias} contradicts --{name} {values[name]}")
            values[name] = value
            explicit.add(name)
    for section in SECTIONS:
        for name, hint in typing.get_type_hints(section).items():
            if typing.get_origin(hint) is tuple:
                values[name] = _integers(name, values[name])
    return DlrmConfig.from_dict(values, frozenset(explicit))


def _integers(name: str, items: list[str]) -> tuple[int, ...]:
    try:
        return tuple(int(item) for item in items)
    except ValueError as error:
        raise ValueError(
            f"--{name} must be integers separated by commas, got {','.join(items)!r}"
        ) from error
