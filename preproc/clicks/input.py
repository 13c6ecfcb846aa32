# SPDX-License-Identifier: Apache-2.0
"""Finds the raw files of a run."""

import re
from pathlib import Path

from preproc.clicks.schema.schema import Schema
from preproc.files.errors import PreprocError
from preproc.files.input_file import PLAIN_OR_COMPRESSED, InputFile
from preproc.files.raw.parts import parts_of
from preproc.files.raw.text_files import as_text

DAY_NAME = re.compile(r"day_(0|[1-9][0-9]*)(?:\.tsv)?(?:\.(?:gz|zst|bz2|xz))?")


def find_inputs(
    path: Path, schema: Schema | None = None, *, by_days: bool
) -> tuple[InputFile, ...]:
    """Returns the raw files of a run, in row order.

    Args:
        path: folder with day_0 ... day_N, or one file; with a schema, a folder of any files.
        schema: may name the files of each split.
        by_days: the last day becomes validation and test, so at least two days are needed.

    Raises:
        PreprocError: there is no suitable file.
    """
    may_be_empty = has_parts(path, schema)
    if not path.exists():
        if schema is not None:
            raise PreprocError(f"`input` {path}: no such file or folder", setting="input")
        raise PreprocError(
            f"`input` {path}: no such file or folder; give a folder with day_0 ... day_23, or one "
            "file in Criteo format (Kaggle train.txt)",
            setting="input",
        )
    if schema is not None:
        files = _find_files(path, schema)
    elif path.is_dir():
        files = _find_days(path, by_days=by_days)
    elif by_days:
        raise PreprocError(
            f"`input` {path}: one file cannot be split by days; give `split_fractions`, for "
            "example 0.8,0.1,0.1, or `preset` kaggle; if the columns are not Criteo's, give a "
            "`schema`, which `infer` drafts",
            settings=("input", "split_fractions", "preset", "schema", "infer"),
        )
    else:
        files = [path]
    for file in files:
        if not file.is_file():
            raise PreprocError(
                f"{file}: is not a regular file; give text, {PLAIN_OR_COMPRESSED}", path=file
            )
        if file.stat().st_size == 0 and not may_be_empty:
            last = ", or leave it out if it is the last day" if by_days else ""
            raise PreprocError(f"{file}: is empty; get the file again{last}", path=file)
    folder = path if path.is_dir() else None
    return tuple(as_text(InputFile.open(f, folder)) for f in files)


def has_parts(path: Path, schema: Schema | None) -> bool:
    """Returns True for a folder whose files are parts of one log; some may have no rows."""
    return schema is not None and not schema.named_files and path.is_dir()


def _find_files(path: Path, schema: Schema) -> list[Path]:
    if schema.named_files:
        return [path / name for name in schema.named_files]
    return parts_of(path) if path.is_dir() else [path]


def _find_days(folder: Path, *, by_days: bool) -> list[Path]:
    days: dict[int, Path] = {}
    try:
        names = sorted(folder.iterdir())
    except OSError as error:
        raise PreprocError(
            f"`input` {folder}: cannot be listed ({error.strerror})", setting="input"
        ) from error
    for file in names:
        match = DAY_NAME.fullmatch(file.name)
        if match is None:
            continue
        day = int(match[1])
        if day in days:
            raise PreprocError(
                f"`input` {folder}: has two files for day {day} ({days[day].name} and "
                f"{file.name}); keep one of them",
                setting="input",
            )
        days[day] = file
    if not days:
        hint = " Give the path of train.txt itself." if (folder / "train.txt").exists() else ""
        raise PreprocError(
            f"`input` {folder}: has no file day_0 ... day_N (plain or .gz, .zst, .bz2, .xz; "
            "day_0.tsv works too); a log with other columns needs a `schema`, which `infer` "
            f"drafts.{hint}",
            settings=("input", "schema", "infer"),
        )
    missing = sorted(set(range(max(days) + 1)) - days.keys())
    if missing:
        raise PreprocError(
            f"`input` {folder}: days must go from 0 to {max(days)} without a gap; missing: "
            f"{', '.join(f'day_{d}' for d in missing)}",
            setting="input",
        )
    if by_days and len(days) < 2:
        raise PreprocError(
            f"`input` {folder}: has only {days[0].name}, but the last day becomes validation "
            "and test; give `split_fractions`, for example 0.8,0.1,0.1",
            settings=("input", "split_fractions"),
        )
    return [days[d] for d in sorted(days)]
