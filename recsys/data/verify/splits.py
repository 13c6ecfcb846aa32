# SPDX-License-Identifier: Apache-2.0
"""Checks all rows against spec, manifest and the other formats."""

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import tqdm

from recsys.data.errors import DatasetError
from recsys.data.feature_spec import FeatureSpec
from recsys.data.manifest import Manifest
from recsys.data.split_layout import GROUP_FILE, NUMERICAL_FILE, SPLIT_FOLDERS, categorical_file
from recsys.data.verify.report import Findings, format_statistics, highest_ids
from recsys.data.verify.source import RowSource, open_sources
from recsys.data.verify.statistics import SplitStatistics, compare

QUICK_BLOCKS = 16
"""Blocks of a split that --quick reads, evenly spread."""

_BASE_RATE_CHANGE, _BASE_RATE_SIGMAS = 0.2, 5.0
"""Base rates differ strongly: by a fifth, and by more than chance makes likely."""

_CONSTANT_ROWS = 1000
"""Least number of rows for the warning that a feature is constant."""

_ZERO_ROWS = 0.01
"""Least fraction of rows without any number but 0 that is suspicious."""


@dataclasses.dataclass(slots=True)
class _Split:
    """Statistics of a split, and the names of its formats."""

    statistics: SplitStatistics
    num_rows: int
    formats: list[str]


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
    splits: dict[str, _Split] = {}
    for split in SPLIT_FOLDERS:
        sources, errors = open_sources(root, split, spec)
        findings.problems += [str(e) for e in errors]
        for source in sources:
            _check_layout(split, source, declared, findings)
            _check_rows(root, split, source, manifest, splits.get(split), findings)
            statistics = _read(split, source, quick, len(sources) > 1, findings)
            source.close()
            is_whole = statistics.num_rows == source.num_rows
            if split not in splits:
                splits[split] = _Split(statistics, source.num_rows, [source.name])
            else:
                first = splits[split]
                if is_whole and first.statistics.num_rows == statistics.num_rows:
                    findings.problems += compare(
                        f"{root}: {split}",
                        (first.formats[0], first.statistics),
                        (source.name, statistics),
                    )
                first.formats.append(source.name)
            if is_whole and manifest is not None:
                _check_positives(root, split, source.name, statistics, manifest, findings)
        if not sources and not errors:
            _report_missing(root, split, manifest, findings)
    if not splits:
        findings.problems.append(
            f"{root}: no split could be read, as split binary, parquet, binary records or npy; is "
            "this the folder of a prepared dataset?"
        )
        return []
    _warn(spec, splits, findings)
    return format_statistics(
        spec,
        {split: s.statistics for split, s in splits.items()},
        {split: s.num_rows for split, s in splits.items()},
        {split: ", ".join(s.formats) for split, s in splits.items()},
    )


def _read(
    split: str, source: RowSource, quick: bool, is_compared: bool, findings: Findings
) -> SplitStatistics:
    statistics = SplitStatistics(source.spec, is_compared=is_compared)
    blocks = source.blocks
    if quick and len(blocks) > QUICK_BLOCKS:
        chosen = np.linspace(0, len(blocks) - 1, QUICK_BLOCKS).round().astype(int)
        blocks = tuple(blocks[i] for i in chosen)
    total = sum(b.num_rows for b in blocks)
    title = f"{split}, {source.name}"
    with tqdm.tqdm(total=total, unit="row", unit_scale=True, desc=title, disable=None) as bar:
        for block in blocks:
            try:
                statistics.add(block, block.read())
                if source.reader is not None:
                    source.reader.read_lists(block.first_row, block.first_row + block.num_rows)
            except (DatasetError, OSError) as error:
                findings.problems.append(str(error))
            bar.update(block.num_rows)
    findings.problems += statistics.problems()
    return statistics


def _check_rows(
    root: Path,
    split: str,
    source: RowSource,
    manifest: Manifest | None,
    earlier: _Split | None,
    findings: Findings,
) -> None:
    if manifest is not None and source.num_rows != manifest.rows.get(split):
        findings.problems.append(
            f"{root}: {split}: {source.num_rows:,} rows as {source.name}, the manifest says "
            f"{manifest.rows.get(split, 0):,}; files were added or lost: prepare the dataset again"
        )
    if earlier is not None and earlier.num_rows != source.num_rows:
        findings.problems.append(
            f"{root}: {split}: {earlier.num_rows:,} rows as {earlier.formats[0]}, "
            f"{source.num_rows:,} as {source.name}; prepare the dataset again"
        )


def _check_positives(
    root: Path,
    split: str,
    name: str,
    statistics: SplitStatistics,
    manifest: Manifest,
    findings: Findings,
) -> None:
    expected = manifest.positives.get(split)
    if expected is not None and statistics.positives != expected:
        findings.problems.append(
            f"{root}: {split}: {statistics.positives:,} clicks as {name}, the manifest says "
            f"{expected:,}; the labels changed: prepare the dataset again"
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
    split: str, source: RowSource, declared: Mapping[str, str], findings: Findings
) -> None:
    """Checks dtypes of split-binary files and looks for missing files."""
    reader = source.reader
    if reader is None:
        return
    groups = reader.folder / GROUP_FILE
    if groups.is_file() and groups.stat().st_size != 8 * reader.num_rows:
        findings.problems.append(
            f"{groups}: has {groups.stat().st_size} bytes, not 8 for each of {reader.num_rows} "
            "rows; get the dataset again"
        )
    for path in sorted(set(reader.folder.glob("[!._]*.bin")) - {*reader.files, groups}):
        findings.problems.append(
            f"{path}: belongs to no feature of the spec; the spec has too few features, or the "
            "file is a leftover: give the right spec, or remove it"
        )
    if reader.flavour == "wide" or not reader.num_rows:
        return
    columns = [(f.name, categorical_file(i)) for i, f in enumerate(source.spec.categorical)]
    columns += [(name, NUMERICAL_FILE) for name in source.spec.numerical[:1]]
    standard = {f.name: f.dtype.name for f in source.spec.categorical}
    for name, file in columns:
        stored = reader.dtypes[file].name
        if stored != declared.get(name, stored):
            findings.problems.append(
                f"{reader.paths[file]}: feature {name} is stored as {stored}, feature_spec.yaml "
                f"declares {declared[name]}; this project reads it, others would not: correct the "
                "spec"
            )
        elif stored != standard.get(name, stored):
            findings.warnings.append(
                f"{reader.paths[file]}: feature {name} is stored as {stored}, where the rule says "
                f"{standard[name]}; this project reads it, NVIDIA's loader would not ({split})"
            )


def _warn(spec: FeatureSpec, splits: Mapping[str, _Split], findings: Findings) -> None:
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
    is_sampled = any(s.num_rows < splits[n].num_rows for n, s in statistics.items())
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
    if statistics.zero_rows >= _ZERO_ROWS * rows and not are_zero.all():
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
