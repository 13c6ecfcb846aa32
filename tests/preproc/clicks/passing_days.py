# SPDX-License-Identifier: Apache-2.0
"""Days of a log in which each category occurs on a few days that follow each other."""

import random
from pathlib import Path

from preproc.clicks.job import semantics_of
from preproc.clicks.rules import ClicksSemantics

ALL_FOR_TRAINING = (-1, 0, 0)
LIMIT = 2


def rules(after: int, below: int | None = None) -> ClicksSemantics:
    """Returns the rules of days with eviction."""
    values = {"frequency_limit": LIMIT, "split_rows": ALL_FOR_TRAINING}
    return semantics_of("dlrm", {**values, "evict_after": after, "evict_below": below})


def write_day(folder: Path, number: int, count: int = 120) -> Path:
    """Writes a day of Criteo's format."""
    folder.mkdir(exist_ok=True)
    path = folder / f"log_{number}"
    rng = random.Random(number)
    lines = []
    for _ in range(count):
        ids = (f"{rng.randrange(20) + 7 * number + 100 * column:08x}" for column in range(26))
        fields = ("1", *["3"] * 13, *(text if rng.random() < 0.9 else "" for text in ids))
        lines.append("\t".join(fields) + "\n")
    path.write_text("".join(lines))
    return path
