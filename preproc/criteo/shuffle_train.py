# SPDX-License-Identifier: Apache-2.0
"""The stage after an engine that shuffles the training split (`--shuffle_seed`).

Engines leave rows in input order; this one stage permutes them, so that all engines agree. It
never changes what the engine staged, which an interrupted run still looks at: the shuffled dataset
is a second folder, where the other splits are links to the engine's files.
"""

import dataclasses
import shutil
import time
from pathlib import Path

from preproc.criteo.engine import EncodedColumns, EngineJob, EngineResult
from preproc.criteo.rules import Split
from preproc.criteo.shuffle import ColumnFile, shuffle_columns
from preproc.files.linked_files import link_files
from preproc.files.workspace import boot_id, settings_key

TRAIN: Split = "train"


def shuffle_train(engine_job: EngineJob, result: EngineResult, seed: int) -> EngineResult:
    """Returns the same dataset with the training split in the order of its shuffle keys.

    Args:
        engine_job: what to do.
        result: of the engine, every split in input order.
        seed: of the keys.

    Raises:
        PreprocError: the memory limit is too small.
    """
    columns = result.columns
    sources = sorted((columns.folder / TRAIN).glob("*.bin"))
    folder = _work_folder(
        result.dataset.parent / "shuffle",
        seed,
        sources + ([] if columns.float32 is None else [columns.float32 / TRAIN]),
    )
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
    for file in files:
        file.target.parent.mkdir(parents=True, exist_ok=True)
        file.target.touch()
    if rows := result.rows[TRAIN]:
        state = folder / "state"
        state.mkdir(exist_ok=True)
        job = engine_job.job
        shuffle_columns(
            files, rows, seed, state, job.memory_limit, job.threads, engine_job.reporter
        )
    for source, target in {(result.dataset, dataset), *moves}:
        link_files(source, target, but={TRAIN})
    return dataclasses.replace(result, dataset=dataset, columns=shuffled)


def _work_folder(parent: Path, seed: int, sources: list[Path]) -> Path:
    """Returns the folder of a shuffle of the very files that the engine made.

    Another seed, files written anew, or a restart of the machine (before which what was written
    may not have reached the disk) leave work of no use behind, which is removed.
    """
    stats = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in sources]
    key = settings_key({"seed": seed, "files": stats, "boot": boot_id() or time.time_ns()})
    parent.mkdir(exist_ok=True)
    for other in parent.iterdir():
        if other.name != key:
            shutil.rmtree(other)
    folder = parent / key
    folder.mkdir(exist_ok=True)
    return folder
