# SPDX-License-Identifier: Apache-2.0
"""Makes flags from settings, and reads settings from flags."""

import dataclasses
import itertools
import shlex
import textwrap
import typing
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from absl import flags

from recsys.errors import UserError
from recsys.settings import (
    Not,
    Sections,
    declared,
    joined,
    parse_with_unit,
    spell_with_unit,
    without_none,
)


def define_flags(
    flag_values: flags.FlagValues,
    sections: Sections,
    *,
    defaults: Mapping[str, Any] = {},
    short_names: Mapping[str, str] = {},
    help_texts: Mapping[str, str] = {},
    omit: Collection[str] = (),
    check_choices: bool = True,
) -> None:
    """Defines a flag for every declared setting; `--help` groups them by section.

    Args:
        flag_values: receives the definitions.
        sections: sections of the program's config.
        defaults: name -> default that replaces the config's.
        short_names: name -> short name of the flag.
        help_texts: name -> help that replaces the config's.
        omit: names of settings without a flag in this program.
        check_choices: whether the flag refuses values that are not choices; otherwise the section
            does.
    """
    for section, name in sections.items():
        hints = typing.get_type_hints(section)
        for field in declared(section):
            if field.name in omit:
                continue
            _define(
                field,
                without_none(hints[field.name]),
                _plain(defaults.get(field.name, field.default), field),
                help_texts.get(field.name, field.metadata["help"]),
                check_choices=check_choices,
                common={
                    "flag_values": flag_values,
                    "short_name": short_names.get(field.name),
                    "module_name": title(name),
                },
            )


def title(section_name: str) -> str:
    """Returns the heading of a section in `--help` and in docs/flags.md."""
    return section_name.replace("_", " ").capitalize()


def _plain(default: Any, field: "dataclasses.Field[Any]") -> Any:
    """Returns a default in the form that flags hold."""
    if default is None or default is dataclasses.MISSING:
        return None
    if (unit := field.metadata["unit"]) is not None:
        return spell_with_unit(default, unit)
    return str(default) if isinstance(default, Path) else default


def _define(
    field: "dataclasses.Field[Any]",
    hint: Any,
    default: Any,
    help_text: str,
    *,
    check_choices: bool,
    common: dict[str, Any],
) -> None:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    name = field.name
    if field.metadata["parse"] is not None:
        flags.DEFINE_multi_string(name, list(default), help_text, **common)
    elif origin is typing.Literal and check_choices:
        flags.DEFINE_enum(name, default, arguments, help_text, **common)
    elif origin is tuple and arguments[0] in (int, float):
        flags.DEFINE_list(name, [str(v) for v in default], help_text, **common)
    elif origin is tuple:
        flags.DEFINE_string(name, joined(default), help_text, **common)
    else:
        kind = str if field.metadata["unit"] else hint
        define: Any = {
            bool: flags.DEFINE_bool,
            int: flags.DEFINE_integer,
            float: flags.DEFINE_float,
        }.get(kind, flags.DEFINE_string)
        define(name, default, help_text, **common)


def values_from_flags(
    flag_values: flags.FlagValues, sections: Sections
) -> tuple[dict[str, Any], set[str]]:
    """Reads the settings from parsed flags.

    Returns:
        (name -> value of every setting with a flag, names of the settings that the user gave).

    Raises:
        UserError: a text is not a value of its setting's type, or a setting without a default is
            not given.
    """
    values: dict[str, Any] = {}
    explicit: set[str] = set()
    missing: list[str] = []
    for section in sections:
        hints = typing.get_type_hints(section)
        for field in declared(section):
            name = field.name
            if name not in flag_values:
                continue
            value = flag_values[name].value
            if value is not None:
                value = _value(field, without_none(hints[name]), value)
            values[name] = value
            if flag_values[name].present:
                explicit.add(name)
            if field.default is dataclasses.MISSING and flag_values[name].value in (None, ""):
                missing.append(f"`{name}`")
    if missing:
        are = "is" if len(missing) == 1 else "are"
        raise UserError(f"{', '.join(missing)} {are} needed (--help shows all flags)")
    return values, explicit


def refuse_unused(
    flag_values: flags.FlagValues,
    values: Mapping[str, Any],
    sections: Sections,
    later: Collection[str] = (),
) -> None:
    """Refuses flags that have no effect under the other settings, by `used_with` of `setting`.

    A flag that is empty or has its default value is accepted, and so are settings of a preset.

    Args:
        flag_values: parsed flags.
        values: every setting, as plain values.
        sections: sections of the program's config.
        later: settings whose values are only known later, from a checkpoint or a dataset.

    Raises:
        UserError: names the flag and the setting under which it has no effect.
    """
    for field in itertools.chain.from_iterable(map(declared, sections)):
        name = field.name
        if name not in flag_values or not flag_values[name].present:
            continue
        if not flag_values[name].value or flag_values[name].value == flag_values[name].default:
            continue
        for other, names in _hindrances(field, values):
            if other in later:
                continue
            value = values[other]
            has = f"with `{other}` {value}" if value else f"without `{other}`"
            needs = f", only with {' or '.join(names)}" if any(names) else ""
            raise UserError(
                f"`{name}` has no effect {has}{needs}: leave it out", settings=(name, other)
            )


def _hindrances(
    field: "dataclasses.Field[Any]", values: Mapping[str, Any]
) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Yields the settings under which a setting has no effect, and the values that they need."""
    for other, wanted in field.metadata["used_with"].items():
        names = () if isinstance(wanted, Not) else wanted
        if not (values[other] in names if names else values[other] != wanted.value):
            yield other, names


def _value(field: "dataclasses.Field[Any]", hint: Any, value: Any) -> Any:
    """Converts the value of a flag to that of its setting."""
    if field.metadata["parse"] is not None:
        return field.metadata["parse"](value)
    if (unit := field.metadata["unit"]) is not None:
        return parse_with_unit(field.name, value, unit)
    if hint is Path:
        return Path(value)
    if typing.get_origin(hint) is tuple:
        kind = typing.get_args(hint)[0]
        if kind in (int, float):
            return _numbers(field.name, kind, value)
        return tuple(value.split(",")) if value else ()
    return value


def _numbers(name: str, kind: type, items: list[str]) -> tuple[Any, ...]:
    try:
        return tuple(kind(item) for item in items)
    except ValueError as error:
        kinds = {int: "integers", float: "numbers"}
        raise UserError(
            f"`{name}` must be {kinds[kind]} separated by commas, got {','.join(items)!r}",
            setting=name,
        ) from error


_MOST_USED = (
    *("mode", "config", "preset", "input", "output", "binary_path", "dataset", "dataset_name"),
    *("dataset_path", "checkpoint", "repository", "save_checkpoint_path", "export_root"),
    *("load_checkpoint_path", "resume", "batch_size", "train_batch_size", "epochs", "num_epochs"),
    *("lr", "eval_split", "engine", "format", "frequency_limit", "memory_limit", "overwrite"),
    *("dictionary_days", "split_fractions", "min_rating", "kcore", "min_user_count"),
    *("min_item_count", "name", "version", "rollback", "verify", "url", "model"),
    *("tables", "world_size", "dry_run", "placement", "hbm_gib"),
    *("embedding_dim", "ranks_per_node", "top_mlp_sizes"),
)
"""Flags of all programs. `--help` opens with the first ten that a program has."""

_FEW = 6
"""Up to this many flags need no selection of the most used."""

BY_PRESET = "chosen by the preset"
"""Text of the help in place of a default that a preset replaces."""

_SHOWN, _LINES = 10, 16
_COLUMNS, _INDENT = 80, 28
"""Width of a terminal, and column at which the texts of the most used flags begin."""


def help_text(flag_values: flags.FlagValues, most_used: Sequence[str] = ()) -> tuple[str, str]:
    """Returns the help of the most used flags and of all sections.

    Args:
        flag_values: flags of the program.
        most_used: names that open the help; by default those that most programs share.
    """
    defined = flag_values.flags_by_module_dict()
    sections = [name for name in defined if not name.startswith("absl.")]
    texts = "\n".join(flag_values.module_help(name) for name in sections)
    ours = [flag for name in sections for flag in defined[name] if flag.name != "help"]
    if len(ours) <= _FEW:
        return "", texts
    chosen = [flag_values[name] for name in most_used or _MOST_USED if name in flag_values]
    chosen = list(dict.fromkeys([*chosen, *ours]))  # Flags are hashed by identity.
    shown = [flag for flag in chosen if not _is_alias(flag)][:_SHOWN]
    lines: list[str] = []
    spare = _LINES - len(shown)
    for flag in shown:
        of_flag = _lines(flag, 2 if spare > 0 else 1)
        spare -= len(of_flag) - 1
        lines += of_flag
    return "\n".join(["", "Most used:", *lines, ""]), texts


def show_chosen(flag_values: flags.FlagValues, names: Iterable[str]) -> None:
    """Shows in the help that a preset chooses settings, in place of their defaults."""
    for name in names:
        if name in flag_values:
            flag_values[name].default_as_str = BY_PRESET


def _is_alias(flag: "flags.Flag[Any]") -> bool:
    return str(flag.help).startswith("Alias for ")


def _lines(flag: "flags.Flag[Any]", most: int) -> list[str]:
    """Returns a flag's name, default and help in at most `most` lines."""
    # A command of several words gives some flags a value before the user does.
    value, spelled = flag.value, str(flag.value)
    if flag.using_default_value:
        value, spelled = flag.default, str(flag.default_as_str)
    default = "" if value in (None, "", False) else f"={spelled}".replace("'", "")
    if spelled == BY_PRESET:
        default = "=(preset)"
    name = f"  --{flag.name}"
    if len(name + default) < _INDENT:
        name += default
    text = str(flag.help)
    if isinstance(flag, flags.EnumFlag):
        text = text.partition(">: ")[2]
    indent = max(_INDENT, len(name) + 2)
    texts = textwrap.wrap(text, _COLUMNS - 1 - indent, max_lines=most, placeholder=" ...")
    first, *others = texts or [""]
    return [f"{name:{indent}}{first}".rstrip(), *(" " * indent + text for text in others)]


def of_use(
    chosen: Mapping[str, Any], values: Mapping[str, Any], given: Collection[str], sections: Sections
) -> dict[str, Any]:
    """Returns the chosen settings that have an effect.

    The others keep their defaults, so that a command may leave them out.

    Args:
        chosen: settings that a program chose.
        values: every setting, without the choice.
        given: names of the settings that the user gave; they keep their values.
        sections: sections of the program's config.
    """
    together = {**values, **chosen, **{name: values[name] for name in given}}
    fields = itertools.chain.from_iterable(map(declared, sections))
    idle = {field.name for field in fields if any(_hindrances(field, together))}
    return {name: value for name, value in chosen.items() if name not in idle}


def command_of(
    words: Sequence[str],
    values: Mapping[str, Any],
    sections: Sections,
    told: Collection[str],
    names: Mapping[str, str],
) -> str:
    """Returns a command that gives settings as flags.

    Args:
        words: the command without flags.
        values: every setting, as plain values.
        sections: sections of the program's config.
        told: names of the settings to give; settings without a value, and those that have no effect
            under the others, are left out.
        names: setting -> name of its flag, if it differs.
    """
    flags_given = (
        f"--{names.get(field.name, field.name)}={_spelled(values[field.name])}"
        for field in itertools.chain.from_iterable(map(declared, sections))
        if field.name in told and values[field.name] is not None
        if not any(_hindrances(field, values))
    )
    return shlex.join([*words, *flags_given])


def _spelled(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return joined(value) if isinstance(value, list) else str(value)
