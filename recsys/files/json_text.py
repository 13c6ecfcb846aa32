# SPDX-License-Identifier: Apache-2.0
"""JSON from outside: whatever is wrong with it is a ValueError."""

import json
from typing import Any


def parse_json(text: str | bytes, **options: Any) -> Any:
    """Returns the value of a JSON text.

    Args:
        text: the text; bytes are UTF-8, UTF-16 or UTF-32.
        options: of `json.loads`.

    Raises:
        ValueError: it is no JSON, or nests more deeply than Python can follow.
    """
    try:
        return json.loads(text, **options)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
