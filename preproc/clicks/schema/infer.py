# SPDX-License-Identifier: Apache-2.0
"""Drafts a schema from a sample, each column with its evidence.

Nothing is guessed about the label: without a column of its usual names or a single one of zeros and
ones the draft asks for it. It is for a person to read.
"""

import functools
import itertools
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Collection
from pathlib import Path

import numpy as np

from preproc.clicks.schema.grammar import DECIMAL, LOOKS_WEIGHTED
from preproc.clicks.schema.row_format import MAX_FEATURES, split_fields
from preproc.clicks.schema.time_rule import TIME_FEATURES, TimeRule, show_time
from preproc.files.errors import PreprocError
from preproc.files.input_file import InputFile
from preproc.files.raw.parts import parts_of

SAMPLE_BYTES = 4 * 2**20
"""Text of the sample: half from the head of a file, the rest from middle and tail."""
_SAMPLED_PARTS = 16
"""Parts of a folder that share it, besides the largest."""
_MOST_TEXT = 2**28
"""Text of a compressed file that is read for it."""

_QUOTE = '"'
_HIVE = "\x01"
"""Delimiter of Hive's text files, which have no header and no quotes, and \\N for nothing."""
_DELIMITERS = (",", "\t", ";", "|", _HIVE)
_LABELS = ("label", "click", "clicked", "is_click", "target", "conversion", "y")
_MISSING = ("-1", "null", "NULL", "None", "nan", "NaN", "NA", "n/a", "\\N")
_WHOLE = re.compile(r"-?\d+")
_FLOAT = re.compile(DECIMAL.pattern.decode())
_WEIGHTED = re.compile(LOOKS_WEIGHTED.pattern.decode())
_HASHED = re.compile(r"[0-9a-f]{8}")
_COMMONEST = 30
_HEAVY_TAILED = 3
"""Deviations within which two thirds of the values lie, from which on far values decide it."""
_TIME_NAME = re.compile(r"(?i)time|date|day|hour|stamp|(^|_)ts($|_)")
_TIMES_OF_DIGITS = {
    8: ("%Y%m%d", "%y%m%d%H"),
    10: ("unix_s", "%Y%m%d%H"),
    13: ("unix_ms",),
    14: ("%Y%m%d%H%M%S",),
    16: ("unix_us",),
    19: ("unix_ns",),
}
_CLOCKS = (" %I:%M:%S %p", " %H:%M:%S", " %H:%M", "")
_SPELLED_TIMES = tuple(d + c for d in ("%m/%d/%Y", "%d/%m/%Y", "%d.%m.%Y") for c in _CLOCKS)
_UNREAD = {
    re.compile(r"-?[0-9.]+,[0-9]+"): "decimal commas: write the numbers with a point",
    re.compile(r"\[.*\]"): "lists in brackets: write their elements with a bar between",
}
"""Texts that no role reads as what they are, and the remedy."""
_PAIRS = ({"0", "1"}, {"true", "false"}, {"yes", "no"}, {"y", "n"}, {"t", "f"}, {"-1", "1"})
"""What the values of a label may be, in small letters."""
_BINARY = (("0", "1"), ("false", "true"), ("False", "True"), ("FALSE", "TRUE"))
_SEPARATORS = ("\x02", "|", ";", ",")  # the first is Hive's
_SEVERAL = 0.3
"""Fraction of a column's values that have several elements, if it holds lists."""
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
    sampled, (head, *others) = _samples(path)
    if not head:
        raise PreprocError(f"{path}: holds no line")
    if head[0].startswith(("{", "[")):
        raise PreprocError(
            f"{path}: JSON is not read here; write it as csv or parquet, such as "
            "pandas.read_json(FILE, lines=True).to_parquet(FILE)"
        )
    delimiter = _delimiter(head)
    if delimiter is None:
        raise PreprocError(
            f"{path}: no comma, tab, semicolon or bar stands equally often in its first lines; "
            "write the schema yourself (docs/own_clicks.md)"
        )
    first = _fields(head[0], delimiter)
    lines = [line for lines in (head, *others) for line in lines]
    rows = [row for row in (_fields(line, delimiter) for line in lines) if len(row) == len(first)]
    has_header = _is_header(first, rows[1:])
    twice = sorted({name for name in first if first.count(name) > 1})
    if has_header and twice:
        raise PreprocError(f"{path}: the header names {', '.join(twice)} more than once")
    if delimiter == _HIVE:
        rows = [["" if cell == "\\N" else cell for cell in row] for row in rows]
    names = first if has_header else [f"c{number}" for number in range(len(first))]
    columns = [Counter(cells) for cells in zip(*rows[has_header:], strict=True)]
    if not columns:
        raise PreprocError(f"{path}: has a header and no row")
    label, label_line = _label(names, columns)
    by_time = _time_split(names, columns)
    # Lists have another separator than the file.
    separators = [each for each in _SEPARATORS if each != delimiter]
    entries = [_entry(name, cells, separators) for name, cells in zip(names, columns, strict=True)]
    listed = [
        f"- {{name: {_quoted(name)}, role: label}}" if i == label else entry
        for i, (name, entry) in enumerate(zip(names, entries, strict=True))
        if i != label or not has_header
    ]
    limit = f"# At most {MAX_FEATURES} of each role: let others be ignored.\n"
    many = "" if len(names) <= MAX_FEATURES else limit
    # In a log of numbers alone a quote is an error in any case.
    has_quotes = any(_QUOTE in line for line in lines) or any("string" in e for e in entries)
    quote = f"'{_QUOTE}'" if has_quotes else "none"
    header = "true" if has_header else "false"
    quote, missing = (quote, "") if delimiter != _HIVE else ("none", 'missing: ["\\\\N"]\n')
    return (
        f"# A draft from {len(rows) - has_header:,} rows of {sampled}: read each line.\n{many}"
        f"dialect: {{delimiter: {_quoted(delimiter)}, header: {header}, quote: {quote}}}\n{missing}"
        f"label: {label_line}\n"
        "defaults: {frequency_limit: 2}\n"
        "columns:\n" + "\n".join(listed) + "\n"
        f"split: {{fractions: [0.8, 0.1, 0.1]}}  # in the order of the rows{by_time}\n"
    )


def _time_split(names: list[str], columns: list[Counter[str]]) -> str:
    """Returns a split by the first column of times, as an alternative."""
    for name, cells in zip(names, columns, strict=True):
        present = [cell for cell in cells if cell and cell not in _MISSING]
        rule = _time_rule(name, present)
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


def _samples(path: Path) -> tuple[str, list[list[str]]]:
    """Returns the name of what is sampled, and lines: of a folder from parts all over it."""
    if not path.is_dir():
        return path.name, _sample(InputFile.open(path), SAMPLE_BYTES)
    files = [InputFile.open(part) for part in parts_of(path)]
    steps = max(1, min(_SAMPLED_PARTS, len(files)) - 1)
    spread = [files[i * (len(files) - 1) // steps] for i in range(steps + 1)]
    # The largest has rows if one has, and its first line is the header if there are some.
    largest = max(files, key=lambda file: file.text_bytes)
    chosen = list(dict.fromkeys((largest, *spread)))
    samples, *others = [_sample(file, SAMPLE_BYTES // len(chosen)) for file in chosen]
    for first, *rest in others:
        samples += [first[1:], *rest]
    return f"{len(chosen)} of {len(files)} files of {path.name}", samples


def _sample(file: InputFile, num_bytes: int) -> list[list[str]]:
    """Returns lines from head, middle and tail, about `num_bytes` of text."""
    texts, whole_size, last, middle_at = [b""], 0, b"", 0
    for block in file.blocks():
        whole_size += len(block)
        if len(texts[0]) < num_bytes // 2:
            texts[0] += block
        elif file.compression == "none" or whole_size > _MOST_TEXT:
            break
        else:
            last = (last + block)[-num_bytes // 4 :]
            # The middle is taken anew at each doubling.
            if whole_size >= 2 * middle_at:
                texts[1:], middle_at = [last], whole_size
    if last:
        texts.append(last)
    if file.compression == "none":
        with file.path.open("rb") as opened:
            for start in (file.size // 2, file.size - num_bytes // 4):
                if start > len(texts[0]):
                    texts.append(os.pread(opened.fileno(), num_bytes // 4, start))
    samples = []
    for number, text in enumerate(texts):
        lines = text.decode("utf-8-sig", "replace").split("\n")
        is_whole = number == 0 and len(text) == whole_size
        # A line may be cut at either end of a sample.
        lines = lines[number > 0 : None if is_whole or len(lines) == 1 else -1]
        samples.append([line.removesuffix("\r") for line in lines if line])
    return samples


def _fields(line: str, delimiter: str) -> list[str]:
    """Returns the fields of a line; none if its quotes are wrong."""
    quote = "" if delimiter == _HIVE else _QUOTE
    split = split_fields(line.encode(), delimiter.encode(), quote.encode())
    return [field.decode() for field in split or ()]


def _delimiter(lines: list[str]) -> str | None:
    """Returns the delimiter that most lines have equally often."""
    usual = []
    for delimiter in _DELIMITERS:
        counts = Counter(len(_fields(line, delimiter)) for line in lines[:100])
        count, alike = counts.most_common(1)[0]
        if count > 1 and alike > 0.9 * len(lines[:100]):
            usual.append((count, alike, delimiter))
    return max(usual)[2] if usual else None


def _is_header(first: list[str], rows: list[list[str]]) -> bool:
    """Returns True if the first row has names, not values."""
    columns = [[cell for cell in cells if cell] for cells in zip(*rows[:100], strict=True)]
    is_name_of_numbers = (
        name and not _FLOAT.fullmatch(name) and cells and all(map(_FLOAT.fullmatch, cells))
        for name, cells in zip(first, columns, strict=False)
    )
    if any(is_name_of_numbers):
        return True
    if "" in first or any(_FLOAT.fullmatch(name) for name in first):
        return False
    has_numbers = any(_FLOAT.fullmatch(cell) for row in rows[:100] for cell in row)
    are_names = len(rows) >= 10 and not any(set(first) & set(row) for row in rows)
    return has_numbers or are_names or not rows


def _label(names: list[str], columns: list[Counter[str]]) -> tuple[int | None, str]:
    """Returns the label's column, if it can be told, and its line."""
    binary = {
        i: (no, yes)
        for i, cells in enumerate(columns)
        for no, yes in _BINARY
        if set(cells) <= {no, yes}
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
            values = (f"{text} {_percentage(n, cells)}" for text, n in cells.most_common())
            of_few.append(f"{name} ({', '.join(values)})")
    line = '{column: "", positive: ["1"], negative: ["0"]}  # Which one? '
    return None, line + ("; ".join(of_few) or "No column has few values.")


def _entry(name: str, cells: Counter[str], separators: Collection[str]) -> str:
    """Returns the line of a column."""
    total = sum(cells.values())
    marks = [mark for mark in _MISSING if cells[mark] >= 0.05 * total]
    present = {cell: n for cell, n in cells.items() if cell and cell not in marks}
    evidence = [f"{len(present):,} distinct", f"{_percentage(cells[''], cells)} empty"]
    evidence += [f"{mark} in {_percentage(cells[mark], cells)}" for mark in marks]
    negative = sum(n for cell, n in present.items() if cell.startswith("-"))
    kind = _any_kind(name, present, separators, is_everywhere=not marks and not cells[""])
    remedy = next((told for form, told in _UNREAD.items() if all(map(form.fullmatch, present))), "")
    if present and remedy and kind.startswith("categorical"):
        kind = "ignored"
        evidence.append(remedy)
    elif "%m/%d" in kind and _fits_days_first(kind, present):
        evidence.append("or %d/%m/%Y: no number is above 12")
    elif kind in _UNTOLD:
        of_most, odd = _kind_of_most(name, present, separators)
        kind = of_most or kind
        evidence += [odd] if odd else []
    if kind.startswith("numerical") and negative:
        evidence.append(f"{_percentage(negative, cells)} negative")
        kind = f"numerical, type: float, transform: {_standardised(present)}"
    missing = f", missing: [{', '.join(map(_quoted, marks))}]" if marks else ""
    if kind == "ignored":
        return f"- {{name: {_quoted(name)}, role: ignored}}  # {', '.join(evidence)}"
    return f"- {{name: {_quoted(name)}, role: {kind}{missing}}}  # {', '.join(evidence)}"


def _time_rule(name: str, present: Collection[str]) -> TimeRule | None:
    """Returns the rule of a column of times, else None.

    Numbers are times where the column's name says so.
    """
    formats = ["iso8601", *_SPELLED_TIMES]
    if _TIME_NAME.search(name) and present:
        formats += [*_TIMES_OF_DIGITS.get(len(next(iter(present)).partition(".")[0]), ())]
    rules = (TimeRule(each, 0) for each in formats)
    return next((rule for rule in rules if present and _reads_all(rule, present)), None)


def _reads_all(rule: TimeRule, present: Collection[str]) -> bool:
    return all(rule.milliseconds(cell.encode()) is not None for cell in present)


def _time_kind(name: str, present: Collection[str]) -> str:
    """Returns role, format and features of a column of times; else nothing."""
    rule = _time_rule(name, present)
    if rule is None or len(present) == 1:
        return ""
    times = [rule.milliseconds(cell.encode()) or 0 for cell in present]
    by_feature = ((f, rule._replace(features=(f,))) for f in TIME_FEATURES if f != "weekend")
    of_several = (f for f, own in by_feature if len({own.categories(time) for time in times}) > 1)
    return f"timestamp, format: {_quoted(rule.format)}, features: [{', '.join(of_several)}]"


def _standardised(present: dict[str, int]) -> str:
    """Returns the transform of numbers of both signs."""
    pairs = sorted((float(cell), n) for cell, n in present.items() if _FLOAT.fullmatch(cell))
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


def _fits_days_first(kind: str, present: Collection[str]) -> bool:
    """Returns True if months and days may be days and months."""
    form = re.findall(r'"(.*?)"', kind)[0].replace("%m/%d", "%d/%m")
    return _reads_all(TimeRule(form, 0), present)


def _is_id(present: dict[str, int]) -> bool:
    """Returns True if nearly all values differ."""
    return sum(present.values()) >= 100 and len(present) > 0.99 * sum(present.values())


def _kind(present: dict[str, int], *, is_everywhere: bool) -> str:
    is_whole = all(_WHOLE.fullmatch(cell) for cell in present)
    if present and not is_whole and all(_FLOAT.fullmatch(cell) for cell in present):
        return "numerical, type: float"
    if not present or _is_id(present):
        return "ignored"
    if len(present) == 1 and is_everywhere:
        return "ignored"
    if all(_HASHED.fullmatch(cell) for cell in present) and any(
        not cell.isdigit() for cell in present
    ):
        return "categorical, type: hex"
    if is_whole and all(-(2**63) <= int(cell) < 2**63 for cell in present):
        has_zeros = any(re.match(r"-?0\d", cell) for cell in present)
        is_short = all(abs(int(cell)) < 2**31 for cell in present)
        if is_short and not has_zeros and _falls(present):
            return "numerical, type: int"
        return f"categorical, type: {'string' if has_zeros else 'int'}"
    return "categorical, type: string"


def _any_kind(
    name: str, present: dict[str, int], separators: Collection[str], *, is_everywhere: bool
) -> str:
    """Returns role and rules of a column that all values fit."""
    kind = _time_kind(name, present) or _kind(present, is_everywhere=is_everywhere)
    return (_list_kind(present, separators) or kind) if kind in _UNTOLD else kind


def _kind_of_most(
    name: str, present: dict[str, int], separators: Collection[str]
) -> tuple[str, str]:
    """Returns the kind of nearly all values, and the others; else nothing."""

    def are_elements(separator: str, fits: Callable[[str], object], cell: str) -> bool:
        return all(fits(element) for element in cell.split(separator))

    rule = _time_rule(name, [next(iter(present))]) if present else None
    tests: list[Callable[[str], object]] = [_FLOAT.fullmatch]
    tests += [lambda cell: rule.milliseconds(cell.encode())] if rule is not None else []
    for separator in separators:
        for fits in (_WEIGHTED.fullmatch, lambda element: element and element == element.strip()):
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
    for separator in separators:
        lists = [cell.split(separator) for cell in present]
        elements = Counter(itertools.chain.from_iterable(lists))
        several = sum(len(each) > 1 for each in lists)
        # Texts have blanks about their commas.
        are_trimmed = all(element and element == element.strip() for element in elements)
        if not several or several < _SEVERAL * len(lists) or not are_trimmed:
            continue
        weights = ""
        if all(_WEIGHTED.fullmatch(element) for element in elements):
            weights = ', weight_separator: ":"'
            elements = Counter(element.rpartition(":")[0] for element in elements.elements())
        if 2 * len(elements) > elements.total():  # elements of lists come again
            continue
        kind = _kind(elements, is_everywhere=False).rpartition(" ")[2]
        kind = kind if kind in ("int", "hex") else "string"
        return f"categorical_list, type: {kind}, separator: {_quoted(separator)}{weights}"
    return ""


def _falls(present: dict[str, int]) -> bool:
    """Returns True if larger integers are rarer, as those of counts are."""
    if len(present) <= 10:
        return False
    from scipy.stats import spearmanr

    commonest = Counter(present).most_common(_COMMONEST)
    values = np.array([int(value) for value, _ in commonest])
    return bool(spearmanr(values, [count for _, count in commonest]).statistic < -0.6)


def _percentage(count: int, cells: Counter[str]) -> str:
    return f"{count / max(sum(cells.values()), 1):.0%}"


def _quoted(text: str) -> str:
    import yaml

    return (
        text  # unless YAML takes it for something else, as null or yes
        if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", text) and yaml.safe_load(text) == text
        else json.dumps(text, ensure_ascii=False)
    )
