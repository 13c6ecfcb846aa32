# SPDX-License-Identifier: Apache-2.0
"""Tables of Spark SQL on the shared storage, and how names and texts are spelled for it."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from preproc.spark.runner import SparkRunner


def write_parquet(
    runner: SparkRunner,
    table: Any,
    folder: Path,
    on_fraction: Callable[[float], None],
    by: str | None = None,
) -> None:
    """Writes a table as parquet; the folder has its name only when it is complete.

    Args:
        runner: runs the query.
        table: a DataFrame.
        folder: to make.
        on_fraction: told now and then how far it is.
        by: column whose values become folders.
    """
    temporary = folder.with_name(folder.name + ".tmp")
    for left in (temporary, folder):
        shutil.rmtree(left, ignore_errors=True)
    runner.query(lambda: table.write.parquet(f"file://{temporary}", partitionBy=by), on_fraction)
    temporary.rename(folder)


def uri(path: Path) -> str:
    """Returns how to name a file or folder to read; Spark would take some names as patterns."""
    return "file://" + re.sub(r"([\[\]{}*?\\])", r"\\\1", str(path))


def sql_text(text: str) -> str:
    """Returns a string literal of Spark SQL."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
