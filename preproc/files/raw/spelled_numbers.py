# SPDX-License-Identifier: Apache-2.0
"""Recognises numbers with decimal commas or thousands separators, which are not supported."""

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
    """Returns the remedy for numbers in an unsupported spelling; empty if there are none.

    Some of the texts may be plain numbers. 1,234 counts as thousands unless another text has a
    different number of digits after its comma.
    """
    others = [text for text in texts if not _PLAIN.fullmatch(text)]
    fitting = (told for form, told in _REMEDIES.items() if all(map(form.fullmatch, others)))
    return next(fitting, "") if others else ""
