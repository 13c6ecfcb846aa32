# SPDX-License-Identifier: Apache-2.0
"""The flags of the BERT4Rec programs, and the YAML files that replace their defaults."""

import dataclasses
from pathlib import Path
from typing import Any

import yaml
from absl import flags

from bert4rec.config import SECTIONS, Bert4RecConfig
from training.scripts import flags as settings_flags

CONFIGS = Path(__file__).resolve().parents[1] / "configs"


def define_flags(flag_values: flags.FlagValues, **defaults: Any) -> None:
    """Defines every flag.

    Args:
        flag_values: where to define them.
        **defaults: defaults that differ from those of the config.
    """
    settings_flags.define_flags(flag_values, SECTIONS, defaults=defaults, short_names={})
    names = ", ".join(sorted(path.stem for path in CONFIGS.glob("*.yaml")))
    flags.DEFINE_string(
        "config",
        None,
        f"YAML file of settings, or one of {names}; flags that are given come before it",
        flag_values=flag_values,
    )


def config_from_flags(flag_values: flags.FlagValues) -> Bert4RecConfig:
    """Returns the settings that parsed flags, and the YAML file they name, say.

    Raises:
        ValueError: a value is refused, or the file has a key that is no setting.
    """
    values, explicit = settings_flags.values_from_flags(flag_values, SECTIONS)
    if flag_values["config"].value is not None:
        named = Path(flag_values["config"].value)
        path = named if named.suffix else CONFIGS / f"{named}.yaml"
        from_file = read_settings(path)
        values |= {name: value for name, value in from_file.items() if name not in explicit}
        explicit |= set(from_file)
    if values["mode"] in ("ddp", "dmp"):
        if "parallelism" in explicit and values["parallelism"] != values["mode"]:
            raise ValueError(
                f"--mode {values['mode']} contradicts --parallelism {values['parallelism']}"
            )
        values["parallelism"], values["mode"] = values["mode"], "train"
    return Bert4RecConfig.from_dict(values, frozenset(explicit))


def read_settings(path: Path) -> dict[str, Any]:
    """Reads a YAML file of settings.

    Raises:
        ValueError: it is missing or no mapping, or a key is no setting; names file and line.
    """
    try:
        root = yaml.compose(path.read_text())
    except FileNotFoundError as error:
        known = ", ".join(sorted(p.stem for p in CONFIGS.glob("*.yaml")))
        raise ValueError(f"--config {path}: no such file; built in are {known}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"--config {path}: not readable as YAML: {error}") from error
    if root is None:
        return {}
    if not isinstance(root, yaml.MappingNode):
        raise ValueError(f"--config {path}: expected `setting: value` lines")
    kinds = {f.name: f.type for section in SECTIONS for f in dataclasses.fields(section)}
    found: dict[str, Any] = {}
    for key, node in root.value:
        where = f"{path}:{key.start_mark.line + 1}"
        if key.value not in kinds:
            raise ValueError(f"{where}: unknown setting {key.value!r}")
        if key.value in found:
            raise ValueError(f"{where}: {key.value} stands there twice")
        value = yaml.safe_load(yaml.serialize(node))
        if isinstance(value, str) and "float" in str(kinds[key.value]):
            value = _number(where, key.value, value)
        found[key.value] = tuple(value) if isinstance(value, list) else value
    return found


def _number(where: str, name: str, text: str) -> float:
    """Reads what PyYAML leaves as text: it takes 1e-3 for a string."""
    try:
        return float(text)
    except ValueError as error:
        raise ValueError(f"{where}: {name} must be a number, got {text!r}") from error
