# SPDX-License-Identifier: Apache-2.0
"""Registry of the Criteo engines, which all write the same bytes."""

ENGINES = {
    "native": "preproc.criteo.engines.native.run",
    "reference": "preproc.criteo.engines.reference",
    "spark": "preproc.criteo.engines.spark",
    "nvtabular": "preproc.criteo.engines.nvtabular.run",
}
"""Module of each engine; its `run` is a `preproc.criteo.engine.Engine`."""
