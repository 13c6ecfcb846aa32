# SPDX-License-Identifier: Apache-2.0
"""Findings of `verify`, and the text of its report."""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from recsys.data.feature_spec import FeatureSpec
from recsys.data.verify.statistics import SplitStatistics


@dataclasses.dataclass(slots=True)
class Findings:
    """Facts and problems reported by verify, in order.

    Attributes:
        facts: (name, text) lines at the top of the report.
        warnings: suspicious properties of a dataset that can be trained on.
        problems: violations of the format.
    """

    facts: list[tuple[str, str]] = dataclasses.field(default_factory=list)
    warnings: list[str] = dataclasses.field(default_factory=list)
    problems: list[str] = dataclasses.field(default_factory=list)

    def fact(self, name: str, text: str) -> None:
        """Adds a fact."""
        self.facts.append((name, text))


def format_table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Aligns columns: the first one left, the others right."""
    widths = [max(len(r[i]) for r in rows) for i in range(len(rows[0]))]
    return [
        "  ".join(
            c.ljust(w) if i == 0 else c.rjust(w)
            for i, (c, w) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


@dataclasses.dataclass(slots=True)
class VerifiedSplit:
    """Statistics of a split by its first format; names of all."""

    statistics: SplitStatistics
    num_rows: int
    formats: list[str]

    @property
    def is_whole(self) -> bool:
        """True if the statistics are of all rows."""
        return self.statistics.num_rows == self.num_rows


def format_statistics(spec: FeatureSpec, verified: Mapping[str, VerifiedSplit]) -> list[str]:
    """Formats the tables of splits, categorical and numerical features."""
    rows = [("split", "rows", "read", "clicks", "base rate", "formats")]
    for split, v in verified.items():
        s = v.statistics
        counts = (f"{v.num_rows:,}", f"{s.num_rows:,}", f"{s.positives:,}", f"{s.base_rate:.4f}")
        rows.append((split, *counts, ", ".join(v.formats)))
    lines = format_table(rows)
    splits = {split: v.statistics for split, v in verified.items()}
    if spec.categorical:
        header = ("categorical", "cardinality", "highest id", *(f"id 0 in {s}" for s in splits))
        lines += ["", *format_table([header, *_categorical_rows(spec, splits)])]
    if spec.lists:
        header = ("list", "cardinality", "highest id", "id 0", "elements a row", "most")
        lines += ["", *format_table([header, *_list_rows(spec, splits)])]
    if spec.numerical:
        header = ("numerical", "min", "mean", "max")
        lines += ["", *format_table([header, *_numerical_rows(spec, splits)])]
    return lines


def highest_ids(splits: Mapping[str, SplitStatistics]) -> list[int]:
    """Returns the highest id of each feature over all splits."""
    maxima = np.stack([s.id_max for s in splits.values()])
    return [int(i) for i in maxima.max(axis=0)]


def _categorical_rows(
    spec: FeatureSpec, splits: Mapping[str, SplitStatistics]
) -> list[tuple[str, ...]]:
    return [
        (
            feature.name,
            f"{feature.cardinality:,}",
            f"{highest:,}" if highest >= 0 else "-",
            *(f"{s.id_zeros[i] / max(s.num_rows, 1):.2%}" for s in splits.values()),
        )
        for i, (feature, highest) in enumerate(
            zip(spec.categorical, highest_ids(splits), strict=True)
        )
    ]


def _list_rows(spec: FeatureSpec, splits: Mapping[str, SplitStatistics]) -> list[tuple[str, ...]]:
    rows = max(sum(s.num_rows for s in splits.values()), 1)
    counts = np.stack([s.lists for s in splits.values()])
    sums, most = counts.sum(0), counts.max(0)
    return [
        (
            *(feature.name, f"{feature.cardinality:,}", f"{most[i, 2]:,}"),
            *(f"{sums[i, 1] / max(sums[i, 0], 1):.2%}", f"{sums[i, 0] / rows:.1f}"),
            f"{most[i, 3]:,}",
        )
        for i, feature in enumerate(spec.lists)
    ]


def _numerical_rows(
    spec: FeatureSpec, splits: Mapping[str, SplitStatistics]
) -> list[tuple[str, ...]]:
    total = max(sum(s.num_rows for s in splits.values()), 1)
    low = np.min([s.numerical_min for s in splits.values()], axis=0)
    high = np.max([s.numerical_max for s in splits.values()], axis=0)
    mean = sum(s.numerical_mean * (s.num_rows / total) for s in splits.values())
    values = zip(spec.numerical, low, np.asarray(mean), high, strict=True)
    return [(name, f"{a:.4g}", f"{b:.4g}", f"{c:.4g}") for name, a, b, c in values]
