# SPDX-License-Identifier: Apache-2.0
"""Runs preprocessing: checks the input, calls the engine, finishes the dataset."""

import importlib
from pathlib import Path

from preproc.criteo import preflight as criteo_preflight
from preproc.criteo.applied import given_dictionaries, recorded_semantics
from preproc.criteo.engine import Engine, EngineJob
from preproc.criteo.engines import ENGINES
from preproc.criteo.finish import finalize
from preproc.criteo.job import CriteoJob
from preproc.files.errors import KernelError, PreprocError
from preproc.files.progress import ProgressReporter
from preproc.files.workspace import Workspace


def prepare(job: CriteoJob, engine: Engine | None = None) -> Path:
    """Makes a dataset from raw logs; returns its folder.

    Raises:
        PreprocError: the input, the settings or the machine do not allow it.
    """
    inputs, formats, needs = criteo_preflight.check(job)
    reporter = ProgressReporter(job.progress)
    with (
        needs.explained("the same command continues"),
        Workspace(job.output, job.work_dir).locked() as workspace,
    ):
        given, semantics = given_dictionaries(job, workspace), recorded_semantics(job)
        engine_job = EngineJob(job, inputs, formats, workspace, reporter, given)
        try:
            run: Engine = engine or importlib.import_module(ENGINES[job.engine]).run
            return finalize(engine_job, run(engine_job), semantics)
        except KernelError as error:
            raise PreprocError(f"the kernel could not go on: {error}") from error
