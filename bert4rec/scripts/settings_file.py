# SPDX-License-Identifier: Apache-2.0
"""YAML files of settings: each key a setting, each value of its type, or refused by its line."""

import types
import typing
from pathlib import Path
from typing import Any

import yaml

from bert4rec.config import SECTIONS

CONFIGS = Path(__file__).resolve().parents[1] / "configs"


def preset_names() -> list[str]:
    """Returns the names of the files in `configs/`."""
    return sorted(path.stem for path in CONFIGS.glob("*.yaml"))


def read_settings(name: str) -> dict[str, Any]:
    """Reads a YAML file of settings.

    Args:
        name: of a file, or, without a suffix, of one in `configs/`.

    Raises:
        ValueError: it is missing or no mapping, a key is no setting, or a value is of another
            type; names file and line.
    """
    path = Path(name) if Path(name).suffix else CONFIGS / f"{name}.yaml"
    try:
        root = yaml.compose(path.read_text())
    except FileNotFoundError as error:
        raise ValueError(
            f"--config {name}: no such file; built in are {', '.join(preset_names())}"
        ) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"--config {path}: not readable as YAML: {error}") from error
    if root is None:
        return {}
    if not isinstance(root, yaml.MappingNode):
        raise ValueError(f"--config {path}: expected `setting: value` lines")
    hints: dict[str, Any] = {}
    for section in SECTIONS:
        hints |= typing.get_type_hints(section)
    found: dict[str, Any] = {}
    for key, node in root.value:
        where = f"{path}:{key.start_mark.line + 1}"
        if key.value not in hints:
            raise ValueError(f"{where}: unknown setting {key.value!r}")
        if key.value in found:
            raise ValueError(f"{where}: {key.value} stands there twice")
        value = yaml.constructor.SafeConstructor().construct_document(node)
        found[key.value] = _checked(f"{where}: {key.value}", hints[key.value], value)
    return found


def _checked(what: str, hint: Any, value: Any) -> Any:
    """Returns a value as the type of its setting has it."""
    if isinstance(hint, types.UnionType):
        if value is None:
            return None
        hint = next(a for a in typing.get_args(hint) if a is not type(None))
    choices = typing.get_args(hint)
    if typing.get_origin(hint) is typing.Literal:
        expected, fits = f"one of {', '.join(choices)}", value in choices
    elif typing.get_origin(hint) is tuple:
        expected = "a list of integers"
        fits = isinstance(value, list) and all(type(element) is int for element in value)
        value = tuple(value) if fits else value
    elif hint is float:
        expected, value = "a number", _number(value)
        fits = type(value) is float
    else:
        names = {int: "an integer", bool: "true or false", str: "text"}
        expected, fits = names[hint], type(value) is hint
    if not fits:
        raise ValueError(f"{what} must be {expected}, got {value!r}")
    return value


def _number(value: Any) -> Any:
    """Returns a float where a value is a number; PyYAML leaves 1e-3 as text."""
    if type(value) in (int, str):
        try:
            return float(value)
        except ValueError:
            return value
    return value
