# SPDX-License-Identifier: Apache-2.0
"""One preprocessing run: look before working, let the engine work, finish the dataset."""

from pathlib import Path

from preproc.criteo import preflight as criteo_preflight
from preproc.criteo.engine import Engine, EngineJob, EngineResult
from preproc.criteo.engines import reference as criteo_reference
from preproc.criteo.engines.native import run as criteo_native
from preproc.criteo.engines.native.kernel import binding
from preproc.criteo.finish import finalize
from preproc.criteo.job import CriteoJob, EngineName
from preproc.files.errors import KernelError, PreprocError
from preproc.files.progress import ProgressReporter
from preproc.files.workspace import Workspace


def _run_spark(engine_job: EngineJob) -> EngineResult:
    from preproc.criteo.engines.spark import run  # PyArrow, which the other engines do without

    return run.run(engine_job)


def _run_nvtabular(engine_job: EngineJob) -> EngineResult:
    from preproc.criteo.engines.nvtabular import run  # PyArrow, which the others do without

    return run.run(engine_job)


ENGINE_FUNCTIONS: dict[EngineName, Engine] = {
    "native": criteo_native.run,
    "reference": criteo_reference.run,
    "spark": _run_spark,
    "nvtabular": _run_nvtabular,
}


def prepare(job: CriteoJob, engine: Engine | None = None) -> Path:
    """Makes a dataset from raw logs.

    Args:
        job: what to do.
        engine: does the work; None takes the one that the job names.

    Returns:
        The dataset folder.

    Raises:
        PreprocError: input, settings or machine do not allow it.
    """
    inputs = criteo_preflight.check(job)
    reporter = ProgressReporter(job.progress)
    with Workspace(job.output, job.work_dir).locked() as workspace:
        engine_job = EngineJob(job, inputs, workspace, reporter)
        try:
            chosen = engine or _choose_engine(engine_job)
            return finalize(engine_job, chosen(engine_job.for_engine()))
        except KernelError as error:
            raise PreprocError(f"the kernel could not go on: {error}") from error


def _choose_engine(engine_job: EngineJob) -> Engine:
    name = engine_job.job.engine
    if name == "native" and not binding.is_built():
        engine_job.reporter.note(
            "the native kernel is not built (python setup.py build_ext --inplace, needs a C++ "
            "compiler); the reference engine works instead: same bytes, about 50 times slower"
        )
        name = "reference"
    return ENGINE_FUNCTIONS[name]
