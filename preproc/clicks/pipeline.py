# SPDX-License-Identifier: Apache-2.0
"""Runs preprocessing: checks the input, calls the engine, finishes the dataset."""

import importlib
from pathlib import Path

from preproc.clicks import preflight as clicks_preflight
from preproc.clicks.applied import given_dictionaries, recorded_semantics, with_edges
from preproc.clicks.engine import Engine, EngineJob
from preproc.clicks.engines import ENGINES
from preproc.clicks.finish import finalize
from preproc.clicks.growth.days import growth_of
from preproc.clicks.job import ClicksJob
from preproc.files.errors import KernelError, PreprocError
from preproc.files.progress import ProgressReporter
from preproc.files.workspace import Workspace


def prepare(job: ClicksJob, engine: Engine | None = None) -> Path:
    """Makes a dataset from raw logs; returns its folder.

    Raises:
        UserError: the input, the settings or the machine do not allow it.
    """
    reporter = ProgressReporter(job.progress)
    inputs, formats, needs = clicks_preflight.check(job, reporter)
    growth = growth_of(job, inputs, reporter)
    with (
        needs.explained("the same command continues"),
        Workspace(job.output, job.work_dir).locked() as workspace,
    ):
        given, recorded = given_dictionaries(job, workspace), recorded_semantics(job)
        engine_job = EngineJob(job, inputs, formats, workspace, reporter, given, growth)
        try:
            run: Engine = engine or importlib.import_module(ENGINES[job.engine]).run
            result = run(engine_job)
            if growth is not None and (fault := growth.missing_split(result.rows)):
                workspace.clear()  # no later run can use it
                raise fault
            return finalize(engine_job, result, with_edges(recorded, result.edges))
        except KernelError as error:
            raise PreprocError(f"the kernel failed: {error}") from error
