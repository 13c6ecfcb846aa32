# SPDX-License-Identifier: Apache-2.0
"""Infers role, type and rules of a column from its texts."""

import functools
import re
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

import numpy as np

from preproc.clicks.schema.draft.number_scale import is_named_as_number, number_evidence
from preproc.clicks.schema.draft.text_sample import NUMBER
from preproc.clicks.schema.draft.time_sample import (
    fits_days_first,
    time_kind,
    time_rule,
    zone_remark,
)
from preproc.clicks.schema.grammar import MAX_TEXT_BYTES
from preproc.clicks.schema.time_rule import TIME_FEATURES
from preproc.files.raw.lists_in_text import SEPARATORS, WEIGHTED, list_separator
from preproc.files.raw.spelled_numbers import spelling_remedy

_WHOLE = re.compile(r"-?\d+")
_WITH_ZEROS = re.compile(r"(-?\d+)\.0+")
"""Integers written as decimals, which programs do if other values are missing."""
_HASHED = re.compile(r"[0-9a-f]{8}")
_HEAVY_TAILED = 3
"""Outliers dominate the deviation above this multiple of half the middle two thirds' range."""
_BRACKETS = re.compile(r"\[.*\]")
_ODD = 0.01
"""Most rows, as a fraction, whose values do not fit those of the others."""
_UNTOLD = ("categorical, type: string", "ignored")
"""Kinds of columns whose values suggest nothing else."""


class Texts(NamedTuple):
    """The texts of a column that are not missing.

    Attributes:
        name: name of the column.
        rows: number of rows of each text.
        clicks: number of those rows that are clicks; empty if the label is unknown.
        is_everywhere: whether every row has a text.
    """

    name: str
    rows: Mapping[str, int]
    clicks: Mapping[str, int]
    is_everywhere: bool


def column_kind(
    texts: Texts, separators: Collection[str], known: str = ""
) -> tuple[str, list[str]]:
    """Returns the role and rules of a column, in schema form, and remarks.

    Args:
        texts: the column's texts.
        separators: candidates for the separator of lists.
        known: role and rules if the type of a table column determines them; else empty.
    """
    present = texts.rows
    kind, remarks = (known, []) if known else _any_kind(texts, separators)
    is_told = kind.startswith(("numerical", "timestamp", "categorical_list"))
    remedy = "" if is_told or _are_numbers(present) else _remedy(present, separators)
    if remedy:
        return kind if "delimiter" in remedy else "ignored", [*remarks, remedy]
    if "%m/%d" in kind and fits_days_first(kind, present):
        remarks.append("or %d/%m/%Y: no number is above 12")
    elif kind in _UNTOLD and not _are_numbers(present):
        of_most, of_others = _kind_of_most(texts, separators)
        kind = of_most or kind
        remarks += of_others
    if kind.startswith("timestamp"):
        remarks.append(zone_remark(kind, present))
    negative = sum(n for cell, n in present.items() if cell.startswith("-"))
    if kind.startswith("numerical") and negative:
        remarks.append(f"{negative / sum(present.values()):.0%} negative")
        kind = f"numerical, type: float, transform: {_standardised(present)}"
    return kind, remarks


def derived_names(name: str, kind: str) -> list[str]:
    """Returns the names of the categorical features that are derived from a column."""
    is_time = kind.startswith("timestamp")
    return [f"{name}_{each}" for each in TIME_FEATURES if is_time and each in kind]


def plain_kind(rows: Collection[str]) -> str:
    """Returns the kind of a column whose values are treated as names, whatever they are."""
    return f"categorical, type: {_category_type(rows)}"


def _remedy(present: Collection[str], separators: Collection[str]) -> str:
    """Returns what to do about texts that no role reads properly; empty if there are none."""
    if not present:
        return ""
    if all(map(_BRACKETS.fullmatch, present)):
        return "lists in brackets: write their elements separated by a bar"
    taken = [each for each in SEPARATORS if each not in separators]
    if separator := list_separator(present, taken):
        return (
            f"lists separated by {separator!r}, the delimiter of the file: to use their "
            "elements, separate them by a bar"
        )
    return spelling_remedy(present)


def _standardised(present: Mapping[str, int]) -> str:
    """Returns the transform for numbers of both signs."""
    pairs = sorted((float(cell), n) for cell, n in present.items() if NUMBER.fullmatch(cell))
    numbers, counts = np.array(pairs).T
    mean = np.average(numbers, weights=counts)
    deviation = np.sqrt(np.average((numbers - mean) ** 2, weights=counts))
    at = np.searchsorted(counts.cumsum(), np.array([0.16, 0.5, 0.84]) * counts.sum())
    low, median, high = numbers[at]
    spread = (high - low) / 2  # for a normal distribution, the deviation
    kind = "standardise"
    if deviation > _HEAVY_TAILED * spread > 0:
        kind, mean, deviation = "signed_log", median, spread
    return f"{kind}, mean: {_number_text(mean)}, deviation: {_number_text(deviation or 1)}"


def _number_text(number: float) -> str:
    """Returns a number as YAML text; YAML needs a point in a number with an exponent."""
    if isinstance(number, int):
        return str(number)
    digits, _, exponent = f"{number:.6g}".partition("e")
    return digits if not exponent else f"{digits}{'' if '.' in digits else '.0'}e{exponent}"


def differ(present: Mapping[str, int]) -> bool:
    """Returns True if nearly all values differ."""
    return sum(present.values()) >= 100 and len(present) > 0.99 * sum(present.values())


def _kind(texts: Texts) -> tuple[str, list[str]]:
    """Returns the kind of a column of single values, and remarks."""
    present = texts.rows
    whole = _as_whole(texts)
    if present and not whole and _are_numbers(present):
        return "numerical, type: float", []
    are_long = any(len(cell.encode()) > MAX_TEXT_BYTES for cell in present)
    is_number = whole and is_named_as_number(texts.name)
    if not present or are_long or (differ(present) and not is_number):
        return "ignored", []
    if len(present) == 1 and texts.is_everywhere:
        return "ignored", []
    category = _category_type(present)
    if category == "int" and all(abs(int(cell)) < 2**31 for cell in whole.values()):
        evidence = number_evidence(texts.name, _sums(whole, present), _sums(whole, texts.clicks))
        if evidence:
            is_short = [*whole] == [*whole.values()]
            kind = f"numerical, type: {'int' if is_short else 'float'}"
            return kind, [f"{evidence}; or categorical, type: int"]
    return f"categorical, type: {category}", []


def _are_numbers(cells: Collection[str]) -> bool:
    return all(map(NUMBER.fullmatch, cells))


def _as_whole(texts: Texts) -> dict[str, str]:
    """Maps the texts of an integer column to digits, including texts with zeros after a point.

    If no value is missing, such zeros mean that the column holds decimals.
    """
    if all(map(_WHOLE.fullmatch, texts.rows)):
        return {cell: cell for cell in texts.rows}
    matches = {cell: _WITH_ZEROS.fullmatch(cell) for cell in texts.rows}
    if texts.is_everywhere or not all(matches.values()):
        return {}
    return {cell: match[1] for cell, match in matches.items() if match}


def _sums(whole: Mapping[str, str], rows: Mapping[str, int]) -> dict[int, int]:
    """Returns the rows of each integer."""
    sums = dict[int, int]()
    for cell, digits in whole.items():
        if n := rows.get(cell, 0):
            sums[int(digits)] = sums.get(int(digits), 0) + n
    return sums


def _category_type(present: Collection[str]) -> str:
    """Returns the type of categories."""
    if all(map(_HASHED.fullmatch, present)) and not all(map(str.isdigit, present)):
        return "hex"
    digits = [_WITH_ZEROS.sub(r"\1", cell) for cell in present]
    is_whole = all(map(_WHOLE.fullmatch, digits))
    has_zeros = any(re.match(r"-?0\d", cell) for cell in digits)
    fits = is_whole and not has_zeros and all(-(2**63) <= int(cell) < 2**63 for cell in digits)
    return "int" if fits else "string"


def _any_kind(texts: Texts, separators: Collection[str]) -> tuple[str, list[str]]:
    """Returns the role and rules that fit all values of a column, and remarks."""
    kind, remarks = time_kind(texts.name, texts.rows), list[str]()
    if not kind:
        kind, remarks = _kind(texts)
    if kind not in _UNTOLD or _are_numbers(texts.rows) or _remedy(texts.rows, separators):
        return kind, remarks
    return _list_kind(texts.rows, separators) or kind, remarks


def _kind_of_most(texts: Texts, separators: Collection[str]) -> tuple[str, list[str]]:
    """Returns the kind of nearly all values, and remarks about the others; else nothing."""
    present = texts.rows

    def are_elements(separator: str, fits: Callable[[str], object], cell: str) -> bool:
        return all(fits(element.strip()) for element in cell.split(separator))

    rule = time_rule(texts.name, [next(iter(present))]) if present else None
    tests: list[Callable[[str], object]] = [NUMBER.fullmatch]
    tests += [lambda cell: rule.milliseconds(cell.encode())] if rule is not None else []
    for separator in separators:
        for fits in (WEIGHTED.fullmatch, bool):
            tests.append(functools.partial(are_elements, separator, fits))
    total = sum(present.values())
    for test in tests:
        most = {cell: n for cell, n in present.items() if test(cell)}
        odd = total - sum(most.values())
        if not 0 < odd <= _ODD * total:
            continue
        kind, remarks = _any_kind(texts._replace(rows=most, is_everywhere=False), separators)
        if kind not in _UNTOLD:
            example = next(cell for cell in present if cell not in most)
            return kind, [*remarks, f"{odd} rows to leave out, such as {example[:30]!r}"]
    return "", []


def _list_kind(present: Collection[str], separators: Collection[str]) -> str:
    """Returns role, type and separators of a list column; empty for other columns."""
    separator = list_separator(present, separators)
    return kind_of_lists(present, separator) if separator else ""


def kind_of_lists(present: Collection[str], separator: str) -> str:
    """Returns role, type and separators of a list column."""
    elements = {element.strip() for cell in present for element in cell.split(separator)} - {""}
    weights = ""
    if elements and all(map(WEIGHTED.fullmatch, elements)):
        weights = ', weight_separator: ":"'
        elements = {element.rpartition(":")[0].strip() for element in elements}
    kind = _category_type(elements)
    return f"categorical_list, type: {kind}, separator: {quoted(separator)}{weights}"


def quoted(text: str) -> str:
    """Returns a text as YAML, quoted if necessary."""
    import yaml

    return (
        text  # unless YAML reads it as something else, such as null or yes
        if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", text) and yaml.safe_load(text) == text
        else '"' + shown(text.replace("\\", "\\\\").replace('"', '\\"')) + '"'
    )


def shown(text: str) -> str:
    """Returns a text with unprintable characters escaped, as in YAML."""
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode() for each in text
    )
