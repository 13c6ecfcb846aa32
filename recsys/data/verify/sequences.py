# SPDX-License-Identifier: Apache-2.0
"""Checks sequences against their maps, their manifest and the rules for ids."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from recsys.data.arrow_columns import column_of, numbers_of
from recsys.data.manifest import MANIFEST_FILE, Manifest
from recsys.data.sequences.files import (
    ITEM_MAP_FILE,
    USER_MAP_FILE,
    read_item_map,
    read_sequences,
    read_user_map,
)
from recsys.data.sequences.histories import RawIds, order_raw_ids
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
from recsys.data.verify.files import AGAIN
from recsys.data.verify.findings import Findings


def check_sequences(root: Path, manifest: Manifest | None, findings: Findings) -> None:
    """Reads all sequences and checks them against the format.

    Raises:
        DatasetError: a file violates the format, so that nothing else can be checked.
    """
    sequences, users, items = read_sequences(root), read_user_map(root), read_item_map(root)
    num_users, total = sequences.num_users, len(sequences.items)
    if len(users) != num_users:
        findings.problems.append(
            f"{root / USER_MAP_FILE}: has {len(users):,} users, the sequences {num_users:,}; "
            f"{AGAIN}"
        )
        return
    text = f"{num_users:,} users, {len(items):,} items, {total:,} interactions"
    findings.facts.append(("sequences", text))
    if num_users:
        lengths = sequences.lengths
        text = f"mean {lengths.mean():.1f}, median {np.median(lengths):.0f}"
        findings.facts.append(("lengths", f"{lengths.min():,} to {lengths.max():,}, {text}"))
    by_raw = order_raw_ids(users.raw)
    _check_map(root / USER_MAP_FILE, users, sequences.lengths, by_raw, findings)
    with findings.collected():
        titles = read_titles(root, len(items))
        if titles is not None:
            text = f"of {sum(map(bool, titles)):,} of {len(items):,} items"
            findings.facts.append(("titles", text))
    semantics = {} if manifest is None else manifest.semantics
    rule, counts = str(semantics.get("split", LEAVE_ONE_OUT)), items.counts
    try:
        if quantile := parse_split(rule):
            statistics = temporal_statistics(sequences, quantile, users, items)
            counts, rule = counts_before(sequences, statistics["cut"]), f"{rule}, cut at "
            rule += str(statistics["cut"])
        else:
            statistics = {"split_fingerprint": split_fingerprint(sequences, users, items)}
            rule = "leave one out"
    except ValueError as error:
        findings.problems.append(f"{root / MANIFEST_FILE}: split {rule}: {error}")
        return
    order = order_raw_ids(items.raw)
    order = order[np.argsort(-counts[order], kind="stable")]
    if DICTIONARIES in semantics or (manifest is not None and manifest.history):
        order = np.arange(len(items))  # that of another dataset, or of the days before
    met = np.bincount(sequences.items, minlength=len(items) + 1)[1:]
    _check_map(root / ITEM_MAP_FILE, items, met, order, findings)
    if manifest is None:
        return
    findings.facts.append(("split", f"{rule}, fingerprint {statistics['split_fingerprint']}"))
    statistics |= {"users": num_users, "items": len(items), "interactions": total}
    stated = {name: manifest.statistics.get(name) for name in statistics}
    pairs = {name: (stated[name], value) for name, value in statistics.items()}
    pairs["rows"] = (manifest.rows, split_rows(statistics))
    pairs["cardinalities"] = (manifest.cardinalities, [len(items) + 1])
    for name, (said, value) in pairs.items():
        if said != value:
            findings.problems.append(
                f"{root / MANIFEST_FILE}: {name} {said}, but the files have {value}; {AGAIN}"
            )


def _check_map(
    path: Path,
    ids: RawIds,
    counts: npt.NDArray[np.int64],
    order: npt.NDArray[np.int64],
    findings: Findings,
) -> None:
    """Compares counts with the sequences, and the order of raw ids with the format's."""
    wrong = np.flatnonzero(ids.counts != counts)
    faults = [
        f"row {row} has the count {ids.counts[row]}, but the sequences hold {counts[row]}"
        for row in wrong[:1]
    ]
    found = pc.value_counts(ids.raw)
    twice = found.field("values").filter(column_of(numbers_of(found.field("counts")) > 1))
    faults += [f"duplicate raw id {raw!r}" for raw in twice[:1].to_pylist()]
    if not np.array_equal(order, np.arange(len(ids))):
        faults.append("not in the order of raw ids (of items: by count descending, then raw id)")
    findings.problems += [f"{path}: {fault}; {AGAIN}" for fault in faults]
