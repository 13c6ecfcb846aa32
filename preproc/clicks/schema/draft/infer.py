# SPDX-License-Identifier: Apache-2.0
"""Drafts a schema from a sample, with evidence for each column.

A person should read the draft, but it works unchanged unless the label is unclear; then the draft
asks for it.
"""

import dataclasses
import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from preproc.clicks.schema.draft.column_kind import (
    Texts,
    column_kind,
    derived_names,
    differ,
    kind_of_lists,
    plain_kind,
    quoted,
    shown,
)
from preproc.clicks.schema.draft.label_sample import Label, find_label, leak_evidence
from preproc.clicks.schema.draft.missing_marks import missing_marks
from preproc.clicks.schema.draft.table_sample import TableSample, sample_objects, sample_table
from preproc.clicks.schema.draft.text_sample import (
    NUMBER,
    QUOTE,
    Dialect,
    sample_lines,
    sample_text,
)
from preproc.clicks.schema.draft.time_sample import time_rule
from preproc.clicks.schema.row_format import MAX_FEATURES
from preproc.clicks.schema.time_rule import show_time
from preproc.files.input_file import InputFile
from preproc.files.raw.lists_in_text import SEPARATORS
from preproc.files.raw.objects import is_object
from preproc.files.raw.parts import parts_of
from preproc.files.raw.text_files import HIVE

_HIVE_LISTS = "\x02"
_MOST_LABELS = 6
"""The most values of a column that is proposed as the label."""
_SHARED, _ALIKE, _LEAST_SHARED = 0.9, 0.5, 20
"""Share of list elements that are ids of a column, share of ids in common, and least of those."""


def infer_schema(path: Path) -> str:
    """Returns a draft of the schema of a log (a file or a folder of parts) as YAML.

    Raises:
        PreprocError: the log cannot be read, or has no rows of several fields.
    """
    files = [InputFile.open(file) for file in (parts_of(path) if path.is_dir() else [path])]
    largest = max(files, key=lambda file: file.text_bytes)
    if largest.is_table:
        what = f"{largest.path.name} of {path.name}" if len(files) > 1 else path.name
        return _draft_of_cells(sample_table(largest, SEPARATORS), what)
    sampled, samples = sample_lines(path, [file for file in files if not file.is_table])
    lines = [line.encode() for lines in samples for line in lines]
    if is_object(lines[0]):
        return _draft_of_cells(sample_objects(path, lines, SEPARATORS), sampled)
    sample = sample_text(path, sampled, samples)
    return _draft(sample.name, sample.columns, sample.rows, sample.dialect)


def _draft_of_cells(sample: TableSample, what: str) -> str:
    kinds = {
        name: kind_of_lists({*sample.columns[name]}, separator)
        for name, separator in sample.separators.items()
    }
    for name in sample.floats:
        if all(map(NUMBER.fullmatch, {*sample.columns[name]})):
            kinds[name] = "numerical, type: float"
    dialect = Dialect(delimiter=",", has_header=True, has_quotes=True)
    return _draft(what, sample.columns, sample.rows, dialect, Known(kinds, sample.unread))


class Known(NamedTuple):
    """What a table's types determine: kinds of columns, and why some columns are not read."""

    kinds: Mapping[str, str] = {}
    unread: Mapping[str, str] = {}


@dataclasses.dataclass(slots=True)
class _Entry:
    """A column of the draft.

    Attributes:
        texts: texts that are not missing.
        missing: texts that mark a missing value.
        kind: role and rules, in schema form.
        evidence: reasons for the kind, for a person to read.
        leak: why the column appears to be known only after the label; else empty.
    """

    texts: Texts
    missing: list[str]
    kind: str
    evidence: list[str]
    leak: str = ""

    @property
    def name(self) -> str:
        return self.texts.name

    @property
    def features(self) -> tuple[int, int]:
        """Number of numerical and of categorical features that the column becomes."""
        is_number, is_category = (self.kind.startswith(r) for r in ("numerical", "categorical"))
        return int(is_number), is_category + len(derived_names(self.name, self.kind))

    def ignore(self, reason: str) -> None:
        """Makes the column ignored, for a reason that is added to the evidence."""
        self.kind, self.evidence = "ignored", [*self.evidence, reason]

    def __str__(self) -> str:
        marks = f", missing: [{', '.join(map(quoted, self.missing))}]" if self.missing else ""
        marks = "" if self.kind == "ignored" else marks
        entry = f"{{name: {quoted(self.name)}, role: {self.kind}{marks}}}"
        return f"- {entry}  # {', '.join(self.evidence)}"


def _draft(
    sampled: str,
    columns: Mapping[str, Sequence[str]],
    num_rows: int,
    dialect: Dialect,
    known: Known = Known(),  # noqa: B008
) -> str:
    """Returns the schema for columns with these texts."""
    delimiter, has_header, has_quotes = dialect
    cells = {name: Counter(texts) for name, texts in columns.items()}
    are_lists = {name for name, kind in known.kinds.items() if "separator" in kind}
    label = find_label({name: own for name, own in cells.items() if name not in are_lists})
    entries = _entries(columns, cells, label, delimiter, known)
    if label is None or has_header:
        listed = [str(entry) for entry in entries]
    else:
        by_name = {entry.name: str(entry) for entry in entries}
        by_name[label.column] = f"- {{name: {quoted(label.column)}, role: label}}"
        listed = [by_name[name] for name in columns]
    has_quotes = has_quotes or any("string" in entry for entry in listed)
    quote = f"'{QUOTE}'" if has_quotes else "none"
    header = "true" if has_header else "false"
    quote, missing = (quote, "") if delimiter != HIVE else ("none", 'missing: ["\\\\N"]\n')
    has_limit = any(
        entry.kind.startswith(("categorical", "timestamp")) and entry.features[1]
        for entry in entries
    )
    return (
        f"# A draft from {num_rows:,} rows of {sampled}: read each line.\n"
        f"dialect: {{delimiter: {quoted(delimiter)}, header: {header}, quote: {quote}}}\n{missing}"
        f"label: {_label_line(label, cells)}\n"
        + ("defaults: {frequency_limit: 2}\n" if has_limit else "")
        + "columns:\n"
        + "\n".join(listed)
        + "\nsplit: {fractions: [0.8, 0.1, 0.1]}  # in the order of the rows"
        + f"{_time_split(entries)}\n"
    )


def _label_line(label: Label | None, columns: Mapping[str, Counter[str]]) -> str:
    """Returns the line of the label; without a label the line asks which column it is."""
    if label is not None:
        yes, no = _quoted_text(label.yes), _quoted_text(label.no)
        texts = (
            f", positive: [{yes}], negative: [{no}]" if (label.yes, label.no) != ("1", "0") else ""
        )
        cells = columns[label.column]
        share = f"{cells[label.yes] / cells.total():.1%}"
        guess = ", the rarer value, taken to be the clicks" if label.is_guess else ""
        return f"{{column: {quoted(label.column)}{texts}}}  # {share} are {shown(label.yes)}{guess}"
    of_few = []
    for name, cells in columns.items():
        if 2 <= len(cells) <= _MOST_LABELS:
            values = (f"{shown(text)} {_percentage(n, cells)}" for text, n in cells.most_common())
            of_few.append(f"{shown(name)} ({', '.join(values)})")
    line = '{column: "", positive: ["1"], negative: ["0"]}  # Which one? '
    return line + ("; ".join(of_few) or "No column has few values.")


def _entries(
    columns: Mapping[str, Sequence[str]],
    cells: Mapping[str, Counter[str]],
    label: Label | None,
    delimiter: str,
    known: Known,
) -> list[_Entry]:
    """Returns the columns of the draft except the label, in a combination that is valid."""
    # The separator of lists is not the file's delimiter.
    separators = [each for each in SEPARATORS if each != delimiter]
    if delimiter == HIVE:
        separators = [_HIVE_LISTS, *separators]
    is_click = [text == label.yes for text in columns[label.column]] if label else []
    entries = []
    for name in columns:
        if label is not None and name == label.column:
            continue
        clicks = Counter(itertools.compress(columns[name], is_click))
        entries.append(_entry(name, cells[name], clicks, separators, known))
    leaks = [entry for entry in entries if entry.leak]
    if len(leaks) < sum(any(entry.features) for entry in entries):
        for entry in leaks:
            entry.ignore(entry.leak)
    if not any(any(entry.features) for entry in entries):
        for entry in entries:  # ids that differ in nearly all rows beat having no feature
            if entry.name and differ(entry.texts.rows):
                entry.kind = plain_kind(entry.texts.rows)
    _share_vocabularies(entries)
    _keep_within_limits(entries)
    return entries


def _entry(
    name: str, cells: Counter[str], clicks: Counter[str], separators: list[str], known: Known
) -> _Entry:
    """Returns a column of the draft."""
    if name in known.unread:
        return _Entry(Texts(name, {}, {}, False), [], "ignored", [known.unread[name]])
    marks = missing_marks(name, cells)
    absent = {"", *marks}
    texts = Texts(
        name,
        {cell: n for cell, n in cells.items() if cell not in absent},
        {cell: n for cell, n in clicks.items() if cell not in absent},
        is_everywhere=cells.keys().isdisjoint(absent),
    )
    kind, remarks = column_kind(texts, separators, known.kinds.get(name, ""))
    evidence = [f"{len(texts.rows):,} distinct", f"{_percentage(cells[''], cells)} empty"]
    evidence += [f"{shown(mark)!r} in {_percentage(cells[mark], cells)}" for mark in marks]
    entry = _Entry(texts, marks, kind, [*evidence, *remarks])
    if not name:
        entry.ignore("without a name")
    elif kind != "ignored":
        entry.leak = leak_evidence(cells, clicks, absent)
    return entry


def _share_vocabularies(entries: list[_Entry]) -> None:
    """Gives a list column and the column whose ids it holds the same vocabulary."""
    import yaml

    rules = {entry.name: yaml.safe_load(f"{{role: {entry.kind}}}") for entry in entries}
    ids = [e for e in entries if rules[e.name]["role"] == "categorical" and e.texts.rows]
    for entry in entries:
        own = rules[entry.name]
        if own["role"] != "categorical_list":
            continue
        elements = Counter[str]()
        for cell, n in entry.texts.rows.items():
            for element in cell.split(own["separator"]):
                key = element.rpartition(":")[0] if "weight_separator" in own else element
                elements[key.strip()] += n
        alike = {
            e.name: _likeness(elements, e.texts.rows)
            for e in ids
            if rules[e.name]["type"] == own["type"]
        }
        name = max(alike, key=alike.__getitem__, default="")
        if name and alike[name]:
            of_ids = next(e for e in ids if e.name == name)
            for each in (entry, of_ids):
                if "vocabulary" not in each.kind:
                    each.kind += f", vocabulary: {quoted(name)}"
            entry.evidence.append(f"its elements are ids of {shown(name)}")


def _likeness(elements: Counter[str], ids: Mapping[str, int]) -> float:
    """Returns how alike list elements and ids are; 0 if they are of different kinds."""
    shared = elements.keys() & ids.keys()
    likeness = len(shared) / len(elements.keys() | ids.keys())
    is_most = sum(elements[each] for each in shared) > _SHARED * elements.total()
    return likeness if is_most and likeness > _ALIKE and len(shared) >= _LEAST_SHARED else 0.0


def _keep_within_limits(entries: list[_Entry]) -> None:
    """Ignores columns beyond the feature limit, or with derived names that clash with a column."""
    counts, names = [0, 0], {entry.name for entry in entries}
    for entry in entries:
        if not names.isdisjoint(derived_names(entry.name, entry.kind)):
            entry.kind = "ignored"
            entry.evidence.append("another column has the name of its feature")
        sums = [count + own for count, own in zip(counts, entry.features, strict=True)]
        if max(sums) > MAX_FEATURES:
            entry.ignore(f"there are more than {MAX_FEATURES} features of its role")
        else:
            counts = sums


def _time_split(entries: list[_Entry]) -> str:
    """Returns a comment with an alternative split by the first timestamp column; else empty."""
    for entry in entries:
        rule = time_rule(entry.name, entry.texts.rows)
        if rule is None:
            continue
        times = sorted(
            time
            for cell, n in entry.texts.rows.items()
            for time in [rule.milliseconds(cell.encode()) or 0] * n
        )
        cuts = [show_time(times[int(len(times) * fraction)]) for fraction in (0.8, 0.9)]
        if cuts[0] != cuts[1]:
            return (
                '; or, by the sample\'s times, {{time: {{validation: "{}", test: "{}"}}}}'.format(
                    *cuts
                )
            )
    return ""


def _quoted_text(text: str) -> str:
    """Returns a text in double quotes, as YAML."""
    return '"' + shown(text.replace("\\", "\\\\").replace('"', '\\"')) + '"'


def _percentage(count: int, cells: Counter[str]) -> str:
    return f"{count / max(sum(cells.values()), 1):.0%}"
