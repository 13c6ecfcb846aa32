# SPDX-License-Identifier: Apache-2.0
"""Interface of the engines: `EngineJob` in, `EngineResult` out.

An engine is a function from an `EngineJob` to an `EngineResult`. It stages a dataset folder with
dictionaries/cat_i.bin, quarantine.csv if rows were rejected, and the split folders if the job has
the format `split`. Rows are in input order. Later stages, the same for all engines, shuffle them,
write parquet/ and publish the dataset; an engine never writes to the output path.
"""

import dataclasses
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from preproc.clicks.dictionaries import Dictionaries
from preproc.clicks.growth.days import Growth
from preproc.clicks.growth.eviction import reuse_ids
from preproc.clicks.job import ClicksJob
from preproc.clicks.rules import SPLITS, Bounds, ClicksSemantics, Split, split_bounds
from preproc.clicks.schema.grammar import RejectReason, wrong_fields
from preproc.clicks.schema.row_format import Edges, RowFormat
from preproc.clicks.schema.time_rule import show_time
from preproc.files.errors import PreprocError
from preproc.files.input_file import InputFile
from preproc.files.progress import ProgressReporter
from preproc.files.quarantine import RejectedRow, check_rejected_rows, excerpt
from preproc.files.raw.spelled_numbers import spelling_remedy
from preproc.files.workspace import Workspace, settings_key

WORK_VERSION = 3
"""Version of kept work; raise it with each change that makes the same key give other bytes."""


_SHOWN_CHARACTERS, _SHOWN_OF_ROW = 40, 120


def explained(row: bytes, reason: str, row_format: RowFormat) -> str:
    """Returns what is wrong with a rejected row, and the remedy."""
    fields, shown = row_format.fields(row), excerpt(row, _SHOWN_OF_ROW)
    if row_format.is_criteo or fields is None:
        return f"{reason}: {shown}"
    if reason == "columns":
        return f"{len(fields)} fields instead of {len(row_format.columns)} (columns): {shown}"
    _, number = next(wrong_fields(fields, row_format))
    value = excerpt(fields[number], _SHOWN_CHARACTERS)
    column = row_format.columns[number]
    has_digits = any(
        character.isdigit() for character in value
    )  # marks of missing values have none
    nothing = f"; to read it as missing, add missing: [{json.dumps(value)}]"
    if_nothing = "" if has_digits else nothing
    remedies = {
        "hex": f"; expected up to 8 hexadecimal digits (`type` string takes any text){if_nothing}",
        "number": f"; expected a decimal number with a point, within float32{if_nothing}",
        "integer": "; expected an integer of 32 bits in a numerical column (`type` float takes "
        f"others), of 64 bits in a categorical one (`type` string takes others){if_nothing}",
        "label": "; it is neither a positive nor a negative text of the label",
        "encoding": "; texts must be UTF-8",
        "string": "; texts may have at most 1,024 bytes",
    }
    if column.type != "string" or column.time is not None:
        remedies["encoding"] = "; this column may hold only printable ASCII"
    if column.list is not None:
        weights = f", each with {column.list.weight_separator!r} and a decimal weight"
        between = "" if row_format.is_table else f" separated by {column.list.separator!r}"
        remedies["list"] = (
            f"; expected elements{between}, none empty"
            f"{weights if column.list.weight_separator else ''}"
        )
    if column.time is not None:
        remedies["time"] = (
            f"; the split needs a time from 1970 to 2199 of the form {column.time.format}"
            if row_format.is_split_by_time_of(number)
            else f"; expected a time from 1970 to 2199 of the form {column.time.format}{if_nothing}"
        )
    spelling = spelling_remedy([value]) if column.role == "numerical" else ""
    remedy = f"; {spelling}" if spelling else remedies.get(reason, if_nothing)
    return f"column {column.name}: {value} is refused ({reason}){remedy}"


@dataclasses.dataclass(frozen=True, slots=True)
class EngineJob:
    """Inputs of an engine; `formats` has one format per raw file."""

    job: ClicksJob
    inputs: tuple[InputFile, ...]
    formats: tuple[RowFormat, ...]
    workspace: Workspace
    reporter: ProgressReporter
    dictionaries: Dictionaries | None = None
    """Dictionaries to encode with; None makes the engine count categories."""
    growth: Growth | None = None
    """What the day adds to; None for a dataset that does not grow."""

    def with_reused_ids(self, merged: Dictionaries) -> Dictionaries:
        """Returns the dictionaries of a day after eviction; see `preproc.clicks.growth.eviction`.

        Args:
            merged: dictionaries with the known and then the new categories of each column.
        """
        growth, semantics = self.growth, self.job.semantics
        if growth is None or growth.known is None or semantics.evict_after is None:
            return merged
        rule = [semantics.evict_after, semantics.evict_below]
        folder = self.work_folder("reuse", merged=merged.key, rule=rule, **self.growth_key)
        placed = dataclasses.replace(merged, folder=folder, key=folder.name, has_reused=True)
        reuse_ids(growth, merged, semantics, placed)
        return placed

    @property
    def growth_key(self) -> dict[str, object]:
        """Part of the key of stages that depend on the days before; empty without growth."""
        return {} if self.growth is None else {"growth": self.growth.key}

    def with_edges(self, edges: Edges) -> "EngineJob":
        """Returns the job with the bin edges that were found."""
        semantics = self.job.semantics.with_edges(edges)
        return dataclasses.replace(
            self,
            job=dataclasses.replace(self.job, semantics=semantics),
            formats=tuple(row_format.with_edges(edges) for row_format in self.formats),
        )

    def check_inputs(self) -> None:
        """Refuses files that changed since the run began; call it after each pass."""
        for file in self.inputs:
            file.check_unchanged()

    def check_rejected_rows(
        self, bad: int, most_rows: float, examples: Iterable[RejectedRow]
    ) -> None:
        """Stops the run if too many rows are rejected; see `preproc.files.quarantine`."""
        names = (file.name for file in self.inputs)
        formats = dict(zip(names, self.formats, strict=True))
        check_rejected_rows(
            bad,
            most_rows,
            self.job.max_bad_fraction,
            examples,
            self.inputs,
            lambda row: explained(row.row, row.reason, formats[row.file]),
        )

    def key(self, stage: str, inputs: Sequence[InputFile] | None = None, /, **own: object) -> str:
        """Returns a digest of the text, the row rules and `own`.

        Args:
            stage: name of the stage.
            inputs: files that the stage reads; None for all.
            own: JSON values that the stage also depends on, such as the key of an earlier stage.
        """
        return settings_key(
            {
                "version": WORK_VERSION,
                "stage": stage,
                "input": [file.identity for file in inputs or self.inputs],
                "reading": dict(self.job.semantics.reading()),
                **own,
            }
        )

    def work_folder(
        self, stage: str, inputs: Sequence[InputFile] | None = None, /, **own: object
    ) -> Path:
        """Makes the folder for a stage's kept work, named by its `key`."""
        return self.workspace.unit_dir(stage, self.key(stage, inputs, **own))


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class FileRows:
    """Valid rows, lines and rejected rows of a raw file.

    If the schema splits by time or at random, `split_rows` are the rows of each split, and
    `split_values` the least and the greatest value that the split compared.
    """

    rows: int
    lines: int
    rejected: dict[RejectReason, int]
    split_rows: tuple[int, ...] = (0, 0, 0)
    split_values: tuple[int, int] = (2**64 - 1, 0)


def bounds_of(files: Sequence[FileRows], semantics: ClicksSemantics) -> Bounds:
    """Returns the first row and the end of each split; see `split_bounds`.

    Raises:
        PreprocError: a split by time leaves one of the splits without rows.
    """
    split_rows = [sum(counts) for counts in zip(*(file.split_rows for file in files), strict=True)]
    schema = semantics.schema
    if schema is not None and schema.split == "time" and 0 in split_rows:
        least = min(file.split_values[0] for file in files)
        most = max(file.split_values[1] for file in files)
        raise PreprocError(
            f"the split by {schema.split_column} leaves no {SPLITS[split_rows.index(0)]} row: "
            f"validation begins at {show_time(schema.cuts[0])} and test at "
            f"{show_time(schema.cuts[1])}, but the times go from {show_time(least)} to "
            f"{show_time(most)} (UTC)"
        )
    return split_bounds([file.rows for file in files], semantics, split_rows)


@dataclasses.dataclass(frozen=True, slots=True)
class EncodedColumns:
    """Encoded columns on disk, the input of the stages after the engine.

    Attributes:
        folder: holds a folder of split-binary columns per split; the dataset folder itself if
            the dataset has the format `split`.
        float32: holds a file of numerical features per split, [rows, M] float32; None if no
            format needs them.
        is_shuffled: the training split has its final order, not that of the input.
    """

    folder: Path
    float32: Path | None
    is_shuffled: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class EngineResult:
    """A staged dataset and its counts.

    Attributes:
        dataset: the staged folder.
        engine: name and version, for the manifest.
        files: counts of each input file, in input order.
        positives: clicks of each split.
        cardinalities: rows of each embedding table (kept categories + 1).
        columns: input of the shuffle and of the other formats and layouts.
        edges: bin edges that the engine found, by column.
    """

    dataset: Path
    engine: dict[str, Any]
    files: tuple[FileRows, ...]
    rows: dict[Split, int]
    positives: dict[Split, int]
    cardinalities: tuple[int, ...]
    columns: EncodedColumns
    edges: Edges


Engine = Callable[[EngineJob], EngineResult]
