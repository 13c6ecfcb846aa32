# SPDX-License-Identifier: Apache-2.0
"""Distinguishes integers that measure or count something from those that name something."""

import math
import re
from collections import Counter
from collections.abc import Mapping

import numpy as np

Counts = Mapping[int, int]
"""Number of rows of each integer."""

_FEW = 10
"""Most distinct integers that are always categories."""
_MANY = 40
"""Least distinct integers whose distribution has a recognisable shape."""
_VERY_MANY = 500
"""Least distinct integers that make a histogram although each has few rows."""

_ID_WORDS = frozenset(
    (
        *("account", "ad", "adgroup", "advertiser", "agent", "app", "article", "author", "banner"),
        *("brand", "browser", "category", "channel", "city", "client", "code", "codes", "company"),
        *("country", "creative", "currency", "customer", "department", "device", "employee"),
        *("film", "genre", "group", "host", "id", "ids", "ip", "item", "key", "language"),
        *("manager", "member", "merchant", "model", "movie", "no", "nr", "os", "page", "plz"),
        *("product", "publisher", "query", "region", "resource", "role", "seller", "session"),
        *("shop", "site", "song", "state", "status", "store", "supplier", "system", "systems"),
        *("tag", "type", "user", "vendor", "visitor", "zip", "zipcode"),
    )
)
"""Last words in the names of columns whose integers name something."""
_NUMBER_WORDS = frozenset(
    (
        *("age", "amount", "amt", "avg", "balance", "clicks", "cost", "count", "counts", "days"),
        *("dist", "distance", "duration", "gain", "height", "hours", "income", "length", "loss"),
        *("mean", "minutes", "months", "nights", "orders", "paid", "percent", "price", "qty"),
        *("quantity", "rate", "ratio", "salary", "score", "seconds", "sum", "tenure", "times"),
        *("total", "views", "visits", "weeks", "weight", "wgt", "width", "years"),
    )
)
"""Words in the names of columns whose integers measure or count something."""
_COUNTING_WORDS = frozenset(("n", "nb", "num", "number"))
"""First words of such names; as last words, as in `house_number`, they are ambiguous."""
_WORD = re.compile("[A-Z]+(?![a-z])|[A-Z]?[a-z]+")

RARER = "larger values are rarer"
"""Evidence that integers are counts."""
_COMMONEST, _SURE_ROWS, _FIRST = 30, 5, 5
_FALL, _SMOOTH_FALL = -0.9, -0.6
"""Rank correlation of integers with their rows for counts; the second if neighbours are alike too.

For ids it is weaker, even if earlier ids tend to be more frequent."""
_CORE = 0.95
"""Fraction of the rows, from the smallest integers on, whose distribution is examined."""
_DENSE = 0.3
"""Least fraction of a range's integers that must occur for them to have neighbours."""
_ROUGH = 0.12
_FLAT = 0.09
"""Most distance from a uniform distribution for ids that were numbered in order of creation."""
_COMMON = 0.01
"""Most rows, as a fraction, of one value among very many numbers; a common id may exceed it."""
_HISTOGRAM, _JAGGED, _PEAK = 20, 1.3, 2.0
_UNEVEN = 0.25
_ROUND, _MOST = 5, 0.5
_GROUP, _GROUPS = 0.01, 10
_TREND, _CLEAR = 0.2, 5.0


def number_evidence(name: str, rows: Counts, clicks: Counts) -> str:
    """Returns readable reasons why integers are numbers; empty if they are categories.

    Args:
        name: name of the column.
        rows: number of rows of each integer.
        clicks: number of those rows that are clicks; empty if the label is unknown.
    """
    words = words_of(name)
    if len(rows) <= _FEW or (words and words[-1] in _ID_WORDS):
        return ""
    unit = math.gcd(*rows)
    rows = {value // unit: n for value, n in sorted(rows.items())}
    clicks = {value // unit: n for value, n in clicks.items()}
    is_named = is_named_as_number(name)
    if not is_named and not _is_from_zero(rows):
        return ""
    tests = {
        RARER: _are_counts(rows),
        "named as a number": is_named,
        "close values are about equally frequent": _is_smooth(rows) or _has_one_peak(rows),
        "0, or an amount": _are_amounts_or_nothing(rows),
        "round values are more frequent": _are_rounded(rows),
        "close values have similar click rates": _has_trend(rows, clicks),
    }
    return next((evidence for evidence, holds in tests.items() if holds), "")


def is_named_as_number(name: str) -> bool:
    """Returns True if a column's name suggests amounts or counts."""
    words = words_of(name)
    is_id = not words or words[-1] in _ID_WORDS
    return not is_id and (words[0] in _COUNTING_WORDS or not _NUMBER_WORDS.isdisjoint(words))


def words_of(name: str) -> list[str]:
    """Returns the words of a name such as `device_id` or `deviceId`, in lower case."""
    return [word.lower() for word in _WORD.findall(name)]


def _is_from_zero(rows: Counts) -> bool:
    """Returns True if the integers lie near zero; ids from 5060 to 5100 do not."""
    return max(rows) - min(rows) > abs(min(rows))


def _are_counts(rows: Counts) -> bool:
    """Returns True if larger integers are rarer: all of them, or the small ones of most rows."""
    if not 0 <= min(rows) <= 1:
        return False
    values, counts = _ordered(rows)
    first, own = values[:_FIRST], counts[:_FIRST]
    falls = first[-1] - first[0] == _FIRST - 1 and (np.diff(own) < 0).all()
    if falls and own.sum() > _CORE * counts.sum():
        return True
    commonest = Counter(rows).most_common(_COMMONEST)
    sure = [(value, n) for value, n in commonest if n >= _SURE_ROWS]
    fall = _rank_correlation(*np.array(sure if len(sure) > 1 else commonest).T)
    return fall < _FALL or (fall < _SMOOTH_FALL and _roughness(*_core(rows)) < _ROUGH)


def _rank_correlation(first: np.ndarray, second: np.ndarray) -> float:
    """Returns Spearman's correlation; not from scipy.stats, which takes a second to import."""
    ranks = []
    for values in (first, second):
        _, of_value, ties = np.unique(values, return_inverse=True, return_counts=True)
        ranks.append((ties.cumsum() - (ties - 1) / 2)[of_value])
    if min(np.ptp(each) for each in ranks) == 0:
        return 0.0  # no order to compare
    return float(np.asarray(np.corrcoef(ranks))[0, 1])


def _is_smooth(rows: Counts) -> bool:
    """Returns True if an integer has about as many rows as its neighbours, like durations.

    The frequency of an id does not depend on its neighbours. Ids that are all equally frequent
    were drawn at random or numbered consecutively.
    """
    if len(rows) < _MANY:
        return False
    values, counts = _core(rows)
    span = values[-1] - values[0] + 1
    if len(values) < max(_FEW, _DENSE * span) or counts.sum() < 2 * len(values):
        return False
    uniform = (values - values[0] + 1) / span
    if np.abs(counts.cumsum() / counts.sum() - uniform).max() < _FLAT:
        return False
    return _roughness(values, counts) < _ROUGH


def _roughness(values: np.ndarray, counts: np.ndarray) -> float:
    """Returns the mean squared relative difference of neighbours' rows, minus that of chance.

    It is 0 if neighbours differ only by chance, and 1 if no integer has a neighbour.
    """
    is_next = np.diff(values) == 1
    alone = np.concatenate([counts[:-1][~is_next], counts[1:][~is_next]])
    sums = np.concatenate([counts[:-1][is_next] + counts[1:][is_next], alone])
    differences = np.concatenate([counts[:-1][is_next] - counts[1:][is_next], alone])
    return float(((differences**2 - sums) / sums).sum() / sums.sum())


def _has_one_peak(rows: Counts) -> bool:
    """Returns True if many sparse integers cluster around one of them."""
    total = sum(rows.values())
    if len(rows) < _VERY_MANY or max(rows.values()) > _COMMON * total:
        return False
    values = np.array(sorted(rows))
    heights, _ = np.histogram(values[: int(0.99 * len(values))], _HISTOGRAM)
    way = np.abs(np.diff(heights)).sum()  # with one peak: up to it and down again
    shortest = 2 * heights.max() - heights[0] - heights[-1]
    return bool(heights.max() > _PEAK * heights.mean() and way < _JAGGED * shortest)


def _are_amounts_or_nothing(rows: Counts) -> bool:
    """Returns True if most rows are 0, and the others are unevenly distributed amounts."""
    zeros, total = rows.get(0, 0), sum(rows.values())
    values = np.array([value for value in sorted(rows) if value > 0])
    if min(rows) < 0 or zeros < _MOST * total or values[0] < _FEW:
        return False
    uniform = (values - values[0]) / max(values[-1] - values[0], 1)
    return bool(np.abs(np.arange(len(values)) / len(values) - uniform).max() > _UNEVEN)


def _are_rounded(rows: Counts) -> bool:
    """Returns True if people rounded most of them; if all are multiples of 5, they may be ids."""
    commonest = max(rows, key=rows.__getitem__)
    others = {value: n for value, n in rows.items() if value != commonest}
    fives = {value: n for value, n in others.items() if value % _ROUND == 0}
    are_some = len(fives) < 2 / _ROUND * len(others)
    return are_some and sum(fives.values()) > _MOST * sum(others.values())


def _has_trend(rows: Counts, clicks: Counts) -> bool:
    """Returns True if the click rate follows the integer; that of many ids may follow their age."""
    if not clicks or len(rows) > 100:
        return False
    total = sum(rows.values())
    groups = [[0, 0]]
    for value, n in sorted(rows.items()):
        if groups[-1][0] >= _GROUP * total:
            groups.append([0, 0])
        groups[-1][0] += n
        groups[-1][1] += clicks.get(value, 0)
    counts, sums = np.array(groups).T
    rate = sums.sum() / total
    noise = (rate * (1 - rate) / counts).mean()
    rates = sums / counts
    if len(rates) < _GROUPS or rates.var() < _CLEAR * noise:
        return False
    steps = (np.diff(rates) ** 2).mean() / 2
    return bool(steps - noise < _TREND * (rates.var() - noise))


def _core(rows: Counts) -> tuple[np.ndarray, np.ndarray]:
    """Returns the smallest integers that together make up most rows."""
    values, counts = _ordered(rows)
    end = np.searchsorted(counts.cumsum(), _CORE * counts.sum()) + 1
    return values[:end], counts[:end]


def _ordered(rows: Mapping[int, int] | Mapping[float, int]) -> tuple[np.ndarray, np.ndarray]:
    values = np.array(sorted(rows))
    return values, np.array([rows[value] for value in values.tolist()])
