# SPDX-License-Identifier: Apache-2.0
"""Checks all rows against spec, manifest and the other formats."""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import tqdm

from recsys.data.errors import DatasetError
from recsys.data.feature_spec import FeatureSpec
from recsys.data.manifest import Manifest
from recsys.data.row_reader import RowReader
from recsys.data.split_layout import (
    GROUP_DTYPE,
    GROUP_FILE,
    LABEL_FILE,
    NUMERICAL_FILE,
    SPLIT_FOLDERS,
    categorical_file,
)
from recsys.data.verify.report import Findings, VerifiedSplit, format_statistics, highest_ids
from recsys.data.verify.source import open_readers
from recsys.data.verify.statistics import SplitStatistics, compare

QUICK_BLOCKS = 16
"""Blocks of a split that --quick reads, evenly spread."""

_BASE_RATE_CHANGE, _BASE_RATE_SIGMAS = 0.2, 5.0
"""Base rates differ strongly: by a fifth, and by more than chance makes likely."""

_CONSTANT_ROWS = 1000
"""Least number of rows for the warning that a feature is constant."""

_ZERO_ROWS = 0.01
"""Least fraction of rows without any number but 0 that is suspicious."""


def check_splits(
    root: Path,
    spec: FeatureSpec,
    manifest: Manifest | None,
    declared: Mapping[str, str],
    quick: bool,
    findings: Findings,
) -> list[str]:
    """Checks all rows (with `quick`, a sample of blocks).

    Args:
        root: folder of the dataset.
        spec: columns of the dataset.
        manifest: manifest of the dataset, or None.
        declared: feature -> dtype that feature_spec.yaml declares.
        quick: read a sample.
        findings: receives warnings and problems.

    Returns:
        Lines of the report.
    """
    splits: dict[str, VerifiedSplit] = {}
    for split in SPLIT_FOLDERS:
        readers, errors = open_readers(root, split, spec)
        findings.problems += map(str, errors)
        for reader in readers:
            _check_layout(split, reader, declared, findings)
            statistics = _read(split, reader, quick, len(readers) > 1, findings)
            this = VerifiedSplit(statistics, reader.num_rows, [reader.format_name])
            first = splits.setdefault(split, this)
            findings.problems += _compare_counts(f"{root}: {split}", split, this, first, manifest)
            if first is not this:
                first.formats += this.formats
        if not readers and not errors:
            _report_missing(root, split, manifest, findings)
    if not splits:
        findings.problems.append(
            f"{root}: no split could be read, as split binary, parquet, binary records or npy; is "
            "this the folder of a prepared dataset?"
        )
        return []
    _warn(spec, splits, findings)
    return format_statistics(spec, splits)


def _read(
    split: str, reader: RowReader, quick: bool, is_compared: bool, findings: Findings
) -> SplitStatistics:
    """Reads the rows, lists too; notes the bad values. Closes the reader."""
    statistics = SplitStatistics(reader.spec, is_compared=is_compared)
    blocks = reader.blocks()
    if quick and len(blocks) > QUICK_BLOCKS:
        chosen = np.linspace(0, len(blocks) - 1, QUICK_BLOCKS).round().astype(int)
        blocks = [blocks[i] for i in chosen]
    total = sum(map(len, blocks))
    title = f"{split}, {reader.format_name}"
    with tqdm.tqdm(total=total, unit="row", unit_scale=True, desc=title, disable=None) as bar:
        for block in blocks:
            try:
                columns = reader.read_unchecked(block.start, block.stop)
                statistics.add(reader, block.start, columns)
            except (DatasetError, OSError) as error:
                findings.problems.append(str(error))
            bar.update(len(block))
    findings.problems += statistics.problems()
    reader.close()
    return statistics


def _compare_counts(
    where: str, split: str, this: VerifiedSplit, first: VerifiedSplit, manifest: Manifest | None
) -> Iterator[str]:
    """Compares a format of a split with the first and the manifest."""
    name, rows, clicks = this.formats[0], this.num_rows, this.statistics.positives
    if manifest is not None and rows != manifest.rows.get(split):
        yield (
            f"{where}: {rows:,} rows as {name}, the manifest says "
            f"{manifest.rows.get(split, 0):,}; files were added or lost: prepare the dataset again"
        )
    if first.num_rows != rows:
        yield (
            f"{where}: {first.num_rows:,} rows as {first.formats[0]}, {rows:,} as {name}; prepare "
            "the dataset again"
        )
    elif this.is_whole and first.is_whole and first is not this:
        yield from compare(where, (first.formats[0], first.statistics), (name, this.statistics))
    expected = manifest.positives.get(split, clicks) if manifest is not None else clicks
    if this.is_whole and clicks != expected:
        yield (
            f"{where}: {clicks:,} clicks as {name}, the manifest says {expected:,}; the labels "
            "changed: prepare the dataset again"
        )


def _report_missing(root: Path, split: str, manifest: Manifest | None, findings: Findings) -> None:
    if manifest is not None and manifest.rows.get(split):
        findings.problems.append(
            f"{root}: the {split} split is missing, the manifest says {manifest.rows[split]:,} "
            "rows; copy it again, or prepare the dataset again"
        )
    elif split != "validation":
        findings.warnings.append(f"{root}: there is no {split} split")


def _check_layout(
    split: str, reader: RowReader, declared: Mapping[str, str], findings: Findings
) -> None:
    """Checks dtypes of split-binary files and looks for missing files."""
    layout, width = reader.layout, GROUP_DTYPE.itemsize
    if layout is None:
        return
    folder = layout.paths[LABEL_FILE].parent
    groups = folder / GROUP_FILE
    if groups.is_file() and groups.stat().st_size != width * reader.num_rows:
        findings.problems.append(
            f"{groups}: has {groups.stat().st_size} bytes, not {width} for each of "
            f"{reader.num_rows} rows; get the dataset again"
        )
    for path in sorted(set(folder.glob("[!._]*.bin")) - {*reader.files, groups}):
        findings.problems.append(
            f"{path}: belongs to no feature of the spec; the spec has too few features, or the "
            "file is a leftover: give the right spec, or remove it"
        )
    if layout.flavour == "wide" or not reader.num_rows:
        return
    columns = [(f.name, categorical_file(i)) for i, f in enumerate(reader.spec.categorical)]
    columns += [(name, NUMERICAL_FILE) for name in reader.spec.numerical[:1]]
    standard = {f.name: f.dtype.name for f in reader.spec.categorical}
    for name, file in columns:
        stored = layout.dtypes[file].name
        if stored != declared.get(name, stored):
            findings.problems.append(
                f"{layout.paths[file]}: feature {name} is stored as {stored}, feature_spec.yaml "
                f"declares {declared[name]}; this project reads it, others would not: correct the "
                "spec"
            )
        elif stored != standard.get(name, stored):
            findings.warnings.append(
                f"{layout.paths[file]}: feature {name} is stored as {stored}, where the rule says "
                f"{standard[name]}; this project reads it, NVIDIA's loader would not ({split})"
            )


def _warn(spec: FeatureSpec, splits: Mapping[str, VerifiedSplit], findings: Findings) -> None:
    statistics = {s: v.statistics for s, v in splits.items() if v.statistics.num_rows}
    for split, s in statistics.items():
        if s.positives in (0, s.num_rows):
            findings.warnings.append(
                f"{split}: base rate {s.base_rate:.0f}: every label is the same, so nothing can "
                "be learned and the AUC is undefined"
            )
    for split, s in statistics.items():
        _warn_of_zeros(spec, split, s, findings)
    if "train" in statistics:
        for split in (s for s in statistics if s != "train"):
            _compare_base_rates(split, statistics["train"], statistics[split], findings)
    if not statistics:
        findings.warnings.append("no split has rows")
        return
    is_sampled = not all(split.is_whole for split in splits.values())
    for feature, highest in zip(spec.categorical, highest_ids(statistics), strict=True):
        if 2 * (highest + 1) < feature.cardinality and not is_sampled:
            findings.warnings.append(
                f"feature {feature.name}: the highest id is {highest:,}, its table has "
                f"{feature.cardinality:,} rows: more than half of it is never used"
            )
    if sum(s.num_rows for s in statistics.values()) >= _CONSTANT_ROWS:
        for i, name in enumerate(spec.numerical):
            low = min(s.numerical_min[i] for s in statistics.values())
            if low == max(s.numerical_max[i] for s in statistics.values()) != 0:
                findings.warnings.append(f"feature {name}: is {low:g} in every row")


def _warn_of_zeros(
    spec: FeatureSpec, split: str, statistics: SplitStatistics, findings: Findings
) -> None:
    """Warns of features that are 0 throughout a split, as if unwritten."""
    rows = statistics.num_rows
    if rows < _CONSTANT_ROWS:
        return
    are_zero = (statistics.numerical_min == 0) & (statistics.numerical_max == 0)
    findings.warnings += [
        f"{split}: feature {spec.numerical[i]}: is 0 in every row" for i in np.flatnonzero(are_zero)
    ]
    findings.warnings += [
        f"{split}: feature {spec.categorical[i].name}: has id 0 in every row"
        for i in np.flatnonzero(statistics.id_zeros == rows)
        if spec.categorical[i].cardinality > 1
    ]
    if statistics.zero_rows >= _ZERO_ROWS * rows and not are_zero.all() and len(are_zero) > 1:
        findings.warnings.append(
            f"{split}: {statistics.zero_rows:,} of {rows:,} rows have 0 in every numerical "
            "feature: were the files written to their end?"
        )


def _compare_base_rates(
    split: str, train: SplitStatistics, other: SplitStatistics, findings: Findings
) -> None:
    difference = abs(train.base_rate - other.base_rate)
    pooled = (train.positives + other.positives) / (train.num_rows + other.num_rows)
    deviation = math.sqrt(pooled * (1 - pooled) * (1 / train.num_rows + 1 / other.num_rows))
    is_large = difference > _BASE_RATE_CHANGE * max(train.base_rate, other.base_rate)
    if is_large and difference > _BASE_RATE_SIGMAS * deviation:
        findings.warnings.append(
            f"base rate {train.base_rate:.4f} in train, {other.base_rate:.4f} in {split}: they "
            "differ strongly; were the splits sampled differently?"
        )
