# SPDX-License-Identifier: Apache-2.0
"""Distinguishes texts that are lists from texts that happen to contain commas."""

import itertools
import re
from collections import Counter
from collections.abc import Collection

SEPARATORS = ("|", ";", ",")
WEIGHTED = re.compile(r".+:-?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?")
"""An element with a colon and its weight."""
_SEVERAL = 0.3
"""Least fraction of texts with several elements, if they are lists."""
_MET_BOTH = 0.5
"""Least fraction of later elements that come first elsewhere, if blanks follow the separators."""


def list_separator(texts: Collection[str], separators: Collection[str] = SEPARATORS) -> str:
    """Returns the separator of lists; empty if the texts are not lists.

    Names and addresses also have recurring parts separated by a comma and a blank, but a part that
    comes first in one does not come second in another. Lists of codes need no recurring elements,
    since there may be few.
    """
    return next((each for each in separators if _are_lists(texts, each)), "")


def _are_lists(texts: Collection[str], separator: str) -> bool:
    lists = [[element.strip(" \t") for element in text.split(separator)] for text in texts]
    if all(map(WEIGHTED.fullmatch, itertools.chain(*lists))):
        lists = [[element.rpartition(":")[0] for element in elements] for elements in lists]
    several = [elements for elements in lists if len(elements) > 1]
    if not several or len(several) < _SEVERAL * len(lists) or not all(map(all, lists)):
        return False
    if len({*map(len, several)}) > 1 and _are_codes(itertools.chain(*lists)):
        return True
    counts = Counter(itertools.chain(*lists))
    if 2 * len(counts) > counts.total():  # elements of lists recur
        return False
    has_blanks = any(f"{separator} " in text for text in texts)
    first, later = {elements[0] for elements in several}, [e[1:] for e in several]
    met_first = sum(element in first for element in itertools.chain(*later))
    return not has_blanks or met_first > _MET_BOTH * sum(map(len, later))


def _are_codes(elements: Collection[str] | itertools.chain[str]) -> bool:
    """Returns True if all have the same form of letters and digits, such as ART-0022."""
    forms = {re.sub("[0-9]+", "0", re.sub("[A-Za-z]+", "a", each)) for each in elements}
    return len(forms) == 1 and re.fullmatch(r"(?=.*a)(?=.*0)[a0_.:/-]+", forms.pop()) is not None
