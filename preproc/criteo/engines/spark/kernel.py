# SPDX-License-Identifier: Apache-2.0
"""Kernel mode: executors run the native engine's units, Spark schedules them.

Stages, units and their files are the native engine's own: a scanned unit leaves sorted runs on the
shared storage, a column's runs are merged by one task, an encoded unit is written at its place of
the final columns. So nothing is shuffled, counts never pass through the driver, and an interrupted
run continues with the units that are missing.
"""

import contextlib
import ctypes
import functools
import shutil
import socket
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

from preproc.criteo.dictionaries import Dictionaries
from preproc.criteo.engine import EngineJob, EngineResult
from preproc.criteo.engines.native.encode import (
    EncodedInput,
    EncodePlan,
    check_encode_memory,
    encode_unit,
    finish_encode,
    plan_encode,
)
from preproc.criteo.engines.native.kernel import binding
from preproc.criteo.engines.native.merge import (
    LEAST_MERGE_BYTES,
    map_runs,
    merge_column,
    plan_merge,
)
from preproc.criteo.engines.native.run import assemble
from preproc.criteo.engines.native.scan import (
    LEAST_TABLE_BYTES,
    ScannedInput,
    ScannedUnit,
    check_scanned,
    join_scanned,
    load_unit,
    scan_folder,
    scan_unit,
)
from preproc.criteo.engines.native.units import STREAM_BYTES, NativeSettings, TextUnit, plan_units
from preproc.criteo.rules import REMEDIES, SHORTEST_ROW_BYTES
from preproc.files.budget import memory_error, share_budget
from preproc.files.errors import PreprocError
from preproc.files.input_file import InputFile
from preproc.files.progress import Progress
from preproc.spark.runner import SparkRunner, TaskTally

_ATTEMPT = "attempt-"


def run(engine_job: EngineJob, runner: SparkRunner) -> EngineResult:
    """Prepares a dataset with the C++ kernel on executors.

    Raises:
        PreprocError: executors lack the kernel or the storage, or the input does not allow it.
    """
    if not binding.is_built():
        raise PreprocError(
            "--spark_mode kernel needs the native kernel (make build, needs a C++ compiler); "
            "--spark_mode dataframe does without"
        )
    _check_executors(engine_job, runner)
    settings = NativeSettings(unit_bytes=engine_job.job.spark.unit_bytes())
    units = plan_units(engine_job.inputs, settings)
    scanned = _scan(engine_job, runner, units)
    dictionaries = _merge(engine_job, runner, scanned, settings)
    encoded = _encode(engine_job, runner, scanned, dictionaries)
    engine = {
        "name": "spark",
        "mode": "kernel",
        "spark_version": runner.version,
        "kernel_version": binding.kernel_version(),
    }
    return assemble(engine_job, scanned, dictionaries, encoded, engine)


def _check_executors(engine_job: EngineJob, runner: SparkRunner) -> None:
    """Looks at the executors before any work."""
    workspace = engine_job.workspace
    look = functools.partial(
        _missing_here,
        binding.kernel_version(),
        engine_job.inputs,
        (workspace.root, workspace.staging),
    )
    try:
        found = runner.first_job(lambda: runner.everywhere(look))
    except PreprocError as error:
        if "No module named" not in str(error):
            raise
        raise PreprocError(
            f"{error}; every executor needs this package and its requirements in the Python that "
            "PYSPARK_PYTHON names (docs/preprocessing.md)"
        ) from error
    missing = [message for message in found if message]
    if missing:
        raise PreprocError(missing[0])


def _missing_here(
    kernel_version: int, inputs: tuple[InputFile, ...], folders: tuple[Path, ...], _task: int
) -> str:
    """Returns what this executor lacks, "" if nothing."""
    host = f"executor on {socket.gethostname()}"
    if not binding.is_built():
        return (
            f"{host}: the native kernel is not built there (make build); --spark_mode dataframe "
            "does without"
        )
    if binding.kernel_version() != kernel_version:
        return f"{host}: has another version of this package; install the driver's there"
    for file in inputs:
        if not file.path.is_file() or file.path.stat().st_size != file.size:
            return f"{host}: does not see {file.path} as the driver does; use shared storage"
    for folder in folders:
        try:
            with tempfile.TemporaryFile(dir=folder):
                pass
        except OSError as error:
            return f"{host}: cannot write {folder} ({error.strerror}); use shared storage"
    return ""


class _Counted:
    """What is done of a stage: by earlier runs, and by the tasks so far."""

    def __init__(self, before: TaskTally) -> None:
        self._before = before
        self.now = before

    def update(self, tally: TaskTally) -> None:
        self.now = self._before + tally

    def __call__(self) -> tuple[int, int]:
        return self.now.text_bytes, self.now.rows


def _tally(unit: ScannedUnit) -> TaskTally:
    result = unit.result
    return TaskTally(result.text_bytes, result.rows, result.lines, unit.bad)


def _scan(engine_job: EngineJob, runner: SparkRunner, units: tuple[TextUnit, ...]) -> ScannedInput:
    job = engine_job.job
    folder = scan_folder(engine_job, units)
    _remove_attempts(folder)

    def load() -> dict[TextUnit, ScannedUnit]:
        found = {unit: load_unit(folder, unit, unit.name) for unit in units}
        return {unit: scanned for unit, scanned in found.items() if scanned is not None}

    done = load()
    missing = [unit for unit in units if unit not in done]
    counted = _Counted(sum((_tally(u) for u in done.values()), TaskTally()))
    total = sum(u.text_bytes for u in units)

    def watch(tally: TaskTally) -> None:
        counted.update(tally)
        unread = max(total - counted.now.text_bytes, 0)
        most_rows = counted.now.lines + unread // SHORTEST_ROW_BYTES
        if counted.now.bad > job.max_bad_fraction * most_rows:
            check_scanned(load(), units, job.max_bad_fraction)

    _, table_bytes = share_budget(
        job.memory_limit, runner.task_cpus, STREAM_BYTES + LEAST_TABLE_BYTES
    )
    work = functools.partial(
        _scan_here, job.semantics.category_modulus, folder, table_bytes - STREAM_BYTES
    )
    with engine_job.reporter.stage("scan", total, counted):
        runner.run_tasks(missing, work, watch)
    return join_scanned(engine_job, folder, units, load())


def _scan_here(
    modulus: int | None,
    folder: Path,
    table_bytes: int,
    unit: TextUnit,
    progress: Progress,
) -> TaskTally:
    scanned = load_unit(folder, unit, unit.name)  # by an attempt whose answer was lost
    if scanned is None:
        with _attempt(folder) as private:
            scanned = scan_unit(modulus, private, unit, unit.name, table_bytes, progress)
            # The record last: it says that the others are there.
            for suffix in ("runs", "rejects", "json"):
                name = f"{unit.name}.{suffix}"
                (private / name).replace(folder / name)
    return _tally(scanned)


def _merge(
    engine_job: EngineJob, runner: SparkRunner, scanned: ScannedInput, settings: NativeSettings
) -> Dictionaries:
    job = engine_job.job
    units, dictionaries = plan_merge(engine_job, scanned, settings)
    missing = dictionaries.missing()
    if not missing:
        return dictionaries
    _remove_attempts(dictionaries.folder)
    sizes = [sum(run.nbytes for run in runs) for runs in map_runs(units)]
    missing.sort(key=lambda column: -sizes[column])  # so that tasks end together
    counted = _Counted(TaskTally())
    work = functools.partial(
        _merge_here,
        units,
        dictionaries,
        max(job.semantics.frequency_limit, 1),
        job.memory_limit,
        runner.task_cpus,
    )
    with engine_job.reporter.stage("merge", sum(sizes[c] for c in missing), counted):
        runner.run_tasks(missing, work, counted.update)
    return dictionaries


def _merge_here(
    units: list[ScannedUnit],
    dictionaries: Dictionaries,
    frequency_limit: int,
    memory_limit: int,
    threads: int,
    column: int,
    progress: Progress,
) -> TaskTally:
    runs = map_runs(units)[column]
    path = dictionaries.path(column)
    _, budget = share_budget(memory_limit, threads, LEAST_MERGE_BYTES)
    with _attempt(path.parent) as private:
        needed = merge_column(runs, private / path.name, frequency_limit, budget, progress)
        if needed:
            needed = memory_limit + (needed - budget) * threads
            raise memory_error(memory_limit, needed, REMEDIES)
        (private / path.name).replace(path)
    return TaskTally(text_bytes=sum(run.nbytes for run in runs))


def _encode(
    engine_job: EngineJob, runner: SparkRunner, scanned: ScannedInput, dictionaries: Dictionaries
) -> EncodedInput:
    plan = plan_encode(engine_job, scanned, dictionaries)
    missing = plan.missing()
    todo = sum((_tally(plan.units[i]) for i in missing), TaskTally())
    total = sum(u.result.text_bytes for u in plan.units)
    before = TaskTally(total - todo.text_bytes, plan.first_rows[-1] - todo.rows)
    counted = _Counted(before)
    if missing:
        work = functools.partial(_encode_here, plan, dictionaries, engine_job.job.memory_limit)
        with engine_job.reporter.stage("encode", total, counted), plan.columns.open():
            runner.run_tasks(missing, work, counted.update)
    return finish_encode(plan, dictionaries)


def _encode_here(
    plan: EncodePlan,
    dictionaries: Dictionaries,
    memory_limit: int,
    index: int,
    progress: Progress,
) -> TaskTally:
    tables = _open_tables.get(dictionaries, memory_limit)
    with plan.columns.open():
        clicks = encode_unit(plan, index, tables, progress)
    plan.stage.write_record(plan.units[index].unit.name, clicks)  # after the rows are on disk
    return _tally(plan.units[index])


class _OpenTables:
    """The dictionaries of the last job, kept for the further tasks of this worker process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._folder: Path | None = None
        self._tables: ctypes.Array[ctypes.c_void_p] | None = None
        self._stack = contextlib.ExitStack()

    def get(self, dictionaries: Dictionaries, memory_limit: int) -> "ctypes.Array[ctypes.c_void_p]":
        with self._lock:
            if self._tables is None or self._folder != dictionaries.folder:
                self._stack.close()
                self._tables = None
                check_encode_memory(memory_limit, dictionaries)
                opened = binding.open_dictionaries(dictionaries.load())
                self._tables = self._stack.enter_context(opened)
                self._folder = dictionaries.folder
            return self._tables


_open_tables = _OpenTables()


@contextlib.contextmanager
def _attempt(folder: Path) -> Iterator[Path]:
    """Yields a folder of this attempt alone: a lost executor may still be at the same unit."""
    private = Path(tempfile.mkdtemp(prefix=_ATTEMPT, dir=folder))
    try:
        yield private
    finally:
        shutil.rmtree(private, ignore_errors=True)


def _remove_attempts(folder: Path) -> None:
    for left in folder.glob(_ATTEMPT + "*"):
        shutil.rmtree(left, ignore_errors=True)
