# SPDX-License-Identifier: Apache-2.0
"""Runs the preprocessing of ratings, from the first checks to the final rename."""

import collections
import importlib
import itertools
import shutil
from pathlib import Path
from typing import Any

from preproc.files.days import refuse_known
from preproc.files.disk import DiskNeeds
from preproc.files.errors import PreprocError
from preproc.files.input_file import InputFile
from preproc.files.progress import ProgressReporter
from preproc.files.quarantine import QUARANTINE_FILE, RejectedRow, write_quarantine
from preproc.files.raw.parts import files_text
from preproc.files.workspace import Workspace, check_output
from preproc.ratings.engines import ENGINES
from preproc.ratings.format import RatingsFormat
from preproc.ratings.growth import RatingsSoFar, both
from preproc.ratings.header import unread_times
from preproc.ratings.input import detect_format, find_files, lists_as_items
from preproc.ratings.job import GIVEN, HOW_TO_READ, RatingsJob
from preproc.ratings.numbering import KnownItems, hold_out
from preproc.ratings.read import CHUNK_BYTES, ReadRows, Sink, nothing_left, read_ratings
from preproc.ratings.stages import EngineRows, Filtered, OpenRows, run_stages
from preproc.ratings.titles import Titles, titles_of
from recsys.data.manifest import SEQUENCES_KIND, Manifest, file_checksum, fingerprint
from recsys.data.sequences.files import write_sequences
from recsys.data.sequences.split import DICTIONARIES, split_rows
from recsys.data.sequences.titles import write_titles

_OUTPUT_ROW_BYTES = 12


def prepare(job: RatingsJob, chunk_bytes: int = CHUNK_BYTES) -> Path:
    """Makes a dataset of sequences from a ratings file; returns its folder.

    `chunk_bytes` are the bytes of text to read at a time; they do not affect the result.

    Raises:
        PreprocError: the input, the settings or the machine do not allow it.
    """
    check_output(job.output, job.input, None, overwrite=job.overwrite)
    files = find_files(job)
    layout, row_bytes = detect_format(job, files)
    job = job.resolve(layout)
    titles = titles_of(job, files[0], layout)
    known = None if job.dictionaries is None else KnownItems.of(job.dictionaries)
    growth = None if job.extend is None else _grown(job, files)
    num_rows = sum(file.text_bytes for file in files) / row_bytes
    needs = DiskNeeds(
        {job.output: num_rows * _OUTPUT_ROW_BYTES}, num_rows, "or choose `output` on another disk"
    )
    needs.check()
    reporter = ProgressReporter(job.progress)
    _report_input(job, layout, files, reporter)
    with (
        needs.explained("nothing was written"),
        Workspace(job.output, None).locked(resumable=False) as workspace,
    ):
        open_rows: OpenRows = importlib.import_module(ENGINES[job.engine]).open_rows
        with open_rows(job, workspace.root, reporter) as rows:
            keep = () if known is None else (known.keep,)
            add = rows.add if growth is None else _after_earlier_days(growth, layout, rows)
            read = read_ratings(job, files, layout, reporter, chunk_bytes, add, *keep)
            _require_rows(job, read, growth)
            read.num_rows += 0 if growth is None else growth.num_earlier
            for file in files:
                file.check_unchanged()
            filtered = run_stages(job, rows, read, reporter)
        filtered = _numbered(job, layout, filtered, known, growth, reporter)
        dataset = workspace.staging_dir("sequences") / "dataset"
        shutil.rmtree(dataset, ignore_errors=True)  # left by a run that was killed
        dataset.mkdir()
        write_sequences(dataset, filtered.sequences, filtered.users, filtered.items)
        if titles is not None:
            earlier = [] if growth is None else growth.titles()
            _write_titles(dataset, titles, filtered, earlier, reporter)
        if growth is not None:
            growth.write(dataset, layout)
        if read.rejected:
            write_quarantine(dataset / QUARANTINE_FILE, read.rejected)
        semantics = _semantics(job, layout.name, layout.read_columns)
        if known is not None:
            semantics[DICTIONARIES] = known.fingerprints
        sources = [
            _source(file, valid, sum(row.file == file.name for row in read.rejected))
            for file, valid in zip(files, read.valid_rows, strict=True)
        ]
        if titles is not None:
            sources.append(_source(titles.file, len(titles.by_raw_id), 0))
        history = [] if growth is None else growth.history
        _save_manifest(dataset, rows.engine, semantics, sources, read.rejected, filtered, history)
        for file in [*files, *([] if titles is None else [titles.file])]:
            file.check_unchanged()  # the manifest now has its checksum
        workspace.publish(dataset, reporter.note)
    return job.output


def _require_rows(job: RatingsJob, read: ReadRows, growth: RatingsSoFar | None) -> None:
    """Refuses input of which no row reaches `min_rating`."""
    if read.num_left:
        return
    if growth is None or growth.last is None:
        raise nothing_left(job, read.num_rows)
    raise PreprocError(
        f"{job.input}: none of {read.num_rows:,} interactions reaches `min_rating` "
        f"{job.min_rating:g}, which the first day of `extend` {job.extend} set; this day would add "
        "nothing: leave it out",
        settings=("min_rating", "extend"),
    )


def _after_earlier_days(growth: RatingsSoFar, layout: RatingsFormat, rows: EngineRows) -> Sink:
    """Adds the rows of earlier days; returns the sink for those of the new one."""
    for earlier in growth.earlier_rows(layout):
        rows.add(earlier)
    return both(growth.keep, rows.add)


def _numbered(
    job: RatingsJob,
    layout: RatingsFormat,
    filtered: Filtered,
    known: KnownItems | None,
    growth: RatingsSoFar | None,
    reporter: ProgressReporter,
) -> Filtered:
    """Numbers the items like other datasets, and holds out those after a cut in time."""
    if known is not None:
        filtered = known.number(filtered)
        left_out = f"left out {known.num_left_out:,} rows of items that `dictionaries` lacks"
        reporter.note(left_out)
    if growth is not None:
        filtered = growth.number(filtered)
    if job.quantile is not None:
        filtered = hold_out(
            filtered,
            job.quantile,
            real_times=layout.real_times,
            keep_numbers=known is not None or growth is not None,
        )
        counts = filtered.statistics
        reporter.note(
            f"cut at {counts['cut']}: {counts['before_cut']:,} interactions before; "
            f"{counts['cold_users']:,} users and {counts['cold_items']:,} items are cold"
        )
    return filtered


def _grown(job: RatingsJob, files: tuple[InputFile, ...]) -> RatingsSoFar:
    """Returns the days that a job adds to.

    Raises:
        UserError: they cannot be extended, or have read one of the files.
    """
    assert job.extend is not None
    growth = RatingsSoFar.of(job.extend)
    checksums = {file.path: file_checksum(file.path) for file in files}
    refuse_known(job.extend, checksums, growth.history)
    return growth


def _report_input(
    job: RatingsJob, layout: RatingsFormat, files: tuple[InputFile, ...], reporter: ProgressReporter
) -> None:
    """Reports which files are read, and how."""
    source = files[0].path
    if job.input.is_dir() and len(files) > 1:
        source = job.input
        reporter.note(files_text(source, [file.path for file in files]))
    note = (
        f"{source}: {job.source.name} {layout.name} with the columns "
        f"{', '.join(layout.read_columns)}{'' if layout.has_timestamps else ' in file order'}; "
        f"`min_rating` {job.min_rating:g} `min_user_count` "
        f"{job.min_user_count} `min_item_count` {job.min_item_count} `kcore` {job.kcore}"
    )
    reporter.note(note)
    warner = reporter if job.progress != "none" else ProgressReporter("auto")
    if lists := lists_as_items(files[0], layout):
        warner.note(lists)
    if unread := unread_times(layout):
        warner.note(
            f"{source}: no column is used as time, so histories are in the order of the file; if "
            f"{' or '.join(unread)} holds the times, add timestamp={unread[0]} to `columns`"
        )


def _semantics(job: RatingsJob, layout: str, columns: tuple[str, ...]) -> dict[str, Any]:
    given = {name: getattr(job, name) for name in HOW_TO_READ if getattr(job, name) != "auto"}
    if job.has_own_schema:
        del given["format"]  # a path of this machine
    return {
        "source": job.source.name,
        "format": layout,
        "columns": list(columns),
        "min_rating": job.min_rating,
        "min_user_count": job.min_user_count,
        "min_item_count": job.min_item_count,
        "kcore": job.kcore,
        "order": "timestamp, then file order" if "timestamp" in columns else "file order",
        "split": job.split,
    } | ({GIVEN: given} if given else {})


def _write_titles(
    dataset: Path,
    titles: Titles,
    filtered: Filtered,
    earlier: list[str],
    reporter: ProgressReporter,
) -> None:
    """Writes the titles of the items that passed the filters.

    The first items may have `earlier` titles, of the day before.

    Raises:
        PreprocError: none of the items has a title.
    """
    found = titles.of(filtered.items.raw.to_pylist())
    chosen = [new or old for new, old in itertools.zip_longest(found, earlier, fillvalue="")]
    if not any(chosen):
        raise PreprocError(
            f"{titles.file.path}: has no title for any item of the ratings; name the right file, "
            "or set `titles` none"
        )
    write_titles(dataset, chosen)
    named = sum(map(bool, chosen))
    reporter.note(f"titles of {named:,} of {len(chosen):,} items from {titles.file.path}")


def _save_manifest(
    dataset: Path,
    engine: dict[str, Any],
    semantics: dict[str, Any],
    sources: list[dict[str, Any]],
    rejected: list[RejectedRow],
    filtered: Filtered,
    history: list[dict[str, Any]],
) -> None:
    files = Manifest.describe_files(dataset)
    Manifest(
        kind=SEQUENCES_KIND,
        engine=engine,
        semantics=semantics,
        source_files=sources,
        rows=split_rows(filtered.statistics),
        positives={},
        rejected=dict(sorted(collections.Counter(row.reason for row in rejected).items())),
        cardinalities=[len(filtered.items) + 1],
        files=files,
        fingerprint=fingerprint(files),
        statistics=filtered.statistics,
        history=history,
    ).save(dataset)


def _source(file: InputFile, rows: int, rejected: int) -> dict[str, Any]:
    return {
        "name": file.name,
        "bytes": file.size,
        "rows": rows,
        "rejected": rejected,
        "xxh3_128": file_checksum(file.path),
    }
