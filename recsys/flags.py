# SPDX-License-Identifier: Apache-2.0
"""Flags from settings: one for each field of each section, of the same name, and back."""

import dataclasses
import types
import typing
from collections.abc import Mapping
from typing import Any

from absl import flags

from recsys.settings import Sections


def define_flags(
    flag_values: flags.FlagValues,
    sections: Sections,
    *,
    defaults: Mapping[str, Any],
    short_names: Mapping[str, str],
) -> None:
    """Defines a flag for every setting.

    Args:
        flag_values: where to define them.
        sections: of the model's config.
        defaults: defaults that differ from those of the config.
        short_names: flag name -> its short form.
    """
    flags.disclaim_key_flags()
    for section in sections:
        hints = typing.get_type_hints(section)
        for field in dataclasses.fields(section):
            default = defaults.get(field.name, field.default)
            help_text = field.metadata["help"]
            short_name = short_names.get(field.name)
            _define(flag_values, field.name, hints[field.name], default, help_text, short_name)


def _define(
    flag_values: flags.FlagValues,
    name: str,
    hint: Any,
    default: Any,
    help_text: str,
    short_name: str | None,
) -> None:
    optional = isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union
    if optional:
        hint = next(a for a in typing.get_args(hint) if a is not type(None))
    common: dict[str, Any] = {"flag_values": flag_values, "short_name": short_name}
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


def values_from_flags(
    flag_values: flags.FlagValues, sections: Sections
) -> tuple[dict[str, Any], set[str]]:
    """Returns what parsed flags say.

    Returns:
        (every setting under its name, names of those that the user gave).

    Raises:
        ValueError: a list holds something that is no integer.
    """
    names = [field.name for section in sections for field in dataclasses.fields(section)]
    values: dict[str, Any] = {name: flag_values[name].value for name in names}
    explicit = {name for name in names if flag_values[name].present}
    for section in sections:
        for name, hint in typing.get_type_hints(section).items():
            if typing.get_origin(hint) is tuple:
                values[name] = _integers(name, values[name])
    return values, explicit


def _integers(name: str, items: list[str]) -> tuple[int, ...]:
    try:
        return tuple(int(item) for item in items)
    except ValueError as error:
        raise ValueError(
            f"--{name} must be integers separated by commas, got {','.join(items)!r}"
        ) from error
