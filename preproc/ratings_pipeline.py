# SPDX-License-Identifier: Apache-2.0
"""One ratings run: look before working, read, filter, order, write, one rename at the end.

Peak memory is about 45 bytes for each row at or above --min_rating, plus each raw id twice, plus
about 200 MiB.
"""

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dataspec.manifest import Manifest, file_checksum, fingerprint
from dataspec.sequences import RawIds, Sequences, write_sequences
from dataspec.sequences_fingerprint import split_fingerprint
from preproc.errors import PreprocError
from preproc.input_file import InputFile
from preproc.kcore import kcore
from preproc.output_folder import check_output, existing_folder
from preproc.progress import ProgressReporter
from preproc.quarantine import QUARANTINE_FILE, BadRow, write_quarantine
from preproc.ratings_ids import dense_items, dense_users
from preproc.ratings_input import detect_format, find_file
from preproc.ratings_job import RatingsJob
from preproc.ratings_read import CHUNK_BYTES, Ratings, read_ratings
from preproc.workspace import Workspace

_OUTPUT_ROW_BYTES = 12


@dataclasses.dataclass(frozen=True, slots=True)
class Filtered:
    """What the filters left.

    Attributes:
        sequences: histories in dense ids.
        users: what the user ids stand for.
        items: what the item ids stand for.
        statistics: figures for the manifest.
    """

    sequences: Sequences
    users: RawIds
    items: RawIds
    statistics: dict[str, Any]


def prepare(job: RatingsJob, chunk_bytes: int = CHUNK_BYTES) -> Path:
    """Makes a dataset of sequences from a ratings file.

    Args:
        job: what to do.
        chunk_bytes: text read at a time; the result does not depend on it.

    Returns:
        The dataset folder.

    Raises:
        PreprocError: input, settings or machine do not allow it.
    """
    check_output(job.output, job.input, None, overwrite=job.overwrite)
    file = find_file(job)
    layout, row_bytes = detect_format(job, file)
    job = job.resolve(layout)
    _check_disk(job, file.text_bytes / row_bytes)
    reporter = ProgressReporter(job.progress)
    reporter.note(
        f"{file.path}: {job.source.name} {layout.name} with the columns "
        f"{', '.join(layout.columns)}; --min_rating {job.min_rating:g} --min_user_count "
        f"{job.min_user_count} --min_item_count {job.min_item_count} --kcore {job.kcore}"
    )
    with Workspace(job.output, None).locked(resumable=False) as workspace:
        ratings = read_ratings(job, file, layout, reporter, chunk_bytes)
        num_rows, bad = ratings.num_rows, ratings.bad
        if InputFile.open(file.path).identity != file.identity:
            raise PreprocError(f"{file.path}: changed while it was read; run the command again")
        filtered = order_sequences(job, ratings, reporter)
        dataset = workspace.staging_dir("sequences") / "dataset"
        shutil.rmtree(dataset, ignore_errors=True)  # of a run that was killed
        dataset.mkdir()
        write_sequences(dataset, filtered.sequences, filtered.users, filtered.items)
        if bad:
            write_quarantine(dataset / QUARANTINE_FILE, bad)
        semantics = _semantics(job, layout.name, layout.columns)
        _save_manifest(dataset, semantics, file, num_rows, bad, filtered)
        workspace.publish(dataset)
    return job.output


def order_sequences(job: RatingsJob, ratings: Ratings, reporter: ProgressReporter) -> Filtered:
    """Filters and orders what was read; `ratings` is emptied on the way.

    Raises:
        PreprocError: nothing is left.
    """
    assert job.min_user_count is not None
    assert job.min_item_count is not None
    users, raw_users = ratings.users.finish()
    items, raw_items = ratings.items.finish()
    timestamps = ratings.take_timestamps()
    pa.default_memory_pool().release_unused()  # what follows is NumPy's
    before = len(users)
    kept, passes = kcore(
        users,
        items,
        min_user_count=job.min_user_count,
        min_item_count=job.min_item_count,
        kind=job.kcore,
    )
    if kept is not None:
        users, items = users[kept], items[kept]
        timestamps = None if timestamps is None else timestamps[kept]
        del kept
    if not len(users):
        raise PreprocError(
            f"{job.input}: no interaction is left of {ratings.num_rows:,} after --min_rating "
            f"{job.min_rating:g}, --min_user_count {job.min_user_count} and --min_item_count "
            f"{job.min_item_count} ({job.kcore}); lower them"
        )
    # Columns are let go of as soon as they are used: they decide the peak of memory.
    user_ids, user_map = dense_users(users, raw_users)
    del users
    keys = time_keys(user_ids, timestamps)
    del user_ids, timestamps
    order = np.argsort(keys, kind="stable")
    del keys
    item_ids, item_map = dense_items(items, raw_items)
    del items
    offsets = np.zeros(len(user_map) + 1, np.int64)
    np.cumsum(user_map.counts, out=offsets[1:])
    sequences = Sequences(item_ids[order], offsets, len(item_map))
    del order
    statistics = {
        "users": len(user_map),
        "items": len(item_map),
        "interactions": len(item_ids),
        "dropped_by_min_rating": ratings.below_min_rating,
        "dropped_by_kcore": before - len(item_ids),
        "kcore_passes": passes,
        "split_fingerprint": split_fingerprint(sequences, user_map, item_map),
    }
    reporter.note(
        f"{len(user_map):,} users, {len(item_map):,} items, {len(item_ids):,} interactions; "
        f"dropped {ratings.below_min_rating:,} by rating, {before - len(item_ids):,} by {passes} "
        "k-core passes"
    )
    return Filtered(sequences, user_map, item_map, statistics)


def time_keys(
    users: npt.NDArray[np.int32], timestamps: npt.NDArray[np.int64] | None
) -> npt.NDArray[np.integer[Any]]:
    """Returns keys whose stable order is that by user, then time, then file order.

    One key is sorted many times faster than two are.

    Args:
        users: [n] dense ids.
        timestamps: [n]; None means that the file is in time order.
    """
    if timestamps is None:
        return users
    first, last = int(timestamps.min()), int(timestamps.max())
    bits = (last - first).bit_length()
    if int(users.max()).bit_length() + bits > 63:  # times far apart: their ranks are enough
        distinct, timestamps = np.unique(timestamps, return_inverse=True)
        first, bits = 0, len(distinct).bit_length()
    keys = users.astype(np.int64)
    keys <<= bits
    keys += timestamps
    keys -= first
    return keys


def _semantics(job: RatingsJob, layout: str, columns: tuple[str, ...]) -> dict[str, Any]:
    return {
        "source": job.source.name,
        "format": layout,
        "columns": list(columns),
        "min_rating": job.min_rating,
        "min_user_count": job.min_user_count,
        "min_item_count": job.min_item_count,
        "kcore": job.kcore,
        "order": "timestamp, then file order" if "timestamp" in columns else "file order",
        "split": "leave_one_out",
    }


def _save_manifest(
    dataset: Path,
    semantics: dict[str, Any],
    file: InputFile,
    num_rows: int,
    bad: list[BadRow],
    filtered: Filtered,
) -> None:
    files = Manifest.describe_files(dataset)
    users = len(filtered.users)
    Manifest(
        kind="sequences",
        engine={"name": "pyarrow", "version": pa.__version__},
        semantics=semantics,
        source_files=[
            {
                "name": file.path.name,
                "bytes": file.size,
                "rows": num_rows,
                "rejected": len(bad),
                "xxh3_128": file_checksum(file.path),
            }
        ],
        rows={
            "train": filtered.statistics["interactions"] - 2 * users,
            "validation": users,
            "test": users,
        },
        positives={},
        rejected={r: sum(b.reason == r for b in bad) for r in sorted({b.reason for b in bad})},
        cardinalities=[len(filtered.items) + 1],
        files=files,
        fingerprint=fingerprint(files),
        statistics=filtered.statistics,
    ).save(dataset)


def _check_disk(job: RatingsJob, rows: float) -> None:
    folder = existing_folder(job.output)
    need, free = rows * _OUTPUT_ROW_BYTES, shutil.disk_usage(folder).free
    if need > free:
        raise PreprocError(
            f"{folder}: about {need / 1e6:,.0f} MB are needed for {rows:,.0f} rows, "
            f"{free / 1e6:,.0f} MB are free; make room, or choose --output on another disk"
        )
