# SPDX-License-Identifier: Apache-2.0
"""A generated log of 30 typed columns, and its schema."""

from pathlib import Path

import numpy as np
import numpy.typing as npt

SCHEMA = """\
label: {column: click}
defaults: {frequency_limit: 2}
columns:
- {name: "int_{0..3}", role: numerical, type: int}
- {name: "float_{0..3}", role: numerical, type: float}
- {name: "text_{0..21}", role: categorical, type: string}
split: {fractions: [0.8, 0.1, 0.1]}
"""
NUM_TEXTS = 22
NUM_FILES = 3 * (2 + NUM_TEXTS)
_SIZES = (10, 100, 1_000, 10_000, 100_000, 1_000_000)
_WORDS = np.array(["red kettle", "green cup", "old shoe", "new lamp", "small bag"])
_CHUNK = 100_000


def generate_typed(folder: Path, rows: int) -> Path:
    """Writes log.csv and schema.yaml; returns the log.

    Texts are product codes of 10 bytes or words of up to 17 bytes. A column has 10 to a million
    distinct values; half of the columns have Zipf's frequencies. One field in thirty is empty.
    """
    folder.mkdir(parents=True)
    (folder / "schema.yaml").write_text(SCHEMA)
    rng = np.random.default_rng(1)
    names = [
        f"{kind}_{i}" for kind, n in (("int", 4), ("float", 4), ("text", 22)) for i in range(n)
    ]
    with (folder / "log.csv").open("w") as log:
        log.write(",".join(["click", *names]) + "\n")
        for start in range(0, rows, _CHUNK):
            count = min(_CHUNK, rows - start)
            columns = [rng.integers(0, 4, count) == 0]
            columns += [np.floor(rng.pareto(1.2, count) * 3).clip(0, 2**30) for _ in range(4)]
            cells = [column.astype(np.int64).astype(str) for column in columns]
            cells += [np.char.mod("%.2f", rng.exponential(20, count)) for _ in range(4)]
            cells += [_texts(rng, count, number) for number in range(NUM_TEXTS)]
            for column in cells[1:]:
                column[rng.random(count) < 1 / 30] = ""
            table = zip(*(column.tolist() for column in cells), strict=True)
            log.writelines(",".join(row) + "\n" for row in table)
    return folder / "log.csv"


def _texts(rng: np.random.Generator, count: int, number: int) -> npt.NDArray[np.str_]:
    size = _SIZES[number % len(_SIZES)]
    drawn = rng.zipf(1.3, count) - 1 if number % 2 else rng.integers(0, size, count)
    values = np.minimum(drawn, size - 1)
    if number % 3:
        return np.char.mod("B0%08X", values * 2_654_435_761 % 2**32)
    words = _WORDS[values % len(_WORDS)]
    return np.char.add(np.char.add(words, " "), np.char.mod("%x", values))
