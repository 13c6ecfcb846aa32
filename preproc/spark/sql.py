# SPDX-License-Identifier: Apache-2.0
"""Spark SQL: parquet output and file URIs."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from preproc.spark.runner import SparkRunner
from recsys.durable import sync_tree


def write_parquet(
    runner: SparkRunner,
    table: Any,
    folder: Path,
    on_fraction: Callable[[float], None],
) -> None:
    """Writes a DataFrame as parquet files, renaming the folder when complete.

    Args:
        runner: runs the query.
        table: a DataFrame.
        folder: replaced if it exists.
        on_fraction: gets the finished fraction, in [0, 1].
    """
    temporary = folder.with_name(folder.name + ".tmp")
    for old in (temporary, folder):
        shutil.rmtree(old, ignore_errors=True)
    runner.query(lambda: table.write.parquet(f"file://{temporary}"), on_fraction)
    sync_tree(temporary)
    temporary.rename(folder)


def uri(path: Path) -> str:
    """Returns the URI of a path, with Spark's glob characters escaped."""
    return "file://" + re.sub(r"([\[\]{}*?\\])", r"\\\1", str(path))
