# SPDX-License-Identifier: Apache-2.0
"""Rules of Criteo preprocessing, from raw rows to numbers and ids.

Every engine implements exactly these rules. A raw row is the bytes up to LF (one CR before it is
dropped) and must be one that `reject_reason` accepts. A category is the unsigned 32-bit number that
its hex digits spell. Categories that are kept get the ids 1, 2, ... by count descending, then value
ascending; missing, rare and unseen categories all get id 0.

Published recipes disagree on the details (docs/dataset_format.md lists them), so each known recipe
is a preset in presets/, and every setting of it can be overridden.
"""

import dataclasses
import decimal
import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from preproc.clicks.schema.grammar import (
    CRITEO_REASONS,
    INT32_MAX,
    INT32_MIN,
    REJECT_REASONS,
    RejectReason,
)
from preproc.clicks.schema.row_format import (
    NUM_CATEGORICAL,
    NUM_NUMERICAL,
    Edges,
    KeyType,
    NumberRule,
    RowFormat,
    criteo_format,
)
from preproc.clicks.schema.schema import Schema
from recsys.errors import UserError
from recsys.settings import Not, require_below, require_not_negative, require_positive, setting

if TYPE_CHECKING:
    from recsys.data.feature_spec import FeatureSpec

NUM_COLUMNS = 1 + NUM_NUMERICAL + NUM_CATEGORICAL

REMEDIES = (
    ", or keep fewer categories (`frequency_limit`, `category_modulus`; in a schema "
    "frequency_limit, max_ids, buckets)"
)
"""More remedies for error messages if the categories do not fit the memory limit."""

Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = get_args(Split)
Bounds = dict[Split, tuple[int, int]]
"""First row and end of each split, as global row numbers."""

_LAST_DAY = {"split_fractions": (None,), "split_rows": (None,), "split_days": (None,)}
"""Splits under which the last day is halved."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ClicksSemantics:
    """Settings of the transform from raw rows to numbers and ids.

    Attributes:
        schema: columns of the log; None for Criteo's.
    """

    schema: Schema | None = None
    numerical_offset: int = setting(2, "Added to a numerical value before the natural logarithm.")
    numerical_min: int = setting(-1, "Smaller raw values are raised to this one first.")
    numerical_missing: Literal["raw_zero", "output_zero"] = setting(
        "raw_zero",
        "raw_zero: a missing value counts as the raw value 0; output_zero: it becomes 0.0 after "
        "the logarithm.",
    )
    bin_numerical: bool = setting(
        False,
        "Add the numbers as 13 more categorical features: a number x above 2 falls into the bin "
        "floor(ln(x)^2), every other number has its own bin.",
    )
    frequency_limit: int = setting(15, "A category seen fewer times gets id 0; 0 and 1 keep all.")
    dictionary_days: Literal["all", "train"] = setting(
        "all",
        "all: count categories over the whole dataset; train: over the training split only.",
    )
    category_modulus: int | None = setting(
        None, "Take categories modulo this number before counting; none keeps them as they are."
    )
    last_day: Literal["test_validation", "validation_test"] = setting(
        "test_validation", "Which half of the last day comes first.", used_with=_LAST_DAY
    )
    last_day_rounding: Literal["floor", "ceil"] = setting(
        "floor", "For an odd last day, how many rows its first half holds.", used_with=_LAST_DAY
    )
    split_fractions: tuple[float, float, float] | None = setting(
        None,
        "Fractions for train,validation,test in row order, such as 0.8,0.1,0.1; none splits by "
        "days.",
    )
    split_rows: tuple[int, int, int] | None = setting(
        None,
        "Rows for train,validation,test in row order, such as 95000,5000,-1, where -1 takes the "
        "rest; replaces fractions.",
    )
    split_days: tuple[int, int, int] | None = setting(
        None,
        "Files for train,validation,test in input order, such as 21,1,-1, where -1 takes the rest; "
        "replaces fractions.",
    )
    unlabelled: bool = setting(
        False, "Rows have no label (39 fields); every label of the dataset is then 0."
    )
    shuffle_seed: int | None = setting(
        None,
        "Shuffle the training split by a hash of the row number and this seed, a whole number from "
        "0; none keeps the input order. A schema that splits by fractions or at random shuffles by "
        "default.",
    )

    evict_after: int | None = setting(
        None,
        "Give the id of a category that has not occurred for this many days to a new one, when a "
        "day adds categories; none keeps all ids.",
        used_with={"extend": Not(None)},
    )
    evict_below: int | None = setting(
        None,
        "Only if the category has occurred fewer times than this since it got its id; none takes "
        "any.",
        used_with={"evict_after": Not(None)},
    )

    def __post_init__(self) -> None:
        """Refuses values that are not allowed."""
        for name in ("numerical_offset", "numerical_min"):
            if not INT32_MIN <= getattr(self, name) <= INT32_MAX:
                raise UserError(
                    f"`{name}` must be a 32-bit integer, like the numbers of a log, got "
                    f"{getattr(self, name)}",
                    setting=name,
                )
        if self.numerical_min + self.numerical_offset < 1:
            raise UserError(
                f"`numerical_min` + `numerical_offset` must be at least 1 to take the logarithm, "
                f"got {self.numerical_min} + {self.numerical_offset}",
                settings=("numerical_min", "numerical_offset"),
            )
        require_not_negative(self, "frequency_limit")
        require_below(self, "frequency_limit", 2**64)
        self._check_eviction()
        if self.category_modulus is not None and not 1 <= self.category_modulus <= 2**32:
            raise UserError(
                f"`category_modulus` must lie in [1, 2**32], got {self.category_modulus}",
                setting="category_modulus",
            )
        if self.shuffle_seed is not None and not 0 <= self.shuffle_seed < 2**64:
            raise UserError(
                f"`shuffle_seed` must lie in [0, 2**64), got {self.shuffle_seed}",
                setting="shuffle_seed",
            )
        fractions = self.split_fractions
        if fractions is not None and (
            any(not 0 <= f <= 1 for f in fractions) or abs(sum(fractions) - 1) > 1e-6
        ):
            raise UserError(
                "`split_fractions` must be three numbers in [0, 1] that add up to 1 "
                f"(train,validation,test), got {','.join(map(str, fractions))}",
                setting="split_fractions",
            )
        one_split({name: getattr(self, name) for name in SPLIT_SETTINGS})
        for name in ("split_rows", "split_days"):
            counts = getattr(self, name) or ()
            if any(count < -1 for count in counts) or list(counts).count(-1) > 1:
                raise UserError(
                    f"`{name}` must be three numbers (train,validation,test), one of them -1 for "
                    f"the rest if you like; got {','.join(map(str, counts))}",
                    setting=name,
                )

    def _check_eviction(self) -> None:
        for name in ("evict_after", "evict_below"):
            if getattr(self, name) is not None:
                require_positive(self, name)
        of_columns = () if self.schema is None else self.schema.with_dictionaries
        limited = [column.name for column in of_columns if column.max_ids]
        if self.evict_after is not None and limited:
            raise UserError(
                f"`evict_after` bounds the number of ids; drop max_ids of the schema's columns "
                f"{', '.join(limited)}",
                setting="evict_after",
            )

    @property
    def num_numerical(self) -> int:
        """Numerical features."""
        return NUM_NUMERICAL if self.schema is None else len(self.schema.named("numerical"))

    @property
    def num_categorical(self) -> int:
        """Categorical features: those of the log, and the bins of its numbers."""
        if self.schema is not None:
            return len(self.schema.with_dictionaries)
        return NUM_CATEGORICAL + (NUM_NUMERICAL if self.bin_numerical else 0)

    @property
    def reject_reasons(self) -> tuple[RejectReason, ...]:
        """Reasons that the manifest counts; Criteo's logs can have only the first ones."""
        return REJECT_REASONS if self.schema else CRITEO_REASONS

    @property
    def key_types(self) -> tuple[KeyType, ...]:
        """Types of the categories of each column."""
        narrow: KeyType = "uint32"
        if self.schema is None:
            return (narrow,) * self.num_categorical
        return tuple(column.key_type for column in self.schema.with_dictionaries)

    def row_format(self, path: Path, first_line: bytes) -> RowFormat:
        """Returns the fields of a file; see `Schema.row_format`."""
        if self.schema is None:
            return criteo_format(unlabelled=self.unlabelled)
        return self.schema.row_format(path, first_line, unlabelled=self.unlabelled)

    @property
    def line_format(self) -> RowFormat:
        """Fields of a served line, which has no label."""
        return criteo_format(unlabelled=True) if self.schema is None else self.schema.line_format

    def limits(self, column: int) -> tuple[int, int]:
        """Returns the least occurrences of a category, and the most ids (0: no limit)."""
        if self.schema is None:
            return max(self.frequency_limit, 1), 0
        own = self.schema.with_dictionaries[column]
        return max(own.frequency_limit, 1), own.max_ids

    @property
    def vocabularies(self) -> tuple[tuple[int, ...], ...]:
        """For each column, the columns over which its categories are counted."""
        if self.schema is None:
            return tuple((column,) for column in range(self.num_categorical))
        return self.schema.vocabularies

    def feature_spec(self, cardinalities: tuple[int, ...]) -> "FeatureSpec":
        """Returns names and dtypes of the dataset's columns."""
        if self.schema is not None:
            return self.schema.feature_spec(cardinalities)
        from recsys.data.feature_spec import FeatureSpec  # imports yaml, which few commands need

        return FeatureSpec.criteo(cardinalities)

    def reading(self) -> Mapping[str, Any]:
        """Returns the settings by which a row's fields are read."""
        binned = {"bins_from": self.numerical_min} if self.bin_numerical else {}
        unlabelled = {"unlabelled": True} if self.unlabelled else {}
        schema = {} if self.schema is None else {"schema": dataclasses.asdict(self.schema)}
        return {"modulus": self.category_modulus, **binned, **unlabelled, **schema}

    def with_edges(self, edges: Edges) -> "ClicksSemantics":
        """Returns the rules with the bin edges that were found."""
        if self.schema is None:
            return self
        return dataclasses.replace(self, schema=self.schema.with_edges(edges))

    @property
    def splits_by_row(self) -> bool:
        """Whether rows are split by time or at random."""
        return self.schema is not None and self.schema.splits_by_row

    @property
    def halves_last_day(self) -> bool:
        """Whether the last day becomes validation and test."""
        return (
            not self.splits_by_row
            and self.split_fractions is self.split_rows is self.split_days is None
        )


OF_EVICTION = ("evict_after", "evict_below")
"""Settings that a manifest records only if they are set."""

SPLIT_SETTINGS = ("split_fractions", "split_rows", "split_days")
"""Settings that exclude each other."""


def one_split(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Returns settings in which a given split replaces any other one.

    Raises:
        UserError: several are given.
    """
    given = [name for name in SPLIT_SETTINGS if overrides.get(name) is not None]
    if len(given) > 1:
        names = " and ".join(f"`{name}`" for name in given)
        raise UserError(f"{names} cannot be combined; keep one", settings=given)
    return {**dict.fromkeys(SPLIT_SETTINGS if given else ()), **overrides}


def transform_numerical(
    values: npt.NDArray[np.int64], missing: npt.NDArray[np.bool_], semantics: ClicksSemantics
) -> npt.NDArray[np.float32]:
    """Transforms raw integers: f32(ln_f64(max(x, min) + offset)), rounded to nearest even.

    Args:
        values: raw integers, any shape; ignored where `missing` is True.
        missing: same shape, True where the field was empty.
        semantics: gives offset, minimum and the value of missing fields.

    Returns:
        float32 of the same shape. Split binary stores it rounded to float16. Both roundings belong
        to the format: rounding float64 directly to float16 differs for 1021 integers below 2**24.
    """
    raw = np.where(missing, 0, values).astype(np.int64)
    shifted = np.maximum(raw, semantics.numerical_min) + semantics.numerical_offset
    result = np.log(shifted.astype(np.float64)).astype(np.float32)
    if semantics.numerical_missing == "output_zero":
        result = np.where(missing, np.float32(0), result)
    return result


def transform_decimal(values: npt.NDArray[np.float64], rule: NumberRule) -> npt.NDArray[np.float32]:
    """Transforms decimal numbers, each to the float32 nearest to the exact result.

    Empty fields are the rule's mean in `values` [n].
    """
    if rule.transform == "log":
        return _logs(np.maximum(values, rule.minimum) + rule.offset)
    standardised = (values - rule.mean) / rule.deviation
    if rule.transform == "signed_log":
        return np.copysign(_logs(np.abs(standardised) + 1), standardised).astype(np.float32)
    most = float(np.finfo(np.float32).max)
    return standardised.clip(-most, most).astype(np.float32)


def _logs(shifted: npt.NDArray[np.float64]) -> npt.NDArray[np.float32]:
    """Returns the float32 nearest to each logarithm."""
    logs = np.log(shifted)
    margin = np.ldexp(np.abs(logs), -50)  # more than the last bits in which libraries differ
    below, above = (logs - margin).astype(np.float32), (logs + margin).astype(np.float32)
    for i in np.flatnonzero(below != above):
        with decimal.localcontext(prec=50):
            middle = (decimal.Decimal(float(below[i])) + decimal.Decimal(float(above[i]))) / 2
            exact = decimal.Decimal(float(shifted[i])).ln()
        below[i] = below[i] if exact < middle else above[i]
    return below


def bin_categories(
    values: npt.NDArray[np.int64], semantics: ClicksSemantics
) -> npt.NDArray[np.uint32]:
    """Returns the bins of raw integers, as categories.

    No ln(x)^2 of an integer comes nearer than 6e-10 to the next bin, so float64 suffices.
    Source: the winners of Criteo's contest on Kaggle (Juan et al. 2014, libffm).

    Args:
        values: raw integers, any shape.
        semantics: gives the minimum to which smaller values are raised first.

    Returns:
        uint32 of the same shape: x itself up to 2 (negative ones modulo 2**32), floor(ln(x)^2) + 2
        above.
    """
    raised = np.maximum(values, semantics.numerical_min)
    above = np.floor(np.log(np.maximum(raised, 1).astype(np.float64)) ** 2) + 2
    return np.where(raised > 2, above.astype(np.int64), raised).astype(np.uint32)


def order_dictionary(
    values: npt.NDArray[np.uint32], counts: npt.NDArray[np.uint64], frequency_limit: int
) -> npt.NDArray[np.uint32]:
    """Returns the categories that are kept, in id order from 1.

    Args:
        values: [n] distinct categories.
        counts: [n] occurrences of each category.
        frequency_limit: categories with fewer occurrences are left out.

    Returns:
        uint32 categories by count descending, then value ascending.
    """
    kept = counts >= max(frequency_limit, 1)
    values, counts = values[kept], counts[kept]
    order = np.lexsort((values, np.uint64(2**64 - 1) - counts))
    return values[order]


def order_keys(counts: Mapping[Any, int], frequency_limit: int) -> list[Any]:
    """Returns the categories that are kept, in id order from 1.

    They are texts or integers. If counts are equal, smaller integers come first, or shorter texts;
    texts of equal length are ordered by their bytes.
    """
    kept = [(key, count) for key, count in counts.items() if count >= frequency_limit]

    def order(entry: tuple[Any, int]) -> tuple[Any, ...]:
        key, count = entry
        return (-count, len(key), key) if isinstance(key, bytes) else (-count, key)

    return [key for key, _ in sorted(kept, key=order)]


def _ends(name: str, counts: Sequence[int], total: int, unit: str) -> list[int]:
    """Returns the ends of the splits; a count of -1 takes the rest."""
    others = total - sum(count for count in counts if count >= 0)
    if others < 0 or (others > 0 and -1 not in counts):
        raise UserError(
            f"`{name}` {','.join(map(str, counts))} makes {total - others:,} {unit}, but there are "
            f"{total:,}; write -1 for one of the numbers to take the rest",
            setting=name,
        )
    return list(itertools.accumulate(others if count < 0 else count for count in counts))


def _ranges(train_end: int, validation_end: int, total: int) -> Bounds:
    return {
        "train": (0, train_end),
        "validation": (train_end, validation_end),
        "test": (validation_end, total),
    }


def split_bounds(
    rows_per_day: list[int], semantics: ClicksSemantics, rows_per_split: Sequence[int] = ()
) -> Bounds:
    """Returns the first row and the end of each split.

    Args:
        rows_per_day: valid rows of each input file, in input order.
        rows_per_split: given if each row chooses its split; rows are then numbered split by split.
        semantics: gives the fractions, or the order and rounding of the last day's halves.

    Returns:
        Half-open ranges of global row numbers, which count valid rows from 0.

    Raises:
        UserError: `split_rows` or `split_days` do not add up to what there is.
    """
    total = sum(rows_per_day)
    if semantics.splits_by_row:
        train_rows, validation_rows, _ = rows_per_split
        return _ranges(train_rows, train_rows + validation_rows, total)
    if semantics.split_rows is not None:
        return _ranges(*_ends("split_rows", semantics.split_rows, total, "valid rows"))
    if semantics.split_days is not None:
        ends = _ends("split_days", semantics.split_days, len(rows_per_day), "files")
        return _ranges(*(sum(rows_per_day[:end]) for end in ends))
    if semantics.split_fractions is not None:
        train, validation, _ = semantics.split_fractions
        first = math.floor(train * total + 1e-9)
        second = math.floor((train + validation) * total + 1e-9)
        return _ranges(first, second, total)
    last = rows_per_day[-1]
    half = last // 2 if semantics.last_day_rounding == "floor" else (last + 1) // 2
    start = total - last
    head, tail = (start, start + half), (start + half, total)
    if semantics.last_day == "test_validation":
        return {"train": (0, start), "validation": tail, "test": head}
    return {"train": (0, start), "validation": head, "test": tail}


_GOLDEN_RATIO = np.uint64(0x9E3779B97F4A7C15)
_MIX = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))


def shuffle_keys(seed: int, rows: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Returns the sort keys of the shuffle: SplitMix64 of each row.

    The key of row r is output number r, counted from 0, of the SplitMix64 generator with `seed` as
    its initial state, modulo 2**64 throughout:

        z = seed + (r + 1) * 0x9E3779B97F4A7C15
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB
        key = z ^ (z >> 31)

    Every step is invertible, so no two rows have the same key and the order has no ties. Source:
    Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014.

    Args:
        seed: in [0, 2**64).
        rows: [n] global numbers of valid rows, in input order.

    Returns:
        [n] uint64; rows are written in ascending order of their keys.
    """
    z = (rows + np.uint64(1)) * _GOLDEN_RATIO
    z += np.uint64(seed)
    for shift, factor in _MIX:
        z ^= z >> np.uint64(shift)
        z *= np.uint64(factor)
    z ^= z >> np.uint64(31)
    return z
