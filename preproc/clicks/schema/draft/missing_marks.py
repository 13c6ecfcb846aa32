# SPDX-License-Identifier: Apache-2.0
"""Finds texts that stand for a missing value."""

import re
from collections import Counter

from preproc.clicks.schema.draft.text_sample import NUMBER
from preproc.clicks.schema.draft.time_sample import time_rule

_MARKS = ("null", "NULL", "None", "nan", "NaN", "NA", "N/A", "n/a", "\\N", "?")
"""Texts that stand for a missing value in any column."""
_ODD_MARKS = {
    *("?", "-", "--", ".", "\\n", "inf", "+inf", "-inf", "infinity", "-infinity", "nan", "null"),
    *("none", "nil", "na", "n/a", "#n/a", "#value!", "#div/0!", "unknown", "undefined", "missing"),
    *("unbekannt", "k.a."),
}
"""Texts that stand for a missing number or time, in lower case."""
_COUNTRY = re.compile("[A-Z]{2}")
_ODD = 0.01
"""Most rows, as a fraction, whose values do not fit those of the others."""
_MOST, _NEARLY_ALL = 0.5, 0.9
"""Least share of numbers or times in a column whose other texts are known marks, or any words."""
_MOST_MARKS = 5


def missing_marks(name: str, cells: Counter[str]) -> list[str]:
    """Returns the texts of a column that stand for a missing value, besides an empty text."""
    marks = [cell for cell in cells if cell and cell.strip() in ("", *_MARKS)]
    rest = [cell for cell in cells if cell and cell not in marks]
    if "NA" in marks and rest and all(map(_COUNTRY.fullmatch, rest)):
        marks.remove("NA")  # Namibia
    if _is_minus_one_a_mark(rest):
        marks.append("-1")
    present = {cell: n for cell, n in cells.items() if cell and cell not in marks}
    return sorted(marks + _odd_texts(name, present))


def _is_minus_one_a_mark(cells: list[str]) -> bool:
    """Returns True if -1 is the only negative number; among just -1, 0 and 1 it is a sign."""
    others = [cell for cell in cells if cell != "-1"]
    is_one = len(others) < len(cells) and {*others} - {"0", "1"}
    return bool(is_one) and not any(cell.startswith("-") for cell in others)


def _odd_texts(name: str, present: dict[str, int]) -> list[str]:
    """Returns the few texts in a column of numbers or times that appear to mark missing values.

    Known marks may be frequent. Other words in only a few rows are more likely errors.
    """
    odd = {
        cell: n
        for cell, n in present.items()
        if cell.lower() in _ODD_MARKS or not any(map(str.isdigit, cell))
    }
    others = {cell: n for cell, n in present.items() if cell not in odd}
    numbers = sum(n for cell, n in others.items() if NUMBER.fullmatch(cell))
    rest = sum(others.values())
    if not odd or not rest or (numbers < (1 - _ODD) * rest and time_rule(name, others) is None):
        return []
    fraction = 1 - rest / sum(present.values())
    if all(cell.lower() in _ODD_MARKS for cell in odd):
        return [*odd] if fraction < 1 - _MOST else []
    return [*odd] if _ODD < fraction <= 1 - _NEARLY_ALL and len(odd) <= _MOST_MARKS else []
