# SPDX-License-Identifier: Apache-2.0
"""Small datasets for the tests, in every format."""

import contextlib
import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from recsys.data.click_columns import ClickColumns
from recsys.data.feature_spec import FeatureSpec
from recsys.data.formats.records import record_bytes
from recsys.data.manifest import Manifest, fingerprint
from recsys.data.parquet import FOLDER, part_name, write_parquet_part
from recsys.data.split_binary import SplitBinaryWriter
from recsys.data.verify.run import verify
from tests.harness import assert_tells

CARDINALITIES = (5, 200, 40_000)
SPEC = FeatureSpec.criteo(CARDINALITIES, num_numerical=2)
ROWS = {"train": 64, "validation": 12, "test": 12}
FORMATS = ("split", "parquet", "binary")


def make_columns(spec: FeatureSpec, rows: int, seed: int = 0) -> ClickColumns:
    """Draws rows; the highest id of every table is among them."""
    generator = np.random.default_rng(seed)
    ids = [generator.integers(0, c, rows) for c in spec.table_sizes]
    for column, cardinality in zip(ids, spec.table_sizes, strict=True):
        column[-1:] = cardinality - 1
    return ClickColumns(
        np.arange(rows) % 4 == 0,
        generator.normal(size=(rows, len(spec.numerical))).astype(np.float16),
        tuple(i.astype(f.dtype) for i, f in zip(ids, spec.categorical, strict=True)),
    )


def write_split(root: Path, split: str, spec: FeatureSpec, columns: ClickColumns) -> None:
    """Writes one split as narrow split binary."""
    with SplitBinaryWriter(root / split, spec, len(columns)) as writer:
        writer.write(0, columns)


def write_binary_records(path: Path, spec: FeatureSpec, columns: ClickColumns) -> None:
    """Appends rows to a file of the earlier format `binary`, or makes one."""
    end = 1 + len(spec.numerical)
    records = np.empty((len(columns), record_bytes(spec) // 4), "<i4")
    records[:, 0] = columns.label
    records[:, 1:end] = columns.numerical.astype("<f4", order="C").view("<i4")
    for i, ids in enumerate(columns.categorical, start=end):
        records[:, i] = ids
    with path.open("ab") as file:
        file.write(records.tobytes())


def write_dataset(root: Path, formats=FORMATS, *, spec=SPEC, rows=None, manifest=True) -> Path:
    """Writes a dataset, finished by its manifest."""
    rows = rows or ROWS
    root.mkdir(parents=True, exist_ok=True)
    spec.save(root)
    positives = {}
    for seed, (split, count) in enumerate(rows.items()):
        columns = make_columns(spec, count, seed)
        positives[split] = int(columns.label.sum())
        if "split" in formats:
            write_split(root, split, spec, columns)
        if "binary" in formats:
            write_binary_records(root / f"{split}_data.bin", spec, columns)
        if "parquet" in formats:
            half = max(count // 2, 1)
            for part, start in enumerate(range(0, count, half)):
                path = root / FOLDER / split / part_name(part)
                write_parquet_part(path, spec, [columns[start : start + half]])
    if manifest:
        sizes = list(spec.table_sizes)
        write_manifest(root, rows=rows, positives=positives, cardinalities=sizes)
    return root


def write_manifest(root: Path, *, rows, positives, **contents) -> None:
    """Writes the manifest of what is in a folder."""
    files = Manifest.describe_files(root)
    values = {"kind": "synthetic", "engine": {"name": "test"}, "semantics": {}, "rejected": {}}
    values |= {"source_files": [], "files": files, "fingerprint": fingerprint(files)}
    Manifest(rows=dict(rows), positives=dict(positives), **values | contents).save(root)


def sign_again(root: Path) -> None:
    """Makes the manifest agree with changed files: only their content can give them away."""
    files = Manifest.describe_files(root)
    dataclasses.replace(Manifest.load(root), files=files, fingerprint=fingerprint(files)).save(root)


def problems(root: Path, **options) -> list[str]:
    """Returns the findings of verify."""
    return verify(root, **options)[0].problems


def assert_found(root: Path, *problems_of: Sequence[object]) -> None:
    """Asserts that verify finds a problem for each of these facts, see `assert_tells`."""
    found = problems(root)
    for facts in problems_of:
        first = next((problem for problem in found if _tells(problem, facts)), None)
        assert first is not None, f"nothing tells {facts}: {found}"
        found.remove(first)


def _tells(message: str, facts: Sequence[object]) -> bool:
    with contextlib.suppress(AssertionError):
        assert_tells(message, *facts)
        return True
    return False


def num_open_files() -> int:
    """Counts the open files of this process."""
    return len(list(Path("/proc/self/fd").iterdir()))


def assert_equal(found: ClickColumns, expected: ClickColumns) -> None:
    """Compares values and dtypes."""
    np.testing.assert_array_equal(found.label, expected.label)
    np.testing.assert_array_equal(found.numerical, expected.numerical)
    assert found.label.dtype == np.bool_
    assert len(found.categorical) == len(expected.categorical)
    for one, other in zip(found.categorical, expected.categorical, strict=True):
        np.testing.assert_array_equal(one, other)
