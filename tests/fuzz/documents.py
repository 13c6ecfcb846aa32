# SPDX-License-Identifier: Apache-2.0
"""Edits of JSON and YAML that keep it valid: other values, and missing, added and doubled keys."""

import copy
import json
from collections.abc import Callable
from typing import Any

import yaml

from tests.fuzz.target import Draws

_ODD: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2**31, 2**63, -(2**63), 2**70, 0.5, -0.0, 1e308, float("nan")),
    *(
        float("inf"),
        "",
        " ",
        "0",
        "-1",
        "none",
        "x",
        "é\n\0",
        "../x",
        "/",
        ".",
        "a" * 3000,
        "\ud800",
    ),
    *([], {}, [[]], [0], [1, 1], {"": 0}, {"x": {"x": []}}, ["x"] * 9, [[[[[[0]]]]]]),
)


def _places(document: Any) -> list[tuple[Any, Any]]:
    """Returns (container, key) of every value, in order."""
    found: list[tuple[Any, Any]] = []
    left = [document]
    while left:
        container = left.pop()
        keys = list(container) if isinstance(container, dict) else range(len(container))
        for key in keys:
            found.append((container, key))
            if isinstance(container[key], (dict, list)):
                left.append(container[key])
    return found


def _edit(draws: Draws, holder: list[Any]) -> None:
    places = _places(holder)
    container, key = draws.pick(places)
    other_container, other_key = draws.pick(places)
    kind = draws.below(5)
    if kind == 0:
        del container[key]
    elif kind == 1 and isinstance(container, dict):
        container[draws.pick(("x", "", str(other_key), 7))] = copy.deepcopy(container[key])
    elif kind == 2 and isinstance(container, list):
        container.insert(key, copy.deepcopy(container[key]))
    elif kind == 3:
        value = other_container[other_key]
        container[key] = (
            value if isinstance(value, (int, float, str)) else copy.deepcopy(draws.pick(_ODD))
        )
    else:
        container[key] = copy.deepcopy(draws.pick(_ODD))


def _edited(
    draws: Draws, text: bytes, load: Callable[[bytes], Any], dump: Callable[[Any], str]
) -> bytes:
    holder = [load(text)]
    for _ in range(1 + draws.below(3)):
        if holder:
            _edit(draws, holder)
    document = dump(holder[0]) if holder else ""
    return document.encode(errors="surrogateescape" if document.isascii() else "replace")


def edited_json(draws: Draws, text: bytes) -> bytes:
    """Returns a JSON document with some values changed."""
    return _edited(draws, text, json.loads, json.dumps)


def edited_yaml(draws: Draws, text: bytes) -> bytes:
    """Returns a YAML document with some values changed."""
    return _edited(
        draws, text, yaml.safe_load, lambda value: yaml.safe_dump(value, allow_unicode=True)
    )
