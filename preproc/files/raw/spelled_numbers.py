# SPDX-License-Identifier: Apache-2.0
"""Tells numbers with decimal commas and thousands separators, which are not read."""

import re
from collections.abc import Collection

_THOUSANDS = re.compile(
    r"-?\d{1,3}(?:,\d{3})+(?:\.\d+)?|-?\d{1,3}(?:[ '\u00a0\u202f]\d{3})+(?:[.,]\d+)?"
)
_DECIMAL_COMMA = re.compile(r"-?(?:\d+|\d{1,3}(?:[. ]\d{3})+),\d+")
_POINTS = re.compile(r"-?\d{1,3}(?:\.\d{3}){2,}")
_PLAIN = re.compile(r"-?\d+(?:\.\d+)?")
_PAGE = "(docs/own_clicks.md, Files of spreadsheets)"
_REMEDIES = {
    _THOUSANDS: f"thousands separators: write the numbers without them {_PAGE}",
    _DECIMAL_COMMA: f"decimal commas: write the numbers with a point {_PAGE}",
    _POINTS: f"thousands separators: write the numbers without them {_PAGE}",
}


def spelling_remedy(texts: Collection[str]) -> str:
    """Returns the remedy for numbers that are spelled in another way; empty where there are none.

    Some of the texts may be numbers as they are read; 1,234 is one of thousands where no text has
    other digits after its comma.
    """
    others = [text for text in texts if not _PLAIN.fullmatch(text)]
    fitting = (told for form, told in _REMEDIES.items() if all(map(form.fullmatch, others)))
    return next(fitting, "") if others else ""
