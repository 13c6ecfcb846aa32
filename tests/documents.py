# SPDX-License-Identifier: Apache-2.0
"""Changes of documents that hold a checksum of their own text: manifests and deployment.json."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from recsys.files import json_text


def change_document(path: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Changes a JSON document, and gives it a checksum that agrees."""
    document = json.loads(path.read_text())
    document.pop("checksum", None)
    path.write_text(json_text.signed(change(document)))


def with_checksum(text: str) -> str:
    """Returns an edited text with a checksum that agrees, if it has one."""
    body, found, _ = text.rpartition(json_text._CHECKSUM)
    return json_text._with_checksum(body) if found else text
