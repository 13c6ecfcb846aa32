# SPDX-License-Identifier: Apache-2.0
"""What the settings of every model share: sections of frozen dataclasses, one field per flag.

A model's config holds one dataclass per section ("model", "data", ...). Field names are flag names
and keys of the log, so they differ between sections. `recsys.flags` makes the flags.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

T = TypeVar("T")

Sections = Mapping[type, str]
"""Each section's dataclass, and the name of the config's attribute that holds it."""


def setting(default: T, help_text: str, *, resumable: bool = False) -> T:
    """Declares a setting: a dataclass field, from which its flag and its resume rule follow.

    Args:
        default: the value where nobody gives one.
        help_text: what the flag's help says.
        resumable: whether a resumed run may have another value, because it changes what is
            watched or where, not the parameters that the run arrives at.
    """
    metadata = {"help": help_text, "resumable": resumable}
    field: T = dataclasses.field(default=default, metadata=metadata)
    return field


def resumable_settings(sections: Sections) -> frozenset[str]:
    """Returns the names of the settings that may differ when a run is resumed."""
    return frozenset(
        field.name
        for section in sections
        for field in dataclasses.fields(section)
        if field.metadata["resumable"]
    )


def require_positive(section: Any, *names: str) -> None:
    """Refuses values below 1.

    Raises:
        ValueError: names the flag and the value.
    """
    for name in names:
        if getattr(section, name) < 1:
            raise ValueError(f"--{name} must be at least 1, got {getattr(section, name)}")


def joined(values: Iterable[object]) -> str:
    """Returns a list as a flag spells it."""
    return ",".join(map(str, values))


def to_dict(config: Any, sections: Sections) -> dict[str, Any]:
    """Returns every setting of a config under its flag name, as plain values."""
    values: dict[str, Any] = {}
    for part in sections.values():
        values |= dataclasses.asdict(getattr(config, part))
    return {k: list(v) if isinstance(v, tuple) else v for k, v in values.items()}


def section_from_dict(section: type[T], values: Mapping[str, Any]) -> T:
    """Builds one section from values under their flag names; values of other sections are ignored.

    Raises:
        ValueError: a value is refused.
    """
    names = {field.name for field in dataclasses.fields(section)}  # type: ignore[arg-type]
    given = {name: value for name, value in values.items() if name in names}
    return section(**{n: tuple(v) if isinstance(v, list) else v for n, v in given.items()})


def sections_from_dict(values: Mapping[str, Any], sections: Sections) -> dict[str, Any]:
    """Builds the sections of a config from values under their flag names.

    Args:
        values: settings; those that are missing keep their defaults.
        sections: of the config.

    Returns:
        The built sections under the names of the config's attributes.

    Raises:
        ValueError: an unknown name, or a value that is refused.
    """
    remaining = dict(values)
    parts: dict[str, Any] = {}
    for section, part in sections.items():
        parts[part] = section_from_dict(section, values)
        for field in dataclasses.fields(section):
            remaining.pop(field.name, None)
    if remaining:
        raise ValueError(f"unknown settings: {', '.join(sorted(remaining))}")
    return parts
