# SPDX-License-Identifier: Apache-2.0
"""Settings that the next deployment of a model keeps, and changes.

They stand in a comment of config.pbtxt, so they are always those of the file.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from recsys.errors import UserError

COMMENT = "# Settings of triton/deployer.py, kept by the next deployment: "


def comment_of(settings: Mapping[str, Any]) -> str:
    """Returns the comment line with the settings."""
    return f"{COMMENT}{json.dumps(settings, default=str)}\n" if settings else ""


def kept_settings(file: Path) -> dict[str, Any]:
    """Reads the settings from a config.pbtxt; empty if it has none.

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
                    "deploy with the defaults"
                ) from error
    return {}


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """Yields a line for each setting that changes."""
    for name, value in now.items():
        was, becomes = (json.dumps(v, default=str).strip('"') for v in (before.get(name), value))
        if name in before and was != becomes:
            yield f"`{name}`: {was} -> {becomes}"
