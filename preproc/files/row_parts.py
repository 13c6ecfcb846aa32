# SPDX-License-Identifier: Apache-2.0
"""Parquet files of bounded size, with rows on the way to an engine."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path


@dataclasses.dataclass(frozen=True, slots=True)
class RowPart:
    """A parquet file with some rows."""

    path: Path
    rows: int


def total_bytes(parts: Sequence[RowPart]) -> int:
    """Returns the bytes of parts on disk."""
    return sum(p.path.stat().st_size for p in parts)
