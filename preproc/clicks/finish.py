# SPDX-License-Identifier: Apache-2.0
"""Stages after the engine: shuffle, parquet, manifest and final rename."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from preproc.clicks.engine import EncodedColumns, EngineJob, EngineResult
from preproc.clicks.growth.days import Growth
from preproc.clicks.growth.eviction import write_occurrences
from preproc.clicks.layouts.lists import take_lists
from preproc.clicks.layouts.npy import write_days
from preproc.clicks.layouts.torchrec import dataset_spec, write_wide
from preproc.clicks.rules import Split
from preproc.clicks.shuffle import ColumnFile, shuffle_columns
from preproc.files.days import CHECKSUM
from preproc.files.workspace import link_files
from recsys.data.feature_spec import FeatureSpec
from recsys.data.list_columns import OFFSET, ListFiles
from recsys.data.manifest import CLICKS_KIND, CRITEO_KIND, Manifest, fingerprint
from recsys.data.positioned_io import map_array

TRAIN: Split = "train"
_CHUNK_ROWS = 1 << 20


def finalize(engine_job: EngineJob, result: EngineResult, semantics: dict[str, Any]) -> Path:
    """Completes the staged dataset and moves it to the output folder, which it returns.

    `semantics` are the settings that the manifest records.
    """
    if engine_job.growth is not None and engine_job.job.semantics.evict_after is not None:
        _record_occurrences(engine_job, engine_job.growth, result)
    result = _complete(engine_job, result)
    job, dataset = engine_job.job, result.dataset
    dataset_spec(job, result.cardinalities).save(dataset, wide=job.layout == "torchrec")
    total = sum(p.stat().st_size for p in dataset.rglob("*") if p.is_file())
    done = 0
    with engine_job.reporter.stage("finish", total, lambda: (done, 0)):
        files = Manifest.describe_files(dataset)
        done = total
    growth = engine_job.growth
    sources: list[dict[str, Any]] = [
        {"name": source.name, "bytes": source.size, "rows": counts.rows}
        | {"rejected": sum(counts.rejected.values())}
        for source, counts in zip(engine_job.inputs, result.files, strict=True)
    ]
    for source, checksum in zip(sources, growth.checksums if growth else (), strict=False):
        source[CHECKSUM] = checksum
    Manifest(
        kind=CRITEO_KIND if job.semantics.schema is None else CLICKS_KIND,
        engine=result.engine,
        semantics=semantics,
        source_files=sources,
        rows={str(k): v for k, v in result.rows.items()},
        positives={str(k): v for k, v in result.positives.items()},
        rejected={
            reason: sum(file.rejected[reason] for file in result.files)
            for reason in job.semantics.reject_reasons
        },
        cardinalities=list(result.cardinalities),
        files=files,
        fingerprint=fingerprint(files),
        history=[] if growth is None else growth.history,
    ).save(dataset)
    is_labelled, schema = not job.semantics.unlabelled, job.semantics.schema
    engine_job.reporter.note(
        ", ".join(
            f"{split} {rows:,} rows"
            + (f" with {result.positives[split] / rows:.1%} clicks" if is_labelled else "")
            for split, rows in result.rows.items()
            if rows
        )
    )
    if schema is not None and is_labelled and not any(result.positives.values()):
        named = ", ".join(map(repr, schema.positive))
        engine_job.reporter.note(f"no row is a click: does the file contain `positive` {named}?")
    empty = [split for split, rows in result.rows.items() if not rows]
    if empty and job.semantics.split_rows is None:
        engine_job.reporter.note(f"no row for the split {', '.join(empty)}: the input is too small")
    spec = job.semantics.feature_spec(result.cardinalities)
    if spec.lists:
        engine_job.reporter.note(_list_lengths(dataset, spec, result.rows))
    engine_job.workspace.publish(dataset, engine_job.reporter.note)
    return job.output


def _record_occurrences(engine_job: EngineJob, growth: Growth, result: EngineResult) -> None:
    """Writes when each category last occurred, see `write_occurrences`."""
    semantics, sizes = engine_job.job.semantics, result.cardinalities
    spec = semantics.feature_spec(sizes)
    dtypes = [feature.dtype for feature in (*spec.categorical, *spec.lists)]
    columns = result.columns.folder
    write_occurrences(growth, result.dataset, columns, sizes, dtypes, semantics.vocabularies)


def _list_lengths(dataset: Path, spec: FeatureSpec, rows: Mapping[Split, int]) -> str:
    """Returns how long the lists are, and which columns never have two elements."""
    split = max(rows, key=lambda split: rows[split])
    texts, short = [], []
    for number, feature in enumerate(spec.lists, start=len(spec.categorical)):
        offsets = map_array(ListFiles.of(dataset / split, number).offsets, OFFSET)
        starts = range(0, rows[split], _CHUNK_ROWS)
        longest = max(int(np.diff(offsets[at : at + _CHUNK_ROWS + 1]).max()) for at in starts)
        texts.append(f"{feature.name} {offsets[-1] / rows[split]:.1f} (up to {longest})")
        short += [feature.name] if longest < 2 else []
    doubt = f"; {', '.join(short)}: is `separator` the one in the file?" if short else ""
    return f"elements per list: {', '.join(texts)}{doubt}"


def _complete(engine_job: EngineJob, result: EngineResult) -> EngineResult:
    """Shuffles the staged dataset and writes its further formats and layouts."""
    job = engine_job.job
    if job.semantics.shuffle_seed is not None and not result.columns.is_shuffled:
        result = shuffle_train(engine_job, result, job.semantics.shuffle_seed)
    if "parquet" in job.format:
        from preproc.clicks.layouts import parquet  # imports PyArrow: 40 MiB, a third of a second

        parquet.write_splits(engine_job, result)
    if "npy" in job.format:
        write_days(engine_job, result)
    if "split" in job.format and job.layout == "torchrec":
        write_wide(engine_job, result)
    return result


def shuffle_train(engine_job: EngineJob, result: EngineResult, seed: int) -> EngineResult:
    """Stages a copy of the dataset with a shuffled training split.

    The engine's folder is left unchanged, so that a run can be resumed. In the copy, the files of
    the other splits are hard links to the engine's.

    Raises:
        PreprocError: the memory limit is too small.
    """
    columns = result.columns
    spec = engine_job.job.semantics.feature_spec(result.cardinalities)
    of_lists = {
        path.name
        for number in range(len(spec.categorical), len(spec.table_sizes))
        for path in dataclasses.astuple(ListFiles.of(columns.folder, number))
    }
    paths = sorted((columns.folder / TRAIN).glob("*.bin"))
    sources = [path for path in paths if path.name not in of_lists]
    folder = result.dataset.parent / "shuffle"
    dataset = folder / "dataset"
    shuffled = EncodedColumns(
        dataset if columns.folder == result.dataset else folder / "columns",
        None if columns.float32 is None else folder / "float32",
        is_shuffled=True,
    )
    moves = [(columns.folder, shuffled.folder)]
    files = [ColumnFile(path, shuffled.folder / TRAIN / path.name) for path in sources]
    if columns.float32 is not None and shuffled.float32 is not None:
        moves.append((columns.float32, shuffled.float32))
        files.append(ColumnFile(columns.float32 / TRAIN, shuffled.float32 / TRAIN))
    if spec.lists:
        folder.mkdir(parents=True, exist_ok=True)
        numbers = folder / "numbers.bin"
        with numbers.open("wb") as written:
            for start in range(0, result.rows[TRAIN], _CHUNK_ROWS):
                end = min(start + _CHUNK_ROWS, result.rows[TRAIN])
                written.write(np.arange(start, end, dtype=np.uint64).data)
        files.append(ColumnFile(numbers, folder / "shuffled_numbers.bin"))
    for file in files:
        file.target.parent.mkdir(parents=True, exist_ok=True)
        file.target.touch()
    if rows := result.rows[TRAIN]:
        state = folder / "state"
        state.mkdir(parents=True, exist_ok=True)
        job = engine_job.job
        shuffle_columns(
            files, rows, seed, state, job.memory_limit, job.threads, engine_job.reporter
        )
    if spec.lists:
        rows_before = map_array(files[-1].target, np.dtype(np.uint64))
        take_lists(columns.folder / TRAIN, shuffled.folder / TRAIN, spec, rows_before)
    for source, target in {(result.dataset, dataset), *moves}:
        link_files(source, target, but={TRAIN})
    return dataclasses.replace(result, dataset=dataset, columns=shuffled)
