# SPDX-License-Identifier: Apache-2.0
"""Settings: sections are frozen dataclasses whose fields `setting` declares.

A config holds one dataclass per section ("model", "data", ...). Field names are also flag names,
YAML keys and keys of the log, so they must differ between sections. `recsys.flags` makes the flags.
"""

import dataclasses
import itertools
import math
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, TypeVar

from recsys.errors import UserError
from recsys.sizes import SIZE_UNITS, TIME_UNITS, parse_size

T = TypeVar("T")

Sections = Mapping[type, str]
"""Dataclass of each section -> name of the config's attribute that holds it."""

Unit = Literal["bytes", "seconds"]


@dataclasses.dataclass(frozen=True)
class Not:
    """The value of a setting under which another one has no effect."""

    value: Any


Uses = Mapping[str, tuple[Any, ...] | Not]
"""Other setting -> its values under which a setting has an effect; all must hold."""

MOST_THREADS = 1024
"""Many more threads than any machine has cores; far more cannot be started."""

REQUIRED: Any = dataclasses.MISSING
"""Default of a setting that must be given."""


def setting(
    default: T,
    help_text: str,
    *,
    resumable: bool = False,
    unit: Unit | None = None,
    parse: Callable[[list[str]], Any] | None = None,
    default_text: str | None = None,
    used_with: Uses = types.MappingProxyType({}),
) -> T:
    """Declares a setting: its field, flag and resume rule.

    Args:
        default: default value; `REQUIRED` if the setting must be given.
        help_text: help text of the flag.
        resumable: whether a resumed run may change the value, because the trained parameters do not
            depend on it.
        unit: unit of the number in flags; "bytes" reads 4GiB and 512M, "seconds" 90s, 10m and 1.5h.
        parse: converts all texts of a repeatable flag to the value.
        default_text: describes a default that depends on the machine.
        used_with: the only settings under which a given flag has an effect, see
            `recsys.flags.refuse_unused`.
    """
    metadata = {
        "help": help_text,
        "resumable": resumable,
        "unit": unit,
        "parse": parse,
        "default_text": default_text,
        "used_with": used_with,
    }
    field: T = dataclasses.field(default=default, metadata=metadata)
    return field


def declared(section: type) -> list["dataclasses.Field[Any]"]:
    """Returns the fields of a section that `setting` declares."""
    return [field for field in dataclasses.fields(section) if "help" in field.metadata]


def without_none(hint: Any) -> Any:
    """Returns the type of a setting that may also be None."""
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        return next(a for a in typing.get_args(hint) if a is not types.NoneType)
    return hint


def checked(what: str, hint: Any, value: Any) -> Any:
    """Returns a value of YAML or JSON as the type of its setting.

    Args:
        what: start of the message.
        hint: type of the setting.
        value: value as read from the file.

    Raises:
        UserError: the value has another type.
    """
    required = without_none(hint)
    if value is None and required is not hint:
        return None
    hint = required
    arguments = typing.get_args(hint)
    if typing.get_origin(hint) is typing.Literal:
        expected, fits = f"one of {', '.join(arguments)}", value in arguments
    elif typing.get_origin(hint) is tuple:
        names = {int: "integers", float: "numbers", str: "texts"}
        count = "" if arguments[-1] is Ellipsis else f"{len(arguments)} "
        expected = f"a list of {count}{names[arguments[0]]}"
        of_kind = _number if arguments[0] is float else lambda element: element
        elements = tuple(map(of_kind, value)) if isinstance(value, (list, tuple)) else ()
        fits = isinstance(value, (list, tuple)) and all(type(e) is arguments[0] for e in elements)
        fits = fits and (not count or len(elements) == len(arguments))
        value = elements if fits else value
    elif hint is float:
        expected, value = "a number", _number(value)
        fits = type(value) is float
    else:
        kinds = {int: "an integer", bool: "true or false", str: "text"}
        expected, fits = kinds[hint], type(value) is hint
    if not fits:
        raise UserError(f"{what} must be {expected}, got {value!r}")
    return value


def _number(value: Any) -> Any:
    """Returns a number as float; PyYAML reads 1e-3 as text."""
    if type(value) in (int, str):
        try:
            return float(value)
        except (OverflowError, ValueError):
            return value
    return value


def fixed_settings(sections: Sections) -> tuple[str, ...]:
    """Returns the names of the settings that a resumed run must repeat."""
    fields = itertools.chain.from_iterable(map(declared, sections))
    return tuple(field.name for field in fields if not field.metadata["resumable"])


def require_positive(section: Any, *names: str) -> None:
    """Refuses values below 1.

    Raises:
        UserError: names the flag and the value.
    """
    for name in names:
        if getattr(section, name) < 1:
            raise UserError(
                f"`{name}` must be at least 1, got {getattr(section, name)}", setting=name
            )


def require_threads(section: Any, *names: str) -> None:
    """Refuses numbers below 1 or above `MOST_THREADS`; None is accepted.

    Raises:
        UserError: names the setting and the value.
    """
    for name in names:
        value = getattr(section, name)
        if value is not None:
            require_positive(section, name)
            if value > MOST_THREADS:
                raise UserError(
                    f"`{name}` must be at most {MOST_THREADS}, got {value}", setting=name
                )


def require_not_negative(section: Any, *names: str) -> None:
    """Refuses values below 0; None is accepted.

    Raises:
        UserError: names the setting and the value.
    """
    for name in names:
        value = getattr(section, name)
        if value is not None and value < 0:
            raise UserError(f"`{name}` must not be negative, got {value}", setting=name)


def require_below(section: Any, name: str, limit: int) -> None:
    """Refuses a number that is too large.

    Raises:
        UserError: names the setting and the value.
    """
    if getattr(section, name) >= limit:
        raise UserError(
            f"`{name}` must be below {limit}, got {getattr(section, name)}", setting=name
        )


def require_known(section: Any, name: str, known: Sequence[str]) -> None:
    """Refuses names in a setting that are not known.

    Raises:
        UserError: names the setting, the known names and the unknown ones.
    """
    if unknown := sorted(set(getattr(section, name)) - set(known)):
        raise UserError(
            f"`{name}` must be among {', '.join(known)}; got {', '.join(unknown)}", setting=name
        )


def require_choices(
    section: Any, names: Mapping[str, Iterable[str]] = {}, separator: str = ", "
) -> None:
    """Refuses values that are not among the choices of a setting.

    Args:
        section: section to check.
        names: setting -> its choices, for settings whose type is not Literal.
        separator: separator of the choices in the message.

    Raises:
        UserError: names the setting, its choices and the value.
    """
    choices = {
        name: typing.get_args(hint)
        for name, hint in typing.get_type_hints(type(section)).items()
        if typing.get_origin(hint) is Literal
    }
    for name, allowed in (choices | dict(names)).items():
        value = getattr(section, name)
        if value not in allowed:
            raise UserError(
                f"`{name}` must be one of {separator.join(allowed)}; got {value!r}",
                setting=name,
            )


def parse_with_unit(name: str, text: str, unit: Unit) -> int:
    """Parses bytes (`4GiB`, `512M`, `1.5GB`, `100000`) or seconds (`90s`, `10m`, `1.5h`).

    Args:
        name: name of the setting, for the message.
        text: value as the user spelled it.
        unit: unit of the setting.

    Raises:
        UserError: the text has none of these forms.
    """
    units, examples = _SPELLINGS[unit]
    size = parse_size(text, units)
    if size is None:
        raise UserError(
            f"`{name}` must be a number with a unit, such as {examples}; got {text!r}", setting=name
        )
    return size


def spell_with_unit(count: int, unit: Unit) -> str:
    """Spells a number as in a flag, such as `4GiB` or `10m`."""
    units = {"bytes": ("TiB", "GiB", "MiB", "KiB"), "seconds": ("h", "m", "s")}[unit]
    for each in units:
        factor = _SPELLINGS[unit][0][each.upper()]
        if count and count % factor == 0:
            return f"{count // factor}{each}"
    return str(count)


_SPELLINGS: Mapping[Unit, tuple[Mapping[str, int], str]] = {
    "bytes": (SIZE_UNITS, "4GiB, 512MiB or 2GB"),
    "seconds": (TIME_UNITS, "90s, 10m or 1.5h"),
}
"""Unit of a setting -> (factors of the units in flags, examples)."""


def joined(values: Iterable[object]) -> str:
    """Joins values with commas, as in a flag."""
    return ",".join(map(str, values))


def to_dict(config: Any, sections: Sections) -> dict[str, Any]:
    """Returns every setting under its flag name, as plain values."""
    values: dict[str, Any] = {}
    for name in sections.values():
        values |= dataclasses.asdict(getattr(config, name))
    return {k: list(v) if isinstance(v, tuple) else v for k, v in values.items()}


def section_from_dict(section: type[T], values: Mapping[str, Any]) -> T:
    """Builds a section from values under flag names; ignores other names.

    Raises:
        UserError: a value is refused, or a number is NaN or infinite.
    """
    names = {field.name for field in dataclasses.fields(section)}  # type: ignore[arg-type]
    given = {name: value for name, value in values.items() if name in names}
    for name, value in given.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise UserError(f"`{name}` must be a finite number, got {value}", setting=name)
    return section(**{n: tuple(v) if isinstance(v, list) else v for n, v in given.items()})


def sections_from_dict(values: Mapping[str, Any], sections: Sections) -> dict[str, Any]:
    """Builds the sections of a config from values under their flag names.

    Args:
        values: settings; missing ones keep their defaults.
        sections: sections of the config.

    Returns:
        The sections under the names of the config's attributes.

    Raises:
        UserError: a name is unknown, or a value is refused.
    """
    remaining = dict(values)
    parts: dict[str, Any] = {}
    for section, name in sections.items():
        parts[name] = section_from_dict(section, values)
        for field in dataclasses.fields(section):
            remaining.pop(field.name, None)
    if remaining:
        raise UserError(f"unknown settings: {', '.join(sorted(remaining))}")
    return parts
