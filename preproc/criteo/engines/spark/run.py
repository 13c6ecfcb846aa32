# SPDX-License-Identifier: Apache-2.0
"""The Spark engine: prepares Criteo logs on a cluster, in two modes.

kernel     executors run the native kernel on byte ranges; Spark schedules and retries the units
dataframe  Spark SQL alone: no native code on the executors, and NVIDIA's RAPIDS plugin can run it

Both write the bytes of the native engine. Driver and executors must see input, output and work
folder under the same paths.
"""

import dataclasses

from preproc.criteo.engine import EngineJob, EngineResult
from preproc.criteo.engines.spark import dataframe as spark_dataframe
from preproc.criteo.engines.spark import kernel as spark_kernel
from preproc.spark import session as spark_session

_MODES = {"kernel": spark_kernel.run, "dataframe": spark_dataframe.run}


def run(engine_job: EngineJob) -> EngineResult:
    """Prepares a dataset on Spark."""
    settings = engine_job.job.spark
    # Executors have working directories of their own.
    inputs = tuple(dataclasses.replace(f, path=f.path.absolute()) for f in engine_job.inputs)
    engine_job = dataclasses.replace(engine_job, inputs=inputs)
    with spark_session.connect(settings) as runner:
        return _MODES[settings.spark_mode](engine_job, runner)
