# SPDX-License-Identifier: Apache-2.0
"""Checks sequences against their maps, manifest and rules of ids."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from recsys.data.errors import DatasetError
from recsys.data.manifest import MANIFEST_FILE, Manifest
from recsys.data.sequences.files import (
    ITEM_MAP_FILE,
    USER_MAP_FILE,
    read_item_map,
    read_sequences,
    read_user_map,
)
from recsys.data.sequences.histories import RawIds, Sequences, order_raw_ids
from recsys.data.sequences.split import (
    DICTIONARIES,
    LEAVE_ONE_OUT,
    counts_before,
    parse_split,
    split_fingerprint,
    split_rows,
    temporal_statistics,
)
from recsys.data.sequences.titles import read_titles
from recsys.data.verify.report import Findings

_AGAIN = "copy it again, or prepare the dataset again"


def check_sequences(root: Path, manifest: Manifest | None, findings: Findings) -> None:
    """Reads all sequences and checks them against the format."""
    try:
        sequences, users, items = read_sequences(root), read_user_map(root), read_item_map(root)
    except DatasetError as error:
        findings.problems.append(str(error))
        return
    if len(users) != sequences.num_users:
        findings.problems.append(
            f"{root / USER_MAP_FILE}: has {len(users):,} users, the sequences "
            f"{sequences.num_users:,}; {_AGAIN}"
        )
        return
    _report(sequences, findings)
    counts = np.bincount(sequences.items, minlength=len(items) + 1)[1:]
    _check_map(root / USER_MAP_FILE, users, sequences.lengths, findings)
    _check_map(root / ITEM_MAP_FILE, items, counts, findings)
    if not np.array_equal(order_raw_ids(users.raw), np.arange(len(users))):
        findings.problems.append(f"{root / USER_MAP_FILE}: not in the order of raw ids; {_AGAIN}")
    try:
        split = _split_of(manifest, sequences, users, items)
    except ValueError as error:
        findings.problems.append(f"{root / MANIFEST_FILE}: {error}; {_AGAIN}")
        return
    by_raw = order_raw_ids(items.raw)
    by_count = by_raw[np.argsort(-split.counts[by_raw], kind="stable")]
    has_own_ids = manifest is None or DICTIONARIES not in manifest.semantics
    if has_own_ids and not np.array_equal(by_count, np.arange(len(items))):
        findings.problems.append(
            f"{root / ITEM_MAP_FILE}: not in the order of count descending, then raw id; {_AGAIN}"
        )
    _check_titles(root, len(items), findings)
    if manifest is not None:
        _check_manifest(root / MANIFEST_FILE, manifest, sequences, split, findings)


@dataclasses.dataclass(frozen=True, slots=True)
class _Split:
    """The split of a dataset, as its files have it.

    Attributes:
        name: text for the report.
        counts: [I] interactions that the items are ordered by.
        statistics: what the manifest must say of it.
    """

    name: str
    counts: npt.NDArray[np.int64]
    statistics: dict[str, Any]


def _split_of(
    manifest: Manifest | None, sequences: Sequences, users: RawIds, items: RawIds
) -> _Split:
    """Computes the split that the manifest names; by default leave one out.

    Raises:
        ValueError: the manifest names no split, or one that needs times.
    """
    rule = LEAVE_ONE_OUT if manifest is None else manifest.semantics.get("split", LEAVE_ONE_OUT)
    quantile = parse_split(str(rule))
    if quantile is None:
        fingerprint = split_fingerprint(sequences, users, items)
        return _Split("leave one out", items.counts, {"split_fingerprint": fingerprint})
    if sequences.timestamps is None:
        raise ValueError(f"names the split {rule}, yet the sequences have no timestamps")
    statistics = temporal_statistics(sequences, quantile, users, items)
    counts = counts_before(sequences, statistics["cut"])
    return _Split(f"{rule}, cut at {statistics['cut']}", counts, statistics)


def _report(sequences: Sequences, findings: Findings) -> None:
    total, users = len(sequences.items), sequences.num_users
    findings.fact(
        "sequences",
        f"{users:,} users, {sequences.num_items:,} items, {total:,} interactions",
    )
    if users:
        lengths = sequences.lengths
        findings.fact(
            "lengths",
            f"{lengths.min():,} to {lengths.max():,}, mean {total / users:.1f}, median "
            f"{np.median(lengths):.0f}",
        )


def _check_titles(root: Path, num_items: int, findings: Findings) -> None:
    try:
        titles = read_titles(root, num_items)
    except DatasetError as error:
        findings.problems.append(str(error))
        return
    if titles is not None:
        findings.fact("titles", f"of {sum(map(bool, titles)):,} of {num_items:,} items")


def _check_map(path: Path, ids: RawIds, counts: npt.NDArray[np.int64], findings: Findings) -> None:
    wrong = np.flatnonzero(ids.counts != counts)
    if len(wrong):
        findings.problems.append(
            f"{path}: row {wrong[0]} has the count {ids.counts[wrong[0]]}, the sequences hold "
            f"{counts[wrong[0]]}; {_AGAIN}"
        )
    if pc.count_distinct(ids.raw).as_py() != len(ids):
        repeated = pc.value_counts(ids.raw)
        first = repeated.filter(pa.array(repeated.field("counts").to_numpy() > 1))[0]
        findings.problems.append(
            f"{path}: the raw id {first['values'].as_py()!r} is there twice; {_AGAIN}"
        )


def _check_manifest(
    path: Path,
    manifest: Manifest,
    sequences: Sequences,
    split: _Split,
    findings: Findings,
) -> None:
    expected = {
        "users": sequences.num_users,
        "items": sequences.num_items,
        "interactions": len(sequences.items),
        **split.statistics,
    }
    for name, value in expected.items():
        stated = manifest.statistics.get(name)
        if stated != value:
            findings.problems.append(
                f"{path}: statistics say {name} {stated}, the files {value}; {_AGAIN}"
            )
    rows = split_rows(expected)
    if manifest.rows != rows:
        findings.problems.append(f"{path}: rows are {manifest.rows}, should be {rows}; {_AGAIN}")
    if manifest.cardinalities != [sequences.num_items + 1]:
        findings.problems.append(
            f"{path}: cardinalities are {manifest.cardinalities}, should be "
            f"[{sequences.num_items + 1}]; {_AGAIN}"
        )
    findings.fact("split", f"{split.name}, fingerprint {expected['split_fingerprint']}")
