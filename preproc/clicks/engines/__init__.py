# SPDX-License-Identifier: Apache-2.0
"""Registry of the engines, which all write the same bytes."""

ENGINES = {
    "native": "preproc.clicks.engines.native.run",
    "reference": "preproc.clicks.engines.reference",
    "spark": "preproc.clicks.engines.spark",
    "nvtabular": "preproc.clicks.engines.nvtabular.run",
}
"""Module of each engine; its `run` is a `preproc.clicks.engine.Engine`."""
