# SPDX-License-Identifier: Apache-2.0
"""Registry of the Criteo engines: all make the same bytes (`preproc.criteo.engine`)."""

ENGINES = {
    "native": "preproc.criteo.engines.native.run",
    "reference": "preproc.criteo.engines.reference",
    "spark": "preproc.criteo.engines.spark.run",
    "nvtabular": "preproc.criteo.engines.nvtabular.run",
}
"""The module of each engine, whose `run` is an `Engine`; imported when it is chosen."""
