# SPDX-License-Identifier: Apache-2.0
"""Checks files against the manifest, and spec files against each other."""

import time
from pathlib import Path

import tqdm

from recsys.data import spec_document
from recsys.data.errors import DatasetError
from recsys.data.feature_spec import MODEL_SIZE_FILE, SPEC_FILE, FeatureSpec
from recsys.data.manifest import MANIFEST_FILE, Manifest, file_checksum, fingerprint
from recsys.data.verify.report import Findings
from recsys.sizes import DECIMAL, format_bytes

_AGAIN = "copy it again, or prepare the dataset again"
_KEY_BYTES: tuple[int, ...] = (4, 8)
_END_BYTES: tuple[int, ...] = (8,)
"""Of a category in a dictionary, and of the end of one that is a text."""


def load_manifest(root: Path, findings: Findings) -> Manifest | None:
    """Returns the manifest; None if it is missing or damaged."""
    if not (root / MANIFEST_FILE).is_file():
        text = f"no {MANIFEST_FILE}: made by other software; going on without checksums"
        findings.fact("made by", text)
        return None
    try:
        manifest = Manifest.load(root)
    except DatasetError as error:
        findings.problems.append(str(error))
        return None
    engine = " ".join(str(v) for v in manifest.engine.values())
    preset = f", preset {manifest.semantics['preset']}" if "preset" in manifest.semantics else ""
    rejected = sum(manifest.rejected.values())
    note = f", {rejected:,} raw rows were left out" if rejected else ""
    findings.fact("made by", f"{engine} ({manifest.kind}{preset}{note})")
    return manifest


def check_files(root: Path, manifest: Manifest, quick: bool, findings: Findings) -> None:
    """Compares presence, size and (unless quick) checksum of every file."""
    if fingerprint(manifest.files) != manifest.fingerprint:
        findings.problems.append(
            f"{root / MANIFEST_FILE}: the fingerprint does not belong to its list of files; the "
            "manifest was edited: prepare the dataset again"
        )
    present = []
    for name, entry in manifest.files.items():
        path = root / name
        if not path.is_file():
            findings.problems.append(f"{path}: is missing, the manifest lists it; {_AGAIN}")
        elif path.stat().st_size != entry["bytes"]:
            findings.problems.append(
                f"{path}: has {path.stat().st_size:,} bytes, the manifest says "
                f"{entry['bytes']:,}; {_AGAIN}"
            )
        else:
            present.append(name)
    _check_extra_files(root, manifest, findings)
    total = sum(manifest.files[name]["bytes"] for name in present)
    text = f"{len(present):,} of {len(manifest.files):,} have the right size"
    if quick:
        findings.fact(
            "files", f"{text}, {format_bytes(total, DECIMAL)}; checksums not compared (`quick`)"
        )
        return
    start, wrong = time.monotonic(), 0
    with tqdm.tqdm(total=total, unit="B", unit_scale=True, desc="checksums", disable=None) as bar:
        for name in present:
            wrong += not _has_checksum(root / name, manifest.files[name]["xxh3_128"], findings)
            bar.update(manifest.files[name]["bytes"])
    rate = total / 1e6 / max(time.monotonic() - start, 1e-9)
    checked = f"{wrong:,} wrong checksums" if wrong else "checksums match"
    findings.fact("files", f"{text}, {format_bytes(total, DECIMAL)}, {checked} ({rate:,.0f} MB/s)")


def _has_checksum(path: Path, expected: str, findings: Findings) -> bool:
    try:
        now = file_checksum(path)
    except OSError as error:
        findings.problems.append(f"{path}: {error.strerror or error}; make it readable")
        return False
    if now != expected:
        findings.problems.append(
            f"{path}: checksum {now}, the manifest says {expected}: the content changed; {_AGAIN}"
        )
    return now == expected


def _check_extra_files(root: Path, manifest: Manifest, findings: Findings) -> None:
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root).as_posix()
        if name in manifest.files or path.is_dir() or path == root / MANIFEST_FILE:
            continue
        if path.suffix in (".bin", ".parquet", ".npy") and path.name[0] not in "._":
            findings.problems.append(
                f"{path}: is not in the manifest, and a reader could take it for data; remove it, "
                "or prepare the dataset again"
            )
        else:
            findings.warnings.append(f"{path}: is not in the manifest; no reader uses it")


def load_spec(root: Path, num_numerical: int, findings: Findings) -> FeatureSpec | None:
    """Returns the spec of a folder, after comparing its two files."""
    spec = None
    try:
        spec = FeatureSpec.load(root, num_numerical)
        if (root / SPEC_FILE).is_file() and (root / MODEL_SIZE_FILE).is_file():
            _compare_specs(root, spec, findings)
    except DatasetError as error:
        findings.problems.append(str(error))
    return spec


def _compare_specs(root: Path, spec: FeatureSpec, findings: Findings) -> None:
    sizes = FeatureSpec.load_model_size(root / MODEL_SIZE_FILE, len(spec.numerical)).table_sizes
    where = f"{root / MODEL_SIZE_FILE}: "
    remedy = f"; the two files must agree: restore the one that was changed ({SPEC_FILE} counts)"
    features = (*spec.categorical, *spec.lists)
    if len(sizes) != len(features):
        findings.problems.append(
            f"{where}{len(sizes)} features, {SPEC_FILE} has {len(features)}{remedy}"
        )
        return
    for feature, size in zip(features, sizes, strict=True):
        if feature.cardinality != size:
            findings.problems.append(
                f"{where}feature {feature.name}: highest id {size - 1}, {SPEC_FILE} has "
                f"cardinality {feature.cardinality} (highest id {feature.cardinality - 1}){remedy}"
            )


def check_spec(
    root: Path, spec: FeatureSpec, manifest: Manifest | None, findings: Findings
) -> dict[str, str]:
    """Compares the spec with manifest and dictionaries.

    Returns:
        Feature -> dtype that feature_spec.yaml declares.
    """
    if manifest is not None and manifest.cardinalities != list(spec.table_sizes):
        findings.problems.append(
            f"{root / MANIFEST_FILE}: cardinalities {manifest.cardinalities} differ from those of "
            f"the feature spec, {list(spec.table_sizes)}; the spec was replaced: {_AGAIN}"
        )
    for i, feature in enumerate((*spec.categorical, *spec.lists)):
        path = root / "dictionaries" / f"cat_{i}.ends.bin"  # of texts
        is_text = path.is_file()
        path = path if is_text else path.with_name(f"cat_{i}.bin")
        expected = [n * (feature.cardinality - 1) for n in (_END_BYTES if is_text else _KEY_BYTES)]
        if path.is_file() and path.stat().st_size not in expected:
            findings.problems.append(
                f"{path}: has {path.stat().st_size:,} bytes, feature {feature.name} with "
                f"cardinality {feature.cardinality:,} needs "
                f"{' or '.join(f'{size:,}' for size in expected)}; {_AGAIN}"
            )
    is_declared = (root / SPEC_FILE).is_file()
    return spec_document.declared_dtypes(root / SPEC_FILE) if is_declared else {}
