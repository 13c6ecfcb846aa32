# SPDX-License-Identifier: Apache-2.0
"""Registry of the ratings engines, which all write the same bytes."""

ENGINES = {
    "pyarrow": "preproc.ratings.engines.pyarrow",
    "nvtabular": "preproc.ratings.engines.nvtabular",
    "spark": "preproc.ratings.engines.spark",
}
"""The module of each engine; its `open_rows` is an `OpenRows` of `preproc.ratings.stages`."""
