# SPDX-License-Identifier: Apache-2.0
"""Checks files, their format and disk space before a run starts."""

import dataclasses
import itertools
from collections import Counter
from collections.abc import Iterator

from preproc.clicks.engine import explained
from preproc.clicks.input import find_inputs, has_parts
from preproc.clicks.job import ClicksJob
from preproc.clicks.kernel import row_writer
from preproc.clicks.rules import NUM_COLUMNS, split_bounds
from preproc.clicks.schema.grammar import LOOKS_WEIGHTED, reject_reason
from preproc.clicks.schema.row_format import (
    BLANKS,
    NUM_NUMERICAL,
    Column,
    ListRule,
    RowFormat,
    criteo_format,
)
from preproc.files.disk import DiskNeeds
from preproc.files.errors import PreprocError
from preproc.files.input_file import InputFile, without_mark
from preproc.files.progress import ProgressReporter
from preproc.files.quarantine import excerpt
from preproc.files.raw import tables
from preproc.files.raw.blank_end import LINE_ENDS
from preproc.files.raw.encoding import MAY_BE_ENCODING, encoding_fault
from preproc.files.raw.objects import is_object, keys_of
from preproc.files.raw.parts import files_text
from preproc.files.workspace import Workspace, check_output

SAMPLE_ROWS = 100

_ID_BYTES = 2.4  # per categorical feature: the full Criteo log at frequency limit 15
_PARQUET_SHARE = 0.7  # size of the part files, relative to split binary
_RUNS_BYTES = 2  # sorted runs, per categorical feature, at 64 MiB of text per unit
_NVTABULAR_ROW_BYTES = 120  # parquet of the valid rows, and the encoded rows of one unit
_SHUFFLE_KEY_BYTES = _OFFSET_BYTES = _GROUP_BYTES = 8
_UNKNOWN_ROW_BYTES = 240
_END_OF_1970 = 365 * 86_400_000


def check(
    job: ClicksJob, reporter: ProgressReporter
) -> tuple[tuple[InputFile, ...], tuple[RowFormat, ...], DiskNeeds]:
    """Checks that a run can start; returns its inputs, their fields, and the disk needs.

    Notes what looks like a mistake in the schema.

    Raises:
        PreprocError: it cannot start; the message names the file, the reason and the remedy.
    """
    check_output(job.output, job.input, job.work_dir, overwrite=job.overwrite)
    schema = job.semantics.schema
    inputs = find_inputs(job.input, schema, by_days=job.semantics.halves_last_day)
    if job.semantics.split_days is not None:
        split_bounds([1] * len(inputs), job.semantics)
    num_files = len(inputs)
    opened = _opened(inputs, job)
    inputs, formats = tuple(each.file for each in opened), tuple(each.row_format for each in opened)
    if job.input.is_dir():
        reporter.note(files_text(job.input, [f.path for f in inputs], num_files - len(inputs)))
    if unread := frozenset[str]().union(*(each.unread for each in opened)):
        names = ", ".join(sorted(unread))
        reporter.note(f"{job.input}: columns that the schema does not name are not read: {names}")
    rows = opened[0].rows
    if schema is not None:
        for name in _weighted_lists(rows, formats[0]):
            doubt = f"{name}: elements end in :NUMBER; if these are weights, set `weight_separator`"
            reporter.note(doubt)
        for name, time_format, example in _times_of_1970(rows, formats[0]):
            reporter.note(
                f"{name}: read as {time_format}, times such as {example} lie in 1970; should the "
                "format be another unit, or a date such as %Y%m%d?"
            )
    lengths = [len(row) + 1 for each in opened for row in each.rows]
    row_bytes = sum(lengths) / len(lengths) if lengths else _UNKNOWN_ROW_BYTES
    list_bytes = _list_bytes(rows, formats[0])
    needs = disk_needs(job, sum(f.text_bytes for f in inputs) / row_bytes, list_bytes)
    needs.check(Workspace(job.output, job.work_dir).used_bytes())
    return inputs, formats, needs


@dataclasses.dataclass(frozen=True, slots=True)
class _OpenedFile:
    """A file that has rows.

    Attributes:
        file: the file; a table is wrapped so that it reads as text.
        rows: the first rows, header included.
        unread: columns of a table that the schema does not name.
    """

    file: InputFile
    row_format: RowFormat
    rows: list[bytes]
    unread: frozenset[str]


def _opened(inputs: tuple[InputFile, ...], job: ClicksJob) -> list[_OpenedFile]:
    """Opens the files that have rows, and checks the first rows of each.

    Raises:
        PreprocError: a file cannot be read, or no file has a row.
    """
    opened = [each for file in inputs if (each := _open(file, job)) is not None]
    if not opened:
        raise PreprocError(
            f"`input` {job.input}: none of its {len(inputs)} files has a row", setting="input"
        )
    return opened


def _open(file: InputFile, job: ClicksJob) -> _OpenedFile | None:
    """Opens a file and checks its first rows; None for a part without rows.

    Raises:
        PreprocError: it cannot be read, or none of its first rows is valid.
    """
    schema, is_part = job.semantics.schema, has_parts(job.input, job.semantics.schema)
    of_table, unread = None, frozenset[str]()
    if file.is_table:
        file, of_table, unread = _open_table(file, job)
    text, is_whole = _first_text(file)
    if is_whole and not text.strip(LINE_ENDS):
        if is_part:
            return None
        raise PreprocError(f"{file.path}: holds no row; get the file again", path=file.path)
    first = next(iter(_first_rows(text, is_whole=is_whole)), b"")
    if schema is not None and not file.is_table and is_object(first):
        row_format, unread = _of_objects(file, text, job)
    else:
        row_format = of_table or job.semantics.row_format(file.path, first)
    rows = _first_rows(text, row_format.blank, is_whole=is_whole)
    if is_part and is_whole and len(rows) == row_format.has_header:
        return None
    if schema is None:
        check_sample(file, rows, unlabelled=job.semantics.unlabelled)
    else:
        _check_rows(file, rows[row_format.has_header :], row_format, job)
    return _OpenedFile(file, row_format, rows, unread)


def _open_table(file: InputFile, job: ClicksJob) -> tuple[InputFile, RowFormat, frozenset[str]]:
    """Opens a table as text, with only the columns that are used.

    Returns:
        The file, the fields of its rows, and the columns that the schema does not name.

    Raises:
        PreprocError: there is no schema, or the table lacks a column or cannot be read.
    """
    schema = job.semantics.schema
    if schema is None:
        raise PreprocError(
            f"{file.path}: is a table ({file.compression}), but a Criteo log is text; a table "
            "needs a `schema`, which `infer` drafts",
            settings=("schema", "infer"),
            path=file.path,
        )
    found = tables.table_schema(file)
    types = dict(zip(found.names, found.types, strict=True))
    unlabelled = job.semantics.unlabelled
    row_format, columns = schema.table_format(file.path, types, unlabelled=unlabelled)
    others = frozenset(types.keys() - {column.name for column in schema.columns})
    # The reference engine shares no code with the kernel.
    write = tables.write_cells if job.engine == "reference" else row_writer.write_cells
    return tables.open_table(file, columns, write), row_format, others


def _of_objects(file: InputFile, text: bytes, job: ClicksJob) -> tuple[RowFormat, frozenset[str]]:
    """Returns the fields of rows that are objects, and the keys that the schema does not name.

    Raises:
        PreprocError: the first objects lack a key.
    """
    schema = job.semantics.schema
    assert schema is not None
    keys = keys_of(file.path, text.split(b"\n"))
    unlabelled = job.semantics.unlabelled
    row_format = schema.object_format(file.path, keys, unlabelled=unlabelled)
    return row_format, frozenset({*keys} - {column.name for column in schema.columns})


def _first_text(file: InputFile) -> tuple[bytes, bool]:
    """Returns the start of a file, at least one row, and whether that is the whole file."""
    text, (_, blocks) = b"", without_mark(file.blocks())
    for block in blocks:  # the first blocks of a gzip file may end inside the first row
        text += block
        if b"\n" in block or len(text) > 2**19 - 1:
            break
    return text, not next(blocks, b"")


def _first_rows(text: bytes, blank: bytes = b"", *, is_whole: bool) -> list[bytes]:
    """Returns up to `SAMPLE_ROWS` rows of a text, without lines of `blank` bytes at its end."""
    if is_whole:
        text = text[: text.find(b"\n", len(text.rstrip(blank))) + 1 or len(text)]
    *lines, rest = text.split(b"\n", SAMPLE_ROWS)
    if is_whole and rest and len(lines) < SAMPLE_ROWS:
        lines.append(rest)  # otherwise the row is incomplete
    return [line.removesuffix(b"\r") for line in lines]


def check_sample(file: InputFile, rows: list[bytes], *, unlabelled: bool = False) -> None:
    """Refuses a file whose first rows are not those of a Criteo log.

    Raises:
        PreprocError: no row is valid, or the first is a header line.
    """
    row_format = criteo_format(unlabelled=unlabelled)
    reasons = [reject_reason(row, row_format) for row in rows]
    if rows and _is_header(rows[0]) and (None in reasons[1:] or len(rows) == 1):
        raise PreprocError(
            f"{file.path}: begins with a header line ({excerpt(rows[0], 80)}); Criteo logs have no "
            f"header. Remove it: tail -n +2 {file.path.name} > without_header",
            path=file.path,
        )
    if None in reasons:
        return
    if not rows:
        raise PreprocError(
            f"{file.path}: the first line does not end within 512 KiB; this is not "
            f"{row_format.description}",
            path=file.path,
        )
    separator, count = max(
        ((name, _usual_count(rows, byte)) for name, byte in _SEPARATORS.items()),
        key=lambda counted: (counted[1], counted[0] == "tab"),
    )
    wanted = NUM_COLUMNS - unlabelled
    if separator == "tab" and count == NUM_COLUMNS - 1 and not unlabelled:
        guess = (
            "looks like Kaggle test.txt, which has no label; use train.txt, or `unlabelled` with "
            "the `dictionaries` of a dataset"
        )
    elif separator == "tab" and count == NUM_COLUMNS and unlabelled:
        guess = "the rows appear to begin with a label; drop `unlabelled`"
    elif separator != "tab" and count in (NUM_COLUMNS, NUM_COLUMNS - 1):
        guess = f"the fields are separated by {separator}s; convert them to tabs"
    elif count == wanted:
        guess = f"{wanted} fields is right, but the first row is refused ({reasons[0]})"
    else:
        label = "" if unlabelled else "label, "
        guess = (
            f"this is not a Criteo log ({label}13 integers, 26 hex categories); a log with other "
            "columns needs a `schema`, which `infer` drafts"
        )
    raise PreprocError(
        f"{file.path}: none of the first {len(rows)} rows is valid. {count} {separator}-separated "
        f"fields: {guess}. Row 1: {excerpt(rows[0], 80)}",
        path=file.path,
    )


def _check_rows(file: InputFile, rows: list[bytes], row_format: RowFormat, job: ClicksJob) -> None:
    """Refuses a file if none of its first rows fits the schema.

    Raises:
        PreprocError: no row fits; says why for the first ones.
    """
    reasons = [reject_reason(row, row_format) for row in rows]
    if sum(reason in MAY_BE_ENCODING for reason in reasons) > job.max_bad_fraction * len(rows):
        first = 1 + row_format.has_header
        if fault := encoding_fault(file, rows, range(first, first + len(rows))):
            raise PreprocError(fault)
    if None in reasons:
        return
    if not rows:
        raise PreprocError(
            f"{file.path}: has no row, or its first row is longer than 512 KiB", path=file.path
        )
    examples = "".join(
        f"\n  {explained(row, str(reason), row_format)}"
        for row, reason in zip(rows[:3], reasons, strict=False)
    )
    count = len(row_format.columns)
    fields = f"{count} fields separated by {row_format.delimiter.decode()!r}, with "
    lacks_one = {len(row_format.fields(row) or ()) for row in rows} == {count - 1}
    hint = " (for rows without a label: `unlabelled`)" if lacks_one and job.dictionaries else ""
    name, rules = ("schema", job.schema) if job.schema else ("dictionaries", job.dictionaries)
    raise PreprocError(
        f"{file.path}: none of the first {len(rows)} rows fits `{name}` {rules}, which expects "
        f"{fields if row_format.is_text else ''}its label and types{hint}. The first rows:"
        f"{examples}",
        setting=name,
        path=file.path,
    )


def _weighted_lists(rows: list[bytes], row_format: RowFormat) -> Iterator[str]:
    """Yields lists without weights whose elements look weighted."""
    for name, rule, lists in _lists(rows, row_format):
        elements = [] if rule.weight_separator else list(itertools.chain(*lists))
        if elements and all(map(LOOKS_WEIGHTED.fullmatch, elements)):
            yield name


def _times_of_1970(rows: list[bytes], row_format: RowFormat) -> Iterator[tuple[str, str, str]]:
    """Yields name, format and an example for columns whose Unix times all lie in 1970."""
    for column, cells in _columns(rows, row_format):
        if column.time is None or not column.time.format.startswith("unix"):
            continue
        present = [cell for cell in cells if cell]
        times = [column.time.milliseconds(cell) for cell in present]
        if times and all(time is not None and time < _END_OF_1970 for time in times):
            yield column.name, column.time.format, present[0].decode()


def _columns(
    rows: list[bytes], row_format: RowFormat
) -> Iterator[tuple[Column, tuple[bytes, ...]]]:
    """Yields each column with its fields in the complete rows."""
    fields = [row_format.fields(row) or [] for row in rows[row_format.has_header :]]
    whole = [each for each in fields if len(each) == len(row_format.columns)]
    yield from zip(row_format.columns, zip(*whole, strict=True), strict=False)


def _lists(
    rows: list[bytes], row_format: RowFormat
) -> Iterator[tuple[str, ListRule, list[list[bytes]]]]:
    """Yields name, rule and the elements per row of each list column."""
    for column, cells in _columns(rows, row_format):
        if column.list is not None:
            separator = column.list.separator.encode("latin-1")
            yield (
                column.name,
                column.list,
                [
                    [each.strip(BLANKS) for each in cell.split(separator)] if cell else []
                    for cell in cells
                ],
            )


def _list_bytes(rows: list[bytes], row_format: RowFormat) -> float:
    """Returns the bytes that the lists of a row take, on average."""
    total = 0.0
    for _, rule, lists in _lists(rows, row_format):
        elements = sum(min(len(each), rule.max_length) for each in lists) / len(lists)
        total += _OFFSET_BYTES + elements * (_ID_BYTES + 4 * bool(rule.weight_separator))
    return total


_SEPARATORS = {"tab": b"\t", "comma": b",", "semicolon": b";", "space": b" "}


def _usual_count(rows: list[bytes], separator: bytes) -> int:
    return Counter(len(row.split(separator)) for row in rows).most_common(1)[0][0]


def _is_header(row: bytes) -> bool:
    """Returns True if the label and integer columns hold names."""
    fields = row.split(b"\t")
    names = [f for f in fields[: 1 + NUM_NUMERICAL] if f.strip() and f.strip()[:1].isalpha()]
    return len(fields) == NUM_COLUMNS and len(names) == 1 + NUM_NUMERICAL


def disk_needs(job: ClicksJob, rows: float, list_bytes: float = 0) -> DiskNeeds:
    """Estimates the disk space of a run from its rows and lists."""
    workspace = Workspace(job.output, job.work_dir)
    numerical, categorical = job.semantics.num_numerical, job.semantics.num_categorical
    schema = job.semantics.schema
    lists = 0 if schema is None else len(schema.named("categorical_list"))
    is_float32 = schema is not None and schema.numbers == "float32"
    has_group = schema is not None and any(column.group for column in schema.columns)
    split = 1 + (4 if is_float32 else 2) * numerical + _ID_BYTES * (categorical - lists)
    split += list_bytes + _GROUP_BYTES * has_group
    float32, wide = 4 * numerical * (not is_float32), 4 * (1 + numerical + categorical)
    output_bytes = rows * split
    if "parquet" in job.format:
        output_bytes += rows * (_PARQUET_SHARE * split + float32)
    if "npy" in job.format:
        output_bytes += rows * (wide + float32)
    if job.layout == "torchrec":
        output_bytes += rows * (float32 + wide)
    if job.semantics.shuffle_seed is not None:  # the columns in input order, and their records
        has_float32 = job.format != ("split",) or job.layout == "torchrec"
        column_bytes = split + has_float32 * float32
        output_bytes += rows * (2 * column_bytes + _SHUFFLE_KEY_BYTES)
    work_bytes = _NVTABULAR_ROW_BYTES if job.engine == "nvtabular" else _RUNS_BYTES * categorical
    return DiskNeeds(
        {workspace.staging: output_bytes, workspace.root: rows * work_bytes},
        rows,
        "choose `output` or `work_dir` on another disk, or write only one `format`",
    )
