# SPDX-License-Identifier: Apache-2.0
"""Finds the label among the columns of a sample, and columns that give it away."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

import numpy as np

from preproc.clicks.schema.draft.number_scale import words_of
from preproc.clicks.schema.draft.text_sample import NUMBER

_LABELS = frozenset(
    (
        *("label", "target", "y", "class", "click", "clicked", "conversion", "converted"),
        *("outcome",),
    )
)
_EVENTS = frozenset(
    (
        *("attributed", "bought", "buy", "canceled", "cancelled", "churn", "churned", "default"),
        *("fraud", "income", "installed", "ordered", "purchase", "purchased", "readmitted"),
        *("revenue", "sold", "subscribed", "survived"),
    )
)
"""Names of labels, and of events that serve as the label if no column has such a name."""
_AUXILIARIES = frozenset(("is", "has", "was"))
_TRUTHS = ({"0", "1"}, {"0.0", "1.0"}, {"true", "false"})
_PAIRS = (*_TRUTHS, {"-1", "1"}, {"yes", "no"}, {"y", "n"}, {"t", "f"})
"""Possible values of a label, in lower case; the first pairs at any position and with any name."""
_YES = frozenset(
    (
        *("1", "1.0", "true", "yes", "y", "t", "click", "clicked", "buy", "bought", "purchase"),
        *("purchased", "conversion", "converted", "install", "installed", "positive", "order"),
        *("ordered",),
    )
)
_NO = frozenset(
    (
        *("0", "0.0", "-1", "false", "no", "n", "f", "view", "viewed", "impression", "negative"),
        *("none",),
    )
)

_ENOUGH_ROWS, _ENOUGH_CLICKS = 1000, 20
_WRONG = 0.01
"""Most rows that a leak may get wrong, as a fraction of the rarer of clicks and others."""
_FEW, _LEAST_ROWS = 50, 5


class Label(NamedTuple):
    """The column of the label.

    Attributes:
        column: its name.
        yes: text of a click.
        no: text of the other rows.
        is_guess: the rarer text was taken to be the click because neither text says so.
    """

    column: str
    yes: str
    no: str
    is_guess: bool


def find_label(columns: Mapping[str, Counter[str]]) -> Label | None:
    """Returns the label if only one column can be it.

    A candidate has two values and the name of a label or an event. Without such a column,
    candidates have the values of a label, or are the last column.
    """
    of_two = [name for name, cells in columns.items() if len(cells) == 2 and "" not in cells]
    last = [*columns][-1]
    of_pairs = [n for n in of_two if {text.lower() for text in columns[n]} in _PAIRS or n == last]
    fitting = (
        [name for name in of_two if _bare(name) in _LABELS],
        [name for name in of_two if _bare(name) in _EVENTS],
        of_pairs,
    )
    found = next(filter(None, fitting), [])
    if len(found) != 1:
        return None
    cells = columns[found[0]]
    if found is of_pairs and found != [last] and {text.lower() for text in cells} not in _TRUTHS:
        return None
    common, rare = (text for text, _ in cells.most_common())
    for yes, no in ((rare, common), (common, rare)):
        if _says_no(no) and not _says_no(yes):
            return Label(found[0], yes, no, is_guess=False)
    are_numbers = all(map(NUMBER.fullmatch, cells))
    for yes, no in ((rare, common), (common, rare)):
        if _says_yes(yes) and not _says_yes(no) and not are_numbers:
            return Label(found[0], yes, no, is_guess=False)
    return Label(found[0], rare, common, is_guess=True)


def leak_evidence(cells: Counter[str], clicks: Counter[str], missing: Collection[str]) -> str:
    """Returns why a column appears to be known only after the label; empty if it does not.

    Args:
        cells: number of rows of each text.
        clicks: number of those rows that are clicks.
        missing: texts that mark a missing value.
    """
    total, positives = sum(cells.values()), sum(clicks.values())
    most_wrong = _WRONG * min(positives, total - positives)
    if total < _ENOUGH_ROWS or most_wrong < _WRONG * _ENOUGH_CLICKS:
        return ""

    def determine_label(groups: Iterable[Iterable[str]]) -> bool:
        wrong = 0
        for group in map(list, groups):
            rows = sum(cells[text] for text in group)
            own = sum(clicks[text] for text in group)
            wrong += min(own, rows - own) if rows >= _LEAST_ROWS else rows
        return wrong <= most_wrong

    filled = [text for text in cells if text not in missing]
    absent = [text for text in cells if text in missing]
    if determine_label((filled, absent)):
        return "filled only for clicks, or only for the others: known after the label, a leak"
    if len(cells) <= _FEW and determine_label([text] for text in cells):
        return "determines the label by itself: known after it, a leak"
    if filled and all(map(NUMBER.fullmatch, filled)):
        own = sum(clicks[text] for text in absent)
        wrong = min(own, sum(cells[text] for text in absent) - own)
        if wrong + _wrong_beside_edge(filled, cells, clicks) <= most_wrong:
            return "determines the label by itself: known after it, a leak"
    return ""


def _wrong_beside_edge(numbers: list[str], cells: Counter[str], clicks: Counter[str]) -> int:
    """Returns how many rows lie on the wrong side of the best threshold for clicks."""
    numbers = sorted(numbers, key=float)
    positive = np.array([clicks[text] for text in numbers])
    negative = np.array([cells[text] for text in numbers]) - positive
    wrong = positive.cumsum() + negative.sum() - negative.cumsum()  # if clicks are above it
    total = positive.sum() + negative.sum()
    return int(min(wrong.min(), total - wrong.max()))


def _bare(name: str) -> str:
    """Returns a name without the prefix that labels may have."""
    words = words_of(name)
    return "_".join(words[1:] if words[:1] and words[0] in _AUXILIARIES else words)


def _says_yes(text: str) -> bool:
    return text.strip().lower() in _YES or text.strip().startswith(">")


def _says_no(text: str) -> bool:
    return text.strip().lower() in _NO or text.strip().startswith("<")
