# SPDX-License-Identifier: Apache-2.0
"""Drafts a schema from a sample, each column with its evidence.

Nothing is guessed about the label: without a column of its usual names or a single one of zeros and
ones the draft asks for it. It is for a person to read.
"""

import functools
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from preproc.clicks.schema.number_scale import bins_of, is_count, is_scale
from preproc.clicks.schema.row_format import MAX_FEATURES
from preproc.clicks.schema.table_sample import sample_table
from preproc.clicks.schema.text_sample import HIVE, NUMBER, QUOTE, Dialect, sample_text
from preproc.clicks.schema.time_rule import show_time
from preproc.clicks.schema.time_sample import fits_days_first, time_kind, time_rule, zone_remark
from preproc.files.input_file import InputFile
from preproc.files.raw.lists_in_text import SEPARATORS, WEIGHTED, list_separator
from preproc.files.raw.parts import parts_of
from preproc.files.raw.spelled_numbers import spelling_remedy

_HIVE_LISTS = "\x02"
_LABELS = ("label", "click", "clicked", "is_click", "target", "conversion", "y")
_MISSING = ("-1", "null", "NULL", "None", "nan", "NaN", "NA", "n/a", "\\N")
_WHOLE = re.compile(r"-?\d+")
_ID_NAME = re.compile(
    "(?i)(^|[^a-z])(ids?|codes?|key|zip|plz|no|nr|user|customer|item|product|article|movie|country"
    "|city|region|store|shop|campaign|category)$"
)
"""Names of columns whose integers name something."""
_HASHED = re.compile(r"[0-9a-f]{8}")
_HEAVY_TAILED = 3
"""Deviations within which two thirds of the values lie, from which on far values decide it."""
_BRACKETS = re.compile(r"\[.*\]")
_ODD_MARKS = {
    *("?", "-", "--", ".", "\\n", "inf", "+inf", "-inf", "infinity", "-infinity", "nan", "null"),
    *("none", "nil", "na", "n/a", "#n/a", "#value!", "#div/0!", "unknown", "undefined", "missing"),
    *("unbekannt", "k.a."),
}
"""Texts that stand for a missing number or time, in small letters."""
_MOST, _NEARLY_ALL = 0.5, 0.9
"""Fractions of a column that are numbers or times, beside marks of these and beside other words."""
_MOST_MARKS = 5
_PAIRS = ({"0", "1"}, {"true", "false"}, {"yes", "no"}, {"y", "n"}, {"t", "f"}, {"-1", "1"})
"""What the values of a label may be, in small letters."""
_BINARY = (("0", "1"), ("0.0", "1.0"), ("false", "true"), ("False", "True"), ("FALSE", "TRUE"))
_ODD = 0.01
"""Most rows, as a fraction, whose values do not fit those of the others."""
_UNTOLD = ("categorical, type: string", "ignored")
"""Roles of columns whose values tell no other."""
_MOST_LABELS = 6
"""Values of a column that is proposed for the label."""


def infer_schema(path: Path) -> str:
    """Returns a schema of a log, a file or a folder of parts, as YAML.

    Raises:
        PreprocError: it cannot be read, or has no rows of several fields.
    """
    files = [InputFile.open(file) for file in (parts_of(path) if path.is_dir() else [path])]
    largest = max(files, key=lambda file: file.text_bytes)
    if largest.is_table:
        what = f"{largest.path.name} of {path.name}" if len(files) > 1 else path.name
        return _draft_of_table(largest, what)
    sample = sample_text(path, [file for file in files if not file.is_table])
    return _draft(sample.name, sample.columns, sample.rows, sample.dialect)


def _draft_of_table(file: InputFile, what: str) -> str:
    sample = sample_table(file, SEPARATORS)
    kinds = {
        name: _kind_of_lists(sample.columns[name], separator)
        for name, separator in sample.separators.items()
    }
    kinds |= dict.fromkeys(sample.unread, "ignored")
    for name in sample.floats:
        if all(map(NUMBER.fullmatch, sample.columns[name])):
            kinds[name] = "numerical, type: float"
    dialect = Dialect(delimiter=",", has_header=True, has_quotes=True)
    return _draft(what, sample.columns, sample.rows, dialect, Known(kinds, sample.unread))


class Known(NamedTuple):
    """What the types of a table tell: roles and types of columns, and remarks."""

    kinds: Mapping[str, str] = {}
    remarks: Mapping[str, str] = {}


def _draft(
    sampled: str,
    by_name: Mapping[str, Counter[str]],
    num_rows: int,
    dialect: Dialect,
    known: Known = Known(),  # noqa: B008
) -> str:
    """Returns the schema of columns with these texts."""
    delimiter, has_header, has_quotes = dialect
    names, columns = [*by_name], [*by_name.values()]
    label, label_line = _label(names, columns)
    by_time = _time_split(names, columns)
    # Lists have another separator than the file.
    separators = [each for each in SEPARATORS if each != delimiter]
    if delimiter == HIVE:
        separators = [_HIVE_LISTS, *separators]
    entries = [_entry(name, cells, separators, known) for name, cells in by_name.items()]
    listed = [
        f"- {{name: {_quoted(name)}, role: label}}" if i == label else entry
        for i, (name, entry) in enumerate(zip(names, entries, strict=True))
        if i != label or not has_header
    ]
    limit = f"# At most {MAX_FEATURES} of each role: let others be ignored.\n"
    many = "" if len(names) <= MAX_FEATURES else limit
    has_quotes = has_quotes or any("string" in entry for entry in entries)
    quote = f"'{QUOTE}'" if has_quotes else "none"
    header = "true" if has_header else "false"
    quote, missing = (quote, "") if delimiter != HIVE else ("none", 'missing: ["\\\\N"]\n')
    return (
        f"# A draft from {num_rows:,} rows of {sampled}: read each line.\n{many}"
        f"dialect: {{delimiter: {_quoted(delimiter)}, header: {header}, quote: {quote}}}\n{missing}"
        f"label: {label_line}\n"
        "defaults: {frequency_limit: 2}\n"
        "columns:\n" + "\n".join(listed) + "\n"
        f"split: {{fractions: [0.8, 0.1, 0.1]}}  # in the order of the rows{by_time}\n"
    )


def _time_split(names: list[str], columns: list[Counter[str]]) -> str:
    """Returns a split by the first column of times, as an alternative."""
    for name, cells in zip(names, columns, strict=True):
        present = [c for c in cells if c and c not in _MISSING and c.lower() not in _ODD_MARKS]
        rule = time_rule(name, present)
        if rule is not None:
            times = sorted(rule.milliseconds(cell.encode()) or 0 for cell in present)
            cuts = [show_time(times[int(len(times) * fraction)]) for fraction in (0.8, 0.9)]
            if cuts[0] == cuts[1]:
                continue
            return (
                '; or, by times of the sample, {{time: {{validation: "{}", test: "{}"}}}}'.format(
                    *cuts
                )
            )
    return ""


def _label(names: list[str], columns: list[Counter[str]]) -> tuple[int | None, str]:
    """Returns the label's column, if it can be told, and its line."""
    binary = {
        i: (no, yes)
        for i, cells in enumerate(columns)
        for no, yes in _BINARY
        if cells and set(cells) <= {no, yes}
    }
    pairs = [i for i, cells in enumerate(columns) if {c.lower() for c in cells} in _PAIRS]
    candidates = sorted({*binary, *pairs})
    chosen = [i for i in candidates if names[i].lower() in _LABELS] or candidates
    if len(chosen) == 1 and chosen[0] in binary:
        (index,) = chosen
        no, yes = binary[index]
        texts = "" if yes == "1" else f', positive: ["{yes}"], negative: ["{no}"]'
        clicks = _percentage(columns[index][yes], columns[index])
        return index, f"{{column: {_quoted(names[index])}{texts}}}  # {clicks} are {yes}"
    of_few = []
    for name, cells in zip(names, columns, strict=True):
        if 2 <= len(cells) <= _MOST_LABELS:
            values = (f"{_shown(text)} {_percentage(n, cells)}" for text, n in cells.most_common())
            of_few.append(f"{_shown(name)} ({', '.join(values)})")
    line = '{column: "", positive: ["1"], negative: ["0"]}  # Which one? '
    return None, line + ("; ".join(of_few) or "No column has few values.")


def _entry(name: str, cells: Counter[str], separators: Collection[str], known: Known) -> str:
    """Returns the line of a column."""
    if name in known.remarks:
        kind, remark = known.kinds[name], known.remarks[name]
        return f"- {{name: {_quoted(name)}, role: {kind}}}  # {remark}"
    total = sum(cells.values())
    marks = [mark for mark in _MISSING if cells[mark] >= 0.05 * total]
    present = {cell: n for cell, n in cells.items() if cell and cell not in marks}
    odd = _odd_texts(name, present)
    marks += odd
    present = {cell: n for cell, n in present.items() if cell not in odd}
    evidence = [f"{len(present):,} distinct", f"{_percentage(cells[''], cells)} empty"]
    evidence += [f"{mark} in {_percentage(cells[mark], cells)}" for mark in marks]
    negative = sum(n for cell, n in present.items() if cell.startswith("-"))
    kind = known.kinds.get(name, "") or _any_kind(
        name, present, separators, is_everywhere=not marks and not cells[""]
    )
    remedy = _remedy(present, separators)
    if remedy and not kind.startswith(("numerical", "timestamp", "categorical_list")):
        kind = kind if "delimiter" in remedy else "ignored"
        evidence.append(remedy)
    elif "%m/%d" in kind and fits_days_first(kind, present):
        evidence.append("or %d/%m/%Y: no number is above 12")
    elif kind in _UNTOLD:
        of_most, of_others = _kind_of_most(name, present, separators)
        kind = of_most or kind
        evidence += [of_others] if of_others else []
    if kind.startswith("timestamp"):
        evidence.append(zone_remark(kind, present))
    of_bins = kind[kind.index(", bins") :] if ", bins" in kind else ""
    if of_bins:
        evidence.append("near values are about equally frequent; or categorical, type: int")
    if kind.startswith("numerical") and negative:
        evidence.append(f"{_percentage(negative, cells)} negative")
        kind = f"numerical, type: float, transform: {_standardised(present)}{of_bins}"
    missing = f", missing: [{', '.join(map(_quoted, marks))}]" if marks else ""
    if kind == "ignored":
        return f"- {{name: {_quoted(name)}, role: ignored}}  # {', '.join(evidence)}"
    return f"- {{name: {_quoted(name)}, role: {kind}{missing}}}  # {', '.join(evidence)}"


def _odd_texts(name: str, present: dict[str, int]) -> list[str]:
    """Returns the texts of a column that is numbers, or times, but for them: missing, as it seems.

    Known marks may be many. A few rows of other words are rather faults.
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


def _remedy(present: Collection[str], separators: Collection[str]) -> str:
    """Returns what to do about texts that no role reads as what they are; empty without any."""
    if not present:
        return ""
    if all(map(_BRACKETS.fullmatch, present)):
        return "lists in brackets: write their elements with a bar between"
    taken = [each for each in SEPARATORS if each not in separators]
    if separator := list_separator(present, taken):
        return (
            f"lists with {separator!r} between, which is the delimiter of the file: if their "
            "elements are to count, write a bar between them"
        )
    return spelling_remedy(present)


def _standardised(present: dict[str, int]) -> str:
    """Returns the transform of numbers of both signs."""
    pairs = sorted((float(cell), n) for cell, n in present.items() if NUMBER.fullmatch(cell))
    numbers, counts = np.array(pairs).T
    mean = np.average(numbers, weights=counts)
    deviation = np.sqrt(np.average((numbers - mean) ** 2, weights=counts))
    at = np.searchsorted(counts.cumsum(), np.array([0.16, 0.5, 0.84]) * counts.sum())
    low, median, high = numbers[at]
    spread = (high - low) / 2  # of a normal distribution the deviation
    kind = "standardise"
    if deviation > _HEAVY_TAILED * spread > 0:
        kind, mean, deviation = "signed_log", median, spread
    return f"{kind}, mean: {mean:.6g}, deviation: {deviation or 1:.6g}"


def _is_id(present: dict[str, int]) -> bool:
    """Returns True if nearly all values differ."""
    return sum(present.values()) >= 100 and len(present) > 0.99 * sum(present.values())


def _kind(name: str, present: dict[str, int], *, is_everywhere: bool) -> str:
    is_whole = all(_WHOLE.fullmatch(cell) for cell in present)
    if present and not is_whole and all(NUMBER.fullmatch(cell) for cell in present):
        return "numerical, type: float"
    if not present or _is_id(present):
        return "ignored"
    if len(present) == 1 and is_everywhere:
        return "ignored"
    category = _category_type(present)
    if category == "int" and not _ID_NAME.search(name):
        is_short = all(abs(int(cell)) < 2**31 for cell in present)
        if is_short and is_count(present):
            return "numerical, type: int"
        if is_short and is_scale(present):
            return f"numerical, type: int, bins: {bins_of(present)}"
    return f"categorical, type: {category}"


def _category_type(present: Collection[str]) -> str:
    """Returns the type of categories."""
    if all(map(_HASHED.fullmatch, present)) and not all(map(str.isdigit, present)):
        return "hex"
    is_whole = all(map(_WHOLE.fullmatch, present))
    has_zeros = any(re.match(r"-?0\d", cell) for cell in present)
    fits = is_whole and not has_zeros and all(-(2**63) <= int(cell) < 2**63 for cell in present)
    return "int" if fits else "string"


def _any_kind(
    name: str, present: dict[str, int], separators: Collection[str], *, is_everywhere: bool
) -> str:
    """Returns role and rules of a column that all values fit."""
    kind = time_kind(name, present) or _kind(name, present, is_everywhere=is_everywhere)
    if kind not in _UNTOLD or _remedy(present, separators):
        return kind
    return _list_kind(present, separators) or kind


def _kind_of_most(
    name: str, present: dict[str, int], separators: Collection[str]
) -> tuple[str, str]:
    """Returns the kind of nearly all values, and the others; else nothing."""

    def are_elements(separator: str, fits: Callable[[str], object], cell: str) -> bool:
        return all(fits(element.strip()) for element in cell.split(separator))

    rule = time_rule(name, [next(iter(present))]) if present else None
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
        kind = _any_kind(name, most, separators, is_everywhere=False)
        if kind not in _UNTOLD:
            example = next(cell for cell in present if cell not in most)
            return kind, f"{odd} rows to leave out, as {example[:30]!r}"
    return "", ""


def _list_kind(present: Collection[str], separators: Collection[str]) -> str:
    """Returns role, type and separators of a column of lists; else nothing."""
    separator = list_separator(present, separators)
    return _kind_of_lists(present, separator) if separator else ""


def _kind_of_lists(present: Collection[str], separator: str) -> str:
    """Returns role, type and separators of a column of lists."""
    elements = {element.strip() for cell in present for element in cell.split(separator)} - {""}
    weights = ""
    if elements and all(map(WEIGHTED.fullmatch, elements)):
        weights = ', weight_separator: ":"'
        elements = {element.rpartition(":")[0].strip() for element in elements}
    kind = _category_type(elements)
    return f"categorical_list, type: {kind}, separator: {_quoted(separator)}{weights}"


def _percentage(count: int, cells: Counter[str]) -> str:
    return f"{count / max(sum(cells.values()), 1):.0%}"


def _quoted(text: str) -> str:
    import yaml

    return (
        text  # unless YAML takes it for something else, as null or yes
        if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", text) and yaml.safe_load(text) == text
        else '"' + _shown(text.replace("\\", "\\\\").replace('"', '\\"')) + '"'
    )


def _shown(text: str) -> str:
    """Returns a text with escapes, as YAML has them too, for what does not print."""
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode() for each in text
    )
