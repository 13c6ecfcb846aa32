# SPDX-License-Identifier: Apache-2.0
"""Statistics of a split, their tables, and warnings about them."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import xxhash

from recsys.data.click_columns import RawColumns
from recsys.data.feature_spec import FeatureSpec
from recsys.data.list_columns import ListColumn
from recsys.data.row_reader import RowReader
from recsys.data.split_layout import NUMERICAL_FILE
from recsys.data.verify.findings import Findings

_CONSTANT_ROWS = 1000
"""Fewest rows for a warning that a feature is constant."""

_ZERO_ROWS = 0.01
"""Smallest suspicious fraction of rows in which every number is 0."""


class SplitStatistics:
    """Statistics of the rows of a split in one format, in constant memory.

    Args:
        reader: reader of the split.
        is_compared: collect the digests.
        first: statistics of the same split in the format to compare with.

    Attributes:
        formats: names of the formats of the split.
        rows: number of rows of the split; `read` of them were added.
        low: [M] minima; `high` are maxima and `sums` sums of the finite numbers, `finite` of them.
        zero_rows: number of rows with 0 in every numerical feature.
        id_max: [F] highest ids, -1 without rows; `id_zeros` rows have id 0.
        lists: [L, 4] for each list feature: elements, elements with id 0, highest id, length of
            the longest list.
        digests: column -> checksum of its values; equal columns of two formats have equal ones.
        float_type: type of the numbers in the digests: the one that the first format stores.
    """

    def __init__(
        self, reader: RowReader, *, is_compared: bool, first: "SplitStatistics | None" = None
    ) -> None:
        spec = reader.spec
        num_numerical, num_categorical = len(spec.numerical), len(spec.categorical)
        self.formats = [reader.format_name]
        self.rows = reader.num_rows
        self.read = self.positives = self.zero_rows = 0
        self.low, self.high = np.full((2, num_numerical), [[np.inf], [-np.inf]])
        self.sums, self.finite = np.zeros((2, num_numerical))
        self.id_max = np.full(num_categorical, -1, np.int64)
        self.id_zeros = np.zeros(num_categorical, np.int64)
        self.lists = np.zeros((len(spec.lists), 4), np.int64)
        names = (spec.label, *spec.numerical, *(f.name for f in spec.categorical))
        self.digests = {name: xxhash.xxh3_128() for name in names}
        self._is_compared = is_compared
        self.float_type: np.dtype[Any] = np.dtype("f4") if first is None else first.float_type
        if first is None and reader.layout is not None:
            self.float_type = reader.layout.dtypes.get(NUMERICAL_FILE, self.float_type)

    @property
    def base_rate(self) -> float:
        """Fraction of clicks; NaN without rows."""
        return self.positives / self.read if self.read else float("nan")

    @property
    def is_whole(self) -> bool:
        """Whether all rows were added."""
        return self.read == self.rows

    def add(self, columns: RawColumns, lists: Sequence[ListColumn]) -> None:
        """Adds rows."""
        label = columns.label == 1
        self.read += len(label)
        self.positives += int(np.count_nonzero(label))
        with np.errstate(invalid="ignore", over="ignore"):
            # NumPy computes float16 slowly, and warns of a NaN even if `where` leaves it out.
            wide = np.ascontiguousarray(columns.numerical.T, np.float32)
            finite = np.isfinite(wide)
            np.minimum(self.low, wide.min(1, initial=np.inf, where=finite), out=self.low)
            np.maximum(self.high, wide.max(1, initial=-np.inf, where=finite), out=self.high)
            self.sums += wide.sum(1, dtype=np.float64, where=finite)
            self.finite += finite.sum(1)
            self.zero_rows += len(label) - int(np.count_nonzero((wide != 0).any(0)))
            numbers = wide.astype(self.float_type) if self._is_compared else wide
        for i, ids in enumerate(columns.categorical):
            self.id_max[i] = max(int(self.id_max[i]), int(ids.max(initial=-1)))
            self.id_zeros[i] += len(ids) - np.count_nonzero(ids)
        for counts, column in zip(self.lists, lists, strict=False):
            count, longest = len(column.ids), np.diff(column.offsets).max(initial=0)
            counts[:2] += np.array([count, count - np.count_nonzero(column.ids)])
            np.maximum(counts[2:], (column.ids.max(initial=0), longest), out=counts[2:])
        if self._is_compared:
            wider = (np.ascontiguousarray(ids, np.int64) for ids in columns.categorical)
            values = itertools.chain((label,), numbers, wider)
            for digest, column in zip(self.digests.values(), values, strict=True):
                digest.update(column.data)


def add_tables(
    spec: FeatureSpec, splits: Mapping[str, SplitStatistics], findings: Findings
) -> None:
    """Adds the tables of splits, of categorical, list and numerical features to the report."""
    every, categorical, lists = list(splits.values()), spec.categorical, spec.lists
    findings.table(
        {
            "split": (splits, ""),
            "rows": ([s.rows for s in every], ","),
            "read": ([s.read for s in every], ","),
            "clicks": ([s.positives for s in every], ","),
            "base rate": ([s.base_rate for s in every], ".4f"),
            "formats": ([", ".join(s.formats) for s in every], ""),
        }
    )
    highest = np.max([s.id_max for s in every], axis=0)
    findings.table(
        {
            "categorical": ([f.name for f in categorical], ""),
            "cardinality": ([f.cardinality for f in categorical], ","),
            "highest id": ([f"{i:,}" if i >= 0 else "-" for i in highest], ""),
            **{
                f"id 0 in {name}": (s.id_zeros / max(s.read, 1), ".2%")
                for name, s in splits.items()
            },
        }
    )
    count, zeros = np.sum([s.lists[:, :2] for s in every], axis=0).T
    highest, longest = np.max([s.lists[:, 2:] for s in every], axis=0).T
    findings.table(
        {
            "list": ([f.name for f in lists], ""),
            "cardinality": ([f.cardinality for f in lists], ","),
            "highest id": (highest, ","),
            "id 0": (zeros / np.maximum(count, 1), ".2%"),
            "elements a row": (count / max(sum(s.read for s in every), 1), ".1f"),
            "most": (longest, ","),
        }
    )
    count = np.sum([s.finite for s in every], axis=0)
    findings.table(
        {
            "numerical": (spec.numerical, ""),
            "min": (np.min([s.low for s in every], axis=0), ".4g"),
            "mean": (np.sum([s.sums for s in every], axis=0) / np.maximum(count, 1), ".4g"),
            "max": (np.max([s.high for s in every], axis=0), ".4g"),
        }
    )


def warn(spec: FeatureSpec, splits: Mapping[str, SplitStatistics], findings: Findings) -> None:
    """Warns of labels and features from which nothing can be learned."""
    read = {split: s for split, s in splits.items() if s.read}
    if not read:
        findings.warnings.append("no split has rows")
        return
    for split, s in read.items():
        if s.positives in (0, s.read):
            findings.warnings.append(
                f"{split}: base rate {s.base_rate:.0f}: every label is the same, so nothing can "
                "be learned and the AUC is undefined"
            )
        if s.read >= _CONSTANT_ROWS:
            findings.warnings += [f"{split}: {text}" for text in _constants(spec, s)]


def _constants(spec: FeatureSpec, statistics: SplitStatistics) -> Iterator[str]:
    """Yields features that are constant in a split, as if they had not been written."""
    s = statistics
    for name, low, high in zip(spec.numerical, s.low, s.high, strict=True):
        if low == high:
            yield f"feature {name}: is {low:g} in every row"
    for feature, zeros in zip(spec.categorical, s.id_zeros, strict=True):
        if zeros == s.read and feature.cardinality > 1:
            yield f"feature {feature.name}: has id 0 in every row"
    if s.zero_rows >= _ZERO_ROWS * s.read and len(s.low) > 1 and (s.low != s.high).any():
        yield (
            f"{s.zero_rows:,} of {s.read:,} rows have 0 in every numerical feature: were the files "
            "written to their end?"
        )
