# SPDX-License-Identifier: Apache-2.0
"""Reads every split in each of its formats; checks rows and counts, and compares the formats."""

import functools
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tqdm

from recsys.data import spec_document
from recsys.data.click_columns import RawColumns, check_ids_of, check_label, check_numerical
from recsys.data.errors import DatasetError
from recsys.data.feature_spec import SPEC_FILE, FeatureSpec
from recsys.data.formats.npy_days import NpyReader, find_folder
from recsys.data.formats.records import SPLIT_FILES, BinaryRecordsReader
from recsys.data.manifest import Manifest
from recsys.data.parquet import ParquetReader, has_parquet
from recsys.data.row_reader import RowReader
from recsys.data.split_binary import SplitBinaryReader
from recsys.data.split_layout import (
    GROUP_DTYPE,
    GROUP_FILE,
    LABEL_FILE,
    NUMERICAL_FILE,
    SPLIT_FOLDERS,
    categorical_file,
    split_folders,
)
from recsys.data.verify.findings import Findings
from recsys.data.verify.statistics import SplitStatistics, add_tables, warn

QUICK_BLOCKS = 16
"""Number of evenly spread blocks of a split that --quick reads."""

_AGAIN = "prepare the dataset again"


def check_splits(
    root: Path, spec: FeatureSpec, manifest: Manifest | None, quick: bool, findings: Findings
) -> None:
    """Checks all rows (with `quick`, a sample of blocks), and adds the statistics.

    Raises:
        DatasetError: no split can be read.
    """
    splits: dict[str, SplitStatistics] = {}
    document = root / SPEC_FILE
    declared = spec_document.declared_dtypes(document) if document.is_file() else {}
    for split in SPLIT_FOLDERS:
        problems = len(findings.problems)
        readers = _open_readers(root, split, spec, findings)
        for reader in readers:
            if reader.layout is not None:
                _check_layout(split, reader, declared, findings)
            first = splits.get(split)
            this = SplitStatistics(reader, is_compared=len(readers) > 1, first=first)
            _read(split, reader, this, quick, findings)
            where = f"{root}: {split} as {reader.format_name}"
            differences = _differences(split, this, first, manifest)
            findings.problems += [f"{where}: {text}; {_AGAIN}" for text in differences]
            if first is None:
                splits[split] = this
            else:
                first.formats += this.formats
        if not readers and problems == len(findings.problems):
            rows = 0 if manifest is None else manifest.rows.get(split, 0)
            if rows:
                findings.problems.append(
                    f"{root}: the {split} split is missing, but the manifest says {rows:,} rows; "
                    f"copy it again, or {_AGAIN}"
                )
            elif split != "validation":
                findings.warnings.append(f"{root}: there is no {split} split")
    if not splits:
        raise DatasetError(
            f"{root}: no split could be read, as split binary, parquet, binary records or npy; is "
            "this the folder of a prepared dataset?"
        )
    warn(spec, splits, findings)
    add_tables(spec, splits, findings)


def _open_readers(root: Path, split: str, spec: FeatureSpec, findings: Findings) -> list[RowReader]:
    """Opens a split in each of its formats."""
    has_columns = any(any(folder.glob("[!._]*.bin")) for folder in split_folders(root, split))
    if split in spec.files:
        has_columns |= (root / spec.files[split].label).is_file()
    formats: list[tuple[bool, Callable[[Path, str, FeatureSpec], RowReader]]] = [
        (has_columns, functools.partial(SplitBinaryReader, check_ids=True)),  # of lists
        (has_parquet(root, split), ParquetReader),
        (any((root / name).is_file() for name in SPLIT_FILES[split]), BinaryRecordsReader),
        (find_folder(root) is not None, NpyReader),
    ]
    readers = []
    for is_present, open_reader in formats:
        if is_present:
            with findings.collected():
                readers.append(open_reader(root, split, spec))
    return readers


def _check_layout(
    split: str, reader: RowReader, declared: Mapping[str, str], findings: Findings
) -> None:
    """Compares the files and types of split binary with the spec."""
    layout = reader.layout
    assert layout is not None
    folder = layout.paths[LABEL_FILE].parent
    groups, size = folder / GROUP_FILE, GROUP_DTYPE.itemsize * reader.num_rows
    if groups.is_file() and groups.stat().st_size != size:
        findings.problems.append(
            f"{groups}: has {groups.stat().st_size:,} bytes, but {reader.num_rows:,} rows need "
            f"{size:,}; get the dataset again"
        )
    for path in sorted(set(folder.glob("[!._]*.bin")) - {*reader.files, groups}):
        findings.problems.append(
            f"{path}: belongs to no feature of the spec; the spec has too few features, or the "
            "file is a leftover: give the right spec, or remove it"
        )
    if layout.flavour == "wide" or not reader.num_rows:
        return
    rules = {
        f.name: (categorical_file(i), f.dtype.name) for i, f in enumerate(reader.spec.categorical)
    }
    rules |= dict.fromkeys(reader.spec.numerical[:1], (NUMERICAL_FILE, ""))
    for name, (file, rule) in rules.items():
        stored = layout.dtypes[file].name
        where = f"{layout.paths[file]}: feature {name} is stored as {stored}"
        if stored != declared.get(name, stored):
            findings.problems.append(
                f"{where}, but feature_spec.yaml declares {declared[name]}; this project reads it, "
                "other readers would not: correct the spec"
            )
        elif rule not in ("", stored):
            findings.warnings.append(
                f"{where}, but the rule says {rule}; this project reads it, NVIDIA's loader "
                f"would not ({split})"
            )


def _read(
    split: str, reader: RowReader, statistics: SplitStatistics, quick: bool, findings: Findings
) -> None:
    """Reads the rows, lists included; notes each column's first bad value. Closes the reader."""
    blocks = reader.blocks()
    if quick and len(blocks) > QUICK_BLOCKS:
        chosen = np.linspace(0, len(blocks) - 1, QUICK_BLOCKS).round().astype(int)
        blocks = [blocks[i] for i in chosen]
    total, title = sum(map(len, blocks)), f"{split}, {reader.format_name}"
    faults: dict[tuple[str, Path], str] = {}
    with tqdm.tqdm(total=total, unit="row", unit_scale=True, desc=title, disable=None) as bar:
        for block in blocks:
            with findings.collected():
                columns = reader.read_unchecked(block.start, block.stop)
                faults = dict(_faults(reader, columns, block.start)) | faults
                statistics.add(columns, reader.read_lists(block.start, block.stop))
            bar.update(len(block))
    findings.problems += faults.values()
    reader.close()


def _faults(
    reader: RowReader, columns: RawColumns, first_row: int
) -> Iterator[tuple[tuple[str, Path], str]]:
    """Yields the errors of the readers' own checks, for each column and file."""
    spec = reader.spec
    checks: list[tuple[str, Callable[..., object], Any, Any]] = [
        (spec.label, check_label, columns.label, f"feature {spec.label}")
    ]
    for i, name in enumerate(spec.numerical):
        checks.append((name, check_numerical, columns.numerical[:, i : i + 1], [name]))
    for feature, ids in zip(spec.categorical, columns.categorical, strict=True):
        checks.append((feature.name, check_ids_of, feature, ids))
    for name, check, *values in checks:
        path = reader.path_of(name, first_row)
        try:
            check(*values, path, first_row)
        except DatasetError as error:
            yield (name, path), str(error)


def _differences(
    split: str, this: SplitStatistics, first: SplitStatistics | None, manifest: Manifest | None
) -> Iterator[str]:
    """Compares one format of a split with the manifest and with the first format."""
    if manifest is not None:
        rows, clicks = manifest.rows.get(split, 0), manifest.positives.get(split, this.positives)
        if this.rows != rows:
            yield f"{this.rows:,} rows, but the manifest says {rows:,}"
        if this.is_whole and this.positives != clicks:
            yield f"{this.positives:,} clicks, but the manifest says {clicks:,}"
    if first is not None and first.rows != this.rows:
        yield f"{this.rows:,} rows, but {first.rows:,} in {first.formats[0]}"
    elif first is not None and this.is_whole and first.is_whole:
        sums = {name: digest.digest() for name, digest in first.digests.items()}
        differ = [name for name, digest in this.digests.items() if digest.digest() != sums[name]]
        if differ:
            names = ", ".join(differ)
            yield f"other rows, or in another order, than in {first.formats[0]}: {names} differ"
