# SPDX-License-Identifier: Apache-2.0
"""Spark SQL: parquet output, file URIs, string literals."""

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
    by: str | None = None,
) -> None:
    """Writes a DataFrame as parquet files, renaming the folder when complete.

    Args:
        runner: runs the query.
        table: a DataFrame.
        folder: replaced if it exists.
        on_fraction: gets the finished fraction, in [0, 1].
        by: column to partition by, each value a folder.
    """
    temporary = folder.with_name(folder.name + ".tmp")
    for old in (temporary, folder):
        shutil.rmtree(old, ignore_errors=True)
    runner.query(lambda: table.write.parquet(f"file://{temporary}", partitionBy=by), on_fraction)
    sync_tree(temporary)
    temporary.rename(folder)


def uri(path: Path) -> str:
    """Returns the URI of a path, with Spark's glob characters escaped."""
    return "file://" + re.sub(r"([\[\]{}*?\\])", r"\\\1", str(path))


def sql_text(text: str) -> str:
    """Quotes a text as a string literal of Spark SQL."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
