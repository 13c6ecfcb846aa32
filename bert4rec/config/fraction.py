# SPDX-License-Identifier: Apache-2.0
"""Check of settings that are fractions of a whole."""

from typing import Any

from recsys.errors import UserError


def require_fraction(section: Any, name: str, *, below_one: bool = False) -> None:
    """Refuses a value outside [0, 1], or outside [0, 1) with `below_one`."""
    value = getattr(section, name)
    if not 0 <= value <= 1 or (below_one and value == 1):
        end = ")" if below_one else "]"
        raise UserError(f"`{name}` must lie in [0, 1{end}, got {value}", setting=name)
