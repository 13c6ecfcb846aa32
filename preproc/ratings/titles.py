# SPDX-License-Identifier: Apache-2.0
"""Titles of items, in files next to the ratings such as those of MovieLens."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from preproc.clicks.kernel.row_writer import write_cells
from preproc.clicks.schema.grammar import is_text
from preproc.clicks.schema.rating_fields import Rating
from preproc.files.errors import PreprocError
from preproc.files.input_file import InputFile, without_mark
from preproc.files.raw.objects import is_object, keys_of
from preproc.files.raw.tables import TableColumn, open_table, table_schema
from preproc.files.raw.text_files import as_text
from preproc.ratings.format import ITEM, RatingsFormat, show
from preproc.ratings.header import names_of, with_names
from preproc.ratings.job import RatingsJob

NO_TITLES = "none"
BESIDE_RATINGS = "auto"


@dataclasses.dataclass(frozen=True, slots=True)
class Titles:
    """Titles of a catalogue, by the raw ids of its items.

    Attributes:
        file: the file that was read.
        by_raw_id: raw id -> title, never empty.
    """

    file: InputFile
    by_raw_id: dict[str, str]

    def of(self, raw_ids: list[str]) -> list[str]:
        """Returns the title of each item; empty for an item without one."""
        return [self.by_raw_id.get(raw_id, "") for raw_id in raw_ids]


def titles_of(job: RatingsJob, ratings: InputFile, layout: RatingsFormat) -> Titles | None:
    """Reads the titles that belong to a ratings file; None if there are none.

    Raises:
        PreprocError: the file is missing, or is not a file of titles.
    """
    if job.titles == NO_TITLES:
        return None
    if job.titles == BESIDE_RATINGS:
        if layout.titles is None:
            return None
        beside = (ratings.path.with_name(f"{layout.titles.name}{end}") for end in ("", ".gz"))
        path = next((path for path in beside if path.is_file()), None)
        return None if path is None else _read(path, [layout.titles])
    path = Path(job.titles)
    if not path.is_file():
        raise PreprocError(
            f"`titles` {path}: no such file; give a file, {BESIDE_RATINGS} or {NO_TITLES}",
            setting="titles",
            path=path,
        )
    known = [each.titles for each in (*job.formats, *job.source.formats) if each.titles]
    return _read(path, list(dict.fromkeys(known)))


def _read(path: Path, formats: Sequence[RatingsFormat]) -> Titles:
    """Reads the titles of a file in one of the formats."""
    file = as_text(InputFile.open(path))
    if file.is_table:
        layout = _by_name(file, formats, table_schema(file).names).as_table()
        columns = [TableColumn(name=n, is_id=role == ITEM) for n, role in layout.used.items()]
        file = open_table(file, columns, write_cells)
        text = b"".join(file.blocks())
    else:
        text = b"".join(without_mark(file.blocks())[1])
        layout = _format_of(file, formats, text.partition(b"\n")[0].removesuffix(b"\r"))
    if layout.encoding != "utf-8" and not is_text(text):
        text = text.decode(layout.encoding).encode()
    by_raw_id: dict[str, str] = {}
    for number, line in enumerate(text.removesuffix(b"\n").split(b"\n"), 1):
        if number <= layout.needs_header:
            continue
        read = layout.read(line.removesuffix(b"\r"))
        if not isinstance(read, Rating):
            raise _refusal(file, number, f"{read.text} ({read.reason})")
        if read.item in by_raw_id:
            raise _refusal(file, number, f"the item {show(read.item.encode())} occurs twice")
        by_raw_id[read.item] = read.title
    return Titles(file, {raw_id: title for raw_id, title in by_raw_id.items() if title})


def _format_of(file: InputFile, formats: Sequence[RatingsFormat], line: bytes) -> RatingsFormat:
    """Detects the format from the first line: by column names, or by the number of fields.

    Raises:
        PreprocError: no format fits.
    """
    if is_object(line):
        return _by_name(file, formats, [*keys_of(file.path, [line])]).as_objects()
    for layout in formats:
        names = names_of(line, layout.delimiter, layout.rows.quote)
        if layout.goes_with(names):
            columns: dict[Any, str] = {column: name for name, column in layout.used.items()}
            return with_names(layout, columns, names)
        if not layout.needs_header and len(names) >= len(layout.columns):
            return layout
    known = ", ".join(layout.name for layout in formats)
    raise _refusal(file, 1, f"{show(line)} is not the first line of any of {known}")


def _by_name(
    file: InputFile, formats: Sequence[RatingsFormat], names: Sequence[str]
) -> RatingsFormat:
    """Returns the format of a table or of objects.

    Raises:
        PreprocError: no format fits.
    """
    for layout in formats:
        if layout.goes_with(names):
            return layout
    raise _refusal(file, 1, f"no item and title among the columns {', '.join(names)}")


def _refusal(file: InputFile, line: int, text: str) -> PreprocError:
    where = f"row {line - 1}" if file.is_table else f"line {line}"
    return PreprocError(
        f"{file.path}, {where}: {text}; repair it, or read no titles: `titles` {NO_TITLES}",
        setting="titles",
        path=file.path,
        line=line,
    )
