# SPDX-License-Identifier: Apache-2.0
"""The Spark engine: a cluster's executors run the native engine's units.

Stages, units and their files are those of the native engine. Scanning a unit writes sorted runs to
the shared storage, one task merges the runs of a column, and encoding a unit writes its rows of the
final columns. So nothing is shuffled, counts never pass through the driver, and a resumed run does
only the missing units. Driver and executors must see input, output and work folder under the same
paths.
"""

import dataclasses
import functools
import socket
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from preproc.clicks.engine import EngineJob, EngineResult
from preproc.clicks.engines.native.run import run_stages
from preproc.clicks.engines.native.units import NativeSettings
from preproc.clicks.kernel import binding
from preproc.files.budget import Threads, Unit, Work, nothing
from preproc.files.errors import PreprocError
from preproc.files.input_file import InputFile
from preproc.files.progress import Progress, Tally
from preproc.spark import session as spark_session
from preproc.spark.runner import SparkRunner
from recsys.installation import command_for

_KERNEL = f"{command_for('kernels')} adds it"


def run(engine_job: EngineJob) -> EngineResult:
    """Prepares a dataset on Spark.

    Raises:
        PreprocError: an executor lacks the kernel or the storage, or a unit failed.
    """
    if not binding.is_built():
        raise PreprocError(f"`engine` spark needs the native kernel: {_KERNEL}", setting="engine")
    # Executors have other working directories.
    inputs = tuple(dataclasses.replace(f, path=f.path.absolute()) for f in engine_job.inputs)
    engine_job = dataclasses.replace(engine_job, inputs=inputs)
    with spark_session.connect(engine_job.job.spark) as runner:
        return _run_on(runner, engine_job)


def _run_on(runner: SparkRunner, engine_job: EngineJob) -> EngineResult:
    _check_executors(engine_job, runner)
    settings = NativeSettings(unit_bytes=engine_job.job.spark.unit_bytes())
    engine = {
        "name": "spark",
        "spark_version": runner.version,
        "kernel_version": binding.kernel_version(),
    }
    executor = SparkExecutor(runner.task_cpus, engine_job.job.memory_limit, runner)
    return run_stages(engine_job, executor, settings, engine)


@dataclasses.dataclass(frozen=True, slots=True)
class SparkExecutor(Threads):
    """Runs units in Spark tasks, one unit per core of a task.

    Attributes:
        threads: cores of a task.
        memory_limit: bytes of anonymous memory of each task's Python process.
        runner: starts the tasks.
    """

    runner: SparkRunner

    def map(
        self,
        work: Work[Unit],
        units: Sequence[Unit],
        least_bytes: int,
        progress: Progress,
        *,
        prepare: Callable[[], None] = nothing,
        watch: Callable[[Tally], None] = nothing,
    ) -> Tally:
        """Runs `work` on every unit; see `Threads.map`."""
        before = Tally(progress.bytes, progress.rows)

        def follow(tally: Tally) -> None:
            now = before + tally
            progress.bytes, progress.rows = now.text_bytes, now.rows
            watch(tally)

        threads = Threads(self.threads, self.memory_limit)
        task = functools.partial(_do_units, threads, work, least_bytes, prepare)
        return self.runner.run_tasks(units, task, follow)


def _do_units(
    threads: Threads,
    work: Work[Unit],
    least_bytes: int,
    prepare: Callable[[], None],
    units: list[Unit],
) -> Tally:
    return threads.map(work, units, least_bytes, Progress(), prepare=prepare)


def _check_executors(engine_job: EngineJob, runner: SparkRunner) -> None:
    """Checks that every executor has the kernel and the storage."""
    workspace = engine_job.workspace
    check = functools.partial(
        _missing_here,
        binding.kernel_version(),
        engine_job.inputs,
        (workspace.root, workspace.staging),
    )
    try:
        messages = runner.first_job(lambda: runner.everywhere(check))
    except PreprocError as error:
        if "No module named" not in str(error):
            raise
        raise PreprocError(
            f"{error}; every executor needs this package and its requirements in the Python that "
            "PYSPARK_PYTHON names (docs/preprocessing.md)"
        ) from error
    missing = [message for message in messages if message]
    if missing:
        raise PreprocError(missing[0])


def _missing_here(
    kernel_version: int, inputs: tuple[InputFile, ...], folders: tuple[Path, ...], _task: int
) -> str:
    """Returns an error message if this executor lacks something, otherwise ""."""
    host = f"executor on {socket.gethostname()}"
    if not binding.is_built():
        return f"{host}: the native kernel is missing: {_KERNEL}"
    if binding.kernel_version() != kernel_version:
        return f"{host}: has another version of this package; install the driver's version there"
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
