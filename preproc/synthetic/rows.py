# SPDX-License-Identifier: Apache-2.0
"""Random rows like those of the Kaggle log, as arrays and text.

All operations work on whole columns; a row takes about 2 microseconds.
"""

import dataclasses

import numpy as np
import numpy.typing as npt

from preproc.clicks.growth.rare_counts import key_of_category
from preproc.clicks.schema.row_format import NUM_CATEGORICAL, NUM_NUMERICAL
from preproc.synthetic.model import Integers, PlantedModel, zipf_ranks

# Distinct values per column of the Kaggle log, and Zipf exponents that give about as many
# distinct values in the first 100,000 rows as the log has.
KAGGLE_CARDINALITIES = (
    *(1460, 583, 10_131_227, 2_202_608, 305, 24, 12_517, 633, 3, 93_145, 5683, 8_351_593, 3194),
    *(27, 14_992, 5_461_306, 10, 5652, 2173, 4, 7_046_547, 18, 15, 286_181, 105, 142_572),
)
EXPONENTS = (1.98, 1.5, 1.02, 1.11, 2.2, 1.2, 1.15, 2.2, 1.2, 1.2, 1.3, 1.03, 1.26, 1.2, 1.32,
             1.06, 1.2, 1.46, 1.53, 0.3, 1.03, 1.4, 1.2, 1.23, 1.2, 1.18)  # fmt: skip
# Columns with the same missing rate are missing in the same rows, as in the real log.
MISSING_NUMERICAL = (0.454, 0, 0.211, 0.212, 0.026, 0.224, 0.043, 0.0005, 0.043, 0.454, 0.043,
                     0.767, 0.212)  # fmt: skip
MISSING_CATEGORICAL = (0, 0, 0.035, 0.035, 0, 0.126, 0, 0, 0, 0, 0, 0.035, 0, 0, 0, 0.035, 0, 0,
                       0.439, 0.439, 0.035, 0.763, 0, 0.035, 0.439, 0.439)  # fmt: skip
# Mean and spread of ln(x + 1) of the integers.
LOG_MEAN = np.array([0.9, 2.1, 2.1, 1.7, 7.3, 3.4, 1.6, 2.0, 3.5, 0.4, 0.9, 0.2, 1.7])
LOG_SPREAD = np.array([1.0, 2.1, 1.2, 0.9, 2.5, 1.8, 1.4, 1.15, 1.6, 0.5, 0.8, 0.8, 1.0])
MAX_INTEGER = 23_000_000
NEGATIVE_COLUMN, NEGATIVE_RATES = 1, (0.1, 0.002, 0.0002)  # I2 is sometimes -1, -2 or -3.

CALIBRATION_ROWS = 131_072

# A field is eight characters in one 64-bit word; NUL characters are dropped.
_DIGITS = (np.arange(10_000)[:, None] // [1000, 100, 10, 1] % 10 + ord("0")).astype(np.uint8)
_DIGITS_TEXT = _DIGITS.view("<u4")[:, 0].astype(np.uint64)
_HEX_TEXT = np.frombuffer("".join(f"{i:04x}" for i in range(65_536)).encode(), "<u4")
_KEEP = np.array([(2**64 - 1) ^ (2 ** (8 * (8 - k)) - 1) for k in range(9)], np.uint64)
_ROW = np.dtype([("label", "u1"), ("fields", [("tab", "u1"), ("text", "<u8")], 39), ("end", "u1")])


@dataclasses.dataclass(frozen=True, slots=True)
class GeneratedRows:
    """Features of generated rows.

    Attributes:
        numerical: [13, rows] integers, 0 if missing.
        is_missing: [13, rows] mask of missing integers.
        ranks: [26, rows] frequency ranks of categories, -1 if missing.
    """

    numerical: Integers
    is_missing: npt.NDArray[np.bool_]
    ranks: Integers


def draw_rows(rng: np.random.Generator, rows: int, cardinalities: tuple[int, ...]) -> GeneratedRows:
    """Draws the features of rows."""
    rates = sorted({r for r in (*MISSING_NUMERICAL, *MISSING_CATEGORICAL) if r})
    misses = {0: np.zeros(rows, bool)} | {r: rng.random(rows, np.float32) < r for r in rates}
    is_missing = np.stack([misses[r] for r in MISSING_NUMERICAL])
    numerical = np.empty((NUM_NUMERICAL, rows), np.int64)
    for i, (mean, spread) in enumerate(zip(LOG_MEAN, LOG_SPREAD, strict=True)):
        value = np.exp(rng.standard_normal(rows) * spread + (mean + 0.1))
        numerical[i] = np.clip(value - 1.0, 0, MAX_INTEGER)
    dice = rng.random(rows)
    for value, rate in enumerate(NEGATIVE_RATES, 1):
        numerical[NEGATIVE_COLUMN][dice < rate] = -value
    numerical[is_missing] = 0
    ranks = np.empty((NUM_CATEGORICAL, rows), np.int64)
    for c, (cardinality, exponent) in enumerate(zip(cardinalities, EXPONENTS, strict=True)):
        ranks[c] = zipf_ranks(rng.random(rows), cardinality, exponent)
        if MISSING_CATEGORICAL[c]:
            ranks[c][misses[MISSING_CATEGORICAL[c]]] = -1
    return GeneratedRows(numerical, is_missing, ranks)


def category_values(ranks: Integers, column: int) -> npt.NDArray[np.uint32]:
    """Maps ranks to distinct 32-bit categories by MurmurHash3's finalizer."""
    offset = np.uint32(0x9E3779B9 * (column + 1) & 0xFFFFFFFF)
    return key_of_category(ranks.astype(np.uint32) + offset)


def format_rows(labels: npt.NDArray[np.bool_], chunk: GeneratedRows) -> npt.NDArray[np.uint8]:
    """Returns the text of rows in the Criteo format."""
    rows = np.empty(len(labels), _ROW)
    rows["label"] = labels + np.uint8(ord("0"))
    rows["fields"]["tab"] = ord("\t")
    rows["end"] = ord("\n")
    text = rows["fields"]["text"]
    for i, values in enumerate(chunk.numerical):
        size = np.searchsorted(10 ** np.arange(1, 8), values, side="right") + 1
        high, low = np.divmod(np.maximum(values, 0), 10_000)
        cells = (_DIGITS_TEXT[high] | _DIGITS_TEXT[low] << np.uint64(32)) & _KEEP[size]
        if i == NEGATIVE_COLUMN:
            for value in range(1, len(NEGATIVE_RATES) + 1):
                cells[values == -value] = int.from_bytes(f"-{value}".encode(), "little")
        cells[chunk.is_missing[i]] = 0
        text[:, i] = cells
    for c, ranks in enumerate(chunk.ranks):
        values = category_values(ranks, c)
        cells = _HEX_TEXT[values & np.uint32(0xFFFF)].astype(np.uint64) << np.uint64(32)
        cells |= _HEX_TEXT[values >> np.uint32(16)]
        if MISSING_CATEGORICAL[c]:
            cells[ranks < 0] = 0
        text[:, NUM_NUMERICAL + c] = cells
    flat = rows.view(np.uint8)
    return np.asarray(flat[flat != 0])


@dataclasses.dataclass(frozen=True, slots=True)
class GeneratedChunk:
    """Text of rows, with their true click probabilities and labels [rows]."""

    text: bytes
    probabilities: npt.NDArray[np.float32]
    labels: npt.NDArray[np.bool_]


def make_chunk(
    model: PlantedModel, bits: np.random.BitGenerator, num_rows: int, cardinalities: tuple[int, ...]
) -> GeneratedChunk:
    """Draws rows and their labels."""
    rng = np.random.Generator(bits)
    rows = draw_rows(rng, num_rows, cardinalities)
    probabilities = model.probabilities(rows.numerical, rows.ranks)
    labels = rng.random(num_rows, np.float32) < probabilities
    return GeneratedChunk(format_rows(labels, rows).tobytes(), probabilities, labels)


def calibrated_model(
    seed: int, cardinalities: tuple[int, ...], *, click_rate: float, best_auc: float
) -> PlantedModel:
    """Draws a seed's model, calibrated on rows of its own."""
    model = PlantedModel.draw(seed, cardinalities, EXPONENTS)
    rng = np.random.Generator(np.random.Philox(np.random.SeedSequence(seed, spawn_key=(1,))))
    sample = draw_rows(rng, CALIBRATION_ROWS, cardinalities)
    return model.calibrate(sample.numerical, sample.ranks, click_rate, best_auc)
