# SPDX-License-Identifier: Apache-2.0
"""Parses untrusted JSON: every fault of the text is a ValueError."""

import json
from typing import Any


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
