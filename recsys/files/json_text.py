# SPDX-License-Identifier: Apache-2.0
"""Parses untrusted JSON, and documents that hold a checksum of their own text."""

import json
from typing import Any

import xxhash

_CHECKSUM = ',\n "checksum": "'
"""Text before the checksum of a document."""


def parse_json(text: str | bytes, **options: Any) -> Any:
    """Returns the value of a JSON text.

    Args:
        text: JSON text; bytes are UTF-8, UTF-16 or UTF-32.
        options: options of `json.loads`.

    Raises:
        ValueError: the text is not JSON, or is nested more deeply than Python can parse.
    """
    try:
        return json.loads(text, **options)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def signed(document: dict[str, Any]) -> str:
    """Returns a document as JSON; its last key is the XXH64 of the text before that key."""
    return _with_checksum(json.dumps(document, indent=1).removesuffix("\n}"))


def is_intact(text: str) -> bool:
    """Returns whether a text is as `signed` wrote it."""
    return text == _with_checksum(text.rpartition(_CHECKSUM)[0])


def _with_checksum(text: str) -> str:
    return f'{text}{_CHECKSUM}{xxhash.xxh64_hexdigest(text.encode())}"\n}}\n'
