# SPDX-License-Identifier: Apache-2.0
"""Parquet files that hand the rows of an input to an engine."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path


@dataclasses.dataclass(frozen=True, slots=True)
class RowFile:
    """A parquet file and the number of its rows."""

    path: Path
    rows: int


def total_bytes(files: Sequence[RowFile]) -> int:
    """Returns the bytes of all files on disk."""
    return sum(f.path.stat().st_size for f in files)
