# SPDX-License-Identifier: Apache-2.0
"""Presets: YAML files of settings, strictly checked.

Each key is a setting, and each value has the setting's type.

A file is only read when it is named or when all presets are listed; otherwise it may have errors.
"""

import contextlib
import dataclasses
import difflib
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from recsys.errors import UserError
from recsys.settings import Sections, checked, declared


@dataclasses.dataclass(frozen=True)
class Preset:
    """Settings that belong together.

    Attributes:
        values: setting -> value.
        lines: setting -> its place in a YAML file, as `file:line`.
    """

    values: dict[str, Any]
    lines: dict[str, str]

    def fill(self, values: dict[str, Any], explicit: set[str]) -> "Preset":
        """Fills in settings that the user did not give.

        Args:
            values: every setting; changed in place.
            explicit: names of the settings that the user gave; those of the preset are added.

        Returns:
            The settings that were filled in.
        """
        taken = self.values.keys() - explicit
        preset = Preset(*({n: by[n] for n in by if n in taken} for by in (self.values, self.lines)))
        values |= preset.values
        explicit |= taken
        return preset

    @contextlib.contextmanager
    def located(self) -> Iterator[None]:
        """Puts file and line in front of errors about settings of this preset.

        Raises:
            UserError: the error of the block; spells settings of the file as the file does.
        """
        try:
            yield
        except UserError as error:
            names = [name for name in error.settings if name in self.lines]
            if not names:
                raise
            others = [name for name in error.settings if name not in self.lines]
            where, message = self.lines[names[0]], str(error)
            for name in names:
                message = message.replace(f"`{name}`", name)
            raise UserError(f"{where}: {message}", settings=others) from error


@dataclasses.dataclass(frozen=True)
class PresetFolder:
    """The presets of a program.

    Attributes:
        folder: folder of the files NAME.yaml.
        sections: sections whose settings the presets may hold.
        flag: setting that names a preset.
        theirs: heading in another project's files -> key below it -> our setting.
    """

    folder: Path
    sections: Sections
    flag: str = "preset"
    theirs: Mapping[str, Mapping[str, str]] = dataclasses.field(default_factory=dict)

    def names(self) -> list[str]:
        """Returns the names of the presets, without reading them."""
        return sorted(path.stem for path in self.folder.glob("*.yaml"))

    def fill(self, name: str | None, values: dict[str, Any], explicit: set[str]) -> Preset:
        """Fills in settings that the user did not give, from a preset.

        Args:
            name: see `read`; None fills in nothing.
            values: see `Preset.fill`.
            explicit: see `Preset.fill`.

        Returns:
            The settings that were filled in.

        Raises:
            UserError: see `read`.
        """
        return (Preset({}, {}) if name is None else self.read(name)).fill(values, explicit)

    def read(self, name: str) -> Preset:
        """Reads a preset.

        Args:
            name: path of a file; or, without a suffix, name of a preset in the folder.

        Raises:
            UserError: the file is missing or not a mapping, a key is not a setting, or a value has
                another type; names file and line.
        """
        from recsys.files.strict_yaml import load  # imports yaml, which few commands need

        path = Path(name) if Path(name).suffix else self.folder / f"{name}.yaml"
        try:
            document = load(path, setting=self.flag)
        except UserError as error:
            if not isinstance(error.__cause__, FileNotFoundError):
                raise
            raise UserError(
                f"`{self.flag}` {name}: no such file; built in are {', '.join(self.names())}, "
                "or give the path of a YAML file",
                setting=self.flag,
                path=path,
            ) from error
        if not isinstance(document.values, dict | None):
            raise UserError(
                f"`{self.flag}` {path}: expected `setting: value` lines",
                setting=self.flag,
                path=path,
            )
        hints = self._hints()
        preset = Preset({}, {})
        for at, name, value in self._entries(path, document):
            number = document.line(*at)
            line = f"{path}:{number}"
            if name not in hints:
                advice = _advice(name, hints)
                raise UserError(f"{line}: unknown setting {name!r}{advice}", path=path, line=number)
            if name in preset.values:
                raise UserError(f"{line}: {name} occurs twice", path=path, line=number)
            preset.values[name] = checked(f"{line}: {at[-1]}", hints[name], value)
            preset.lines[name] = line
        return preset

    def _entries(self, path: Path, document: Any) -> Iterator[tuple[Any, str, Any]]:
        """Yields (keys from the top, setting, value) for each setting of a file."""
        for key, value in (document.values or {}).items():
            ours = self.theirs.get(key)
            if ours is None:
                yield (key,), key, value
                continue
            if not isinstance(value, dict):
                line = document.line(key)
                raise UserError(
                    f"{path}:{line}: expected `setting: value` lines below {key}",
                    path=path,
                    line=line,
                )
            yield from (((key, own), ours.get(own, own), below) for own, below in value.items())

    def _hints(self) -> dict[str, Any]:
        """Returns the type of every setting by name."""
        hints: dict[str, Any] = {}
        for section in self.sections:
            types_of_fields = typing.get_type_hints(section)
            hints |= {field.name: types_of_fields[field.name] for field in declared(section)}
        return hints


def _advice(key: str, hints: dict[str, Any]) -> str:
    close = difflib.get_close_matches(str(key), hints, n=1)
    return f"; did you mean {close[0]}?" if close else "; docs/flags.md lists all"
