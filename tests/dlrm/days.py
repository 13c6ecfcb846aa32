# SPDX-License-Identifier: Apache-2.0
"""Days of a small log that grows."""

from pathlib import Path

from preproc.clicks.job import semantics_of
from tests.preproc.clicks.rows import good_text

ALL_FOR_TRAINING = (-1, 0, 0)
FIRST = semantics_of("dlrm", {"frequency_limit": 1, "split_rows": ALL_FOR_TRAINING})


def write_logs(folder: Path, days: int = 3, rows: int = 300) -> list[Path]:
    """Writes days of a log in which categories come again and new ones are added."""
    folder.mkdir()
    for day in range(days):
        text = good_text(rows, seed=day, vocabulary=40 * (day + 1))
        (folder / f"log_{day}").write_bytes(text)
    return sorted(folder.iterdir())
