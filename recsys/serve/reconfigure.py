# SPDX-License-Identifier: Apache-2.0
"""Changes a deployed model without a checkpoint: its settings and served versions.

A comment of config.pbtxt holds the settings of the last deployment, so they always belong to the
file.
"""

import contextlib
import dataclasses
import json
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from recsys.errors import UserError
from recsys.serve.config_pbtxt import ConfigError, ServingSettings, check_config, config_text
from recsys.serve.manifest import Deployment, DeploymentError
from recsys.serve.versions.policy import policy_of, served_versions, with_policy
from recsys.serve.versions.repository import ModelRepository, RepositoryError
from recsys.settings import section_from_dict

COMMENT = "# Settings of triton/deployer.py, kept by the next deployment: "


def comment_of(settings: Mapping[str, Any]) -> str:
    """Returns the comment line that holds the settings."""
    return f"{COMMENT}{json.dumps(settings, default=str)}\n" if settings else ""


def kept_settings(file: Path) -> dict[str, Any]:
    """Reads the settings from a config.pbtxt; empty if it holds none.

    Raises:
        UserError: the comment is damaged.
    """
    for line in file.read_text().splitlines():
        if line.startswith(COMMENT):
            try:
                return dict(json.loads(line.removeprefix(COMMENT)))
            except (ValueError, TypeError) as error:
                raise UserError(
                    f"{file}: the comment of settings is damaged: {error}; remove the line to "
                    "deploy with the defaults",
                    path=file,
                ) from error
    return {}


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """Yields a line for each setting that changes."""
    for name, value in now.items():
        was, becomes = (json.dumps(v, default=str).strip('"') for v in (before.get(name), value))
        if name in before and was != becomes:
            yield f"`{name}`: {was} -> {becomes}"


def only_model(repository: ModelRepository, name: str | None) -> str:
    """Returns the name of a model; by default the only one.

    Raises:
        RepositoryError: there is no such model, or no name was given and there are several.
    """
    models = repository.models()
    if name is None and len(models) == 1:
        return models[0]
    if name not in models:
        which = "`name` is needed" if name is None else f"`name` {name}: no such model"
        raise RepositoryError(f"{which}; {repository.root} has {', '.join(models) or 'no models'}")
    return name


def roll_back(repository: ModelRepository, name: str) -> tuple[list[int], list[int]]:
    """Serves the versions before the newest one, as many as are served now.

    The settings stay, so the next deployment uses the version policy from before.

    Returns:
        (versions served before, versions served now), ascending.

    Raises:
        UserError: there is no earlier version, or it is damaged.
    """
    with repository.locked():
        existing = repository.versions(name)
        was = served_versions(policy_of(repository.config_file(name).read_text()), existing)
        if not was:
            raise RepositoryError(f"{repository.root / name}: serves no version to roll back from")
        earlier = [version for version in existing if version < was[-1]][-len(was) :]
        if not earlier:
            raise RepositoryError(f"{repository.root / name}: has no version before {was[-1]}")
        for version in earlier:
            Deployment.load(repository.root / name / str(version))
        policy = f"specific:{','.join(map(str, earlier))}"
        repository.change_configs(name, lambda file: with_policy(file.read_text(), policy))
        return was, earlier


def change_settings(
    repository: ModelRepository, name: str, values: Mapping[str, Any], changed: Collection[str]
) -> list[int]:
    """Changes the configuration of a model; returns the served versions, ascending.

    `values` holds all settings; only those named in `changed` are new.

    Raises:
        UserError: the settings are refused.
    """
    serving = section_from_dict(ServingSettings, values)
    with repository.locked():
        file = repository.config_file(name)
        policy = serving.version_policy
        if "version_policy" not in changed:
            policy = policy_of(file.read_text())  # keeps the policy of a roll-back
        served = served_versions(policy, repository.versions(name))
        signature = Deployment.load(repository.root / name / str(served[-1])).signature

        def text(config: Path) -> str:
            own = serving if config == file else dataclasses.replace(serving, device="cpu")
            written = with_policy(config_text(name, signature, own), policy)
            check_config(written, name)
            return comment_of(values) + written if config == file else written

        repository.change_configs(name, text)
    return served


def hand_edits(
    repository: ModelRepository, name: str, settings: Mapping[str, Any]
) -> Iterator[str]:
    """Yields a message for each line that the settings would not produce."""
    file = repository.config_file(name)
    if not settings:
        yield f"{file}: holds no settings of a deployment; flags and defaults replace its settings"
        return
    text, serving = file.read_text(), section_from_dict(ServingSettings, settings)
    for version in repository.versions(name):
        with contextlib.suppress(DeploymentError):  # one may be damaged; all share a signature
            signature = Deployment.load(repository.root / name / str(version)).signature
            given = with_policy(config_text(name, signature, serving), policy_of(text)).splitlines()
            for line in text.splitlines():
                if line not in given and not line.startswith(COMMENT):
                    yield f"{file}: this line is not kept, give it as a flag: {line.strip()}"
            return


def require_changeable(given: set[str]) -> None:
    """Refuses to change settings that only a deployment can change.

    Raises:
        ConfigError: names them.
    """
    fields = {field.name for field in dataclasses.fields(ServingSettings)}
    fixed = sorted(given - (fields - {"backend", "format", "device"}) - {"repository", "name"})
    if fixed:
        named = ", ".join(f"`{name}`" for name in fixed)
        raise ConfigError(f"`checkpoint` is needed to change {named}", setting="checkpoint")
