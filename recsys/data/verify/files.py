# SPDX-License-Identifier: Apache-2.0
"""Checks files against the manifest, and the sizes of tables against the spec."""

import time
from pathlib import Path

import tqdm

from recsys.data.feature_spec import MODEL_SIZE_FILE, SPEC_FILE, FeatureSpec
from recsys.data.manifest import MANIFEST_FILE, Manifest, file_checksum, fingerprint
from recsys.data.verify.findings import Findings
from recsys.sizes import DECIMAL, format_bytes

AGAIN = "copy it again, or prepare the dataset again"


def check_files(root: Path, manifest: Manifest, quick: bool, findings: Findings) -> None:
    """Compares presence, size and (unless quick) checksum of every file with the manifest."""
    engine = " ".join(str(v) for v in manifest.engine.values())
    preset = f", preset {manifest.semantics['preset']}" if "preset" in manifest.semantics else ""
    rejected = sum(manifest.rejected.values())
    note = f", {rejected:,} raw rows were left out" if rejected else ""
    findings.facts.append(("made by", f"{engine} ({manifest.kind}{preset}{note})"))
    if fingerprint(manifest.files) != manifest.fingerprint:
        findings.problems.append(
            f"{root / MANIFEST_FILE}: the fingerprint does not belong to its list of files; the "
            "manifest was edited: prepare the dataset again"
        )
    sound = {}
    for name, entry in manifest.files.items():
        path = root / name
        size = path.stat().st_size if path.is_file() else None
        if size == entry["bytes"]:
            sound[path] = entry
        else:
            found = "is missing" if size is None else f"has {size:,} bytes"
            findings.problems.append(
                f"{path}: {found}, but the manifest says {entry['bytes']:,} bytes; {AGAIN}"
            )
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root).as_posix()
        if name in manifest.files or path.is_dir() or name == MANIFEST_FILE:
            continue
        if path.suffix in (".bin", ".parquet", ".npy") and path.name[0] not in "._":
            findings.problems.append(
                f"{path}: is not in the manifest, and a reader could take it for data; remove it, "
                "or prepare the dataset again"
            )
        else:
            findings.warnings.append(f"{path}: is not in the manifest; no reader uses it")
    total = sum(entry["bytes"] for entry in sound.values())
    text = f"{len(sound):,} of {len(manifest.files):,} have the right size, "
    text += format_bytes(total, DECIMAL)
    if quick:
        findings.facts.append(("files", f"{text}; checksums not compared (`quick`)"))
        return
    start, wrong = time.monotonic(), 0
    with tqdm.tqdm(total=total, unit="B", unit_scale=True, desc="checksums", disable=None) as bar:
        for path, entry in sound.items():
            try:
                now = f"checksum {file_checksum(path)}"
            except OSError as error:
                now = error.strerror or str(error)
            if now != (expected := f"checksum {entry['xxh3_128']}"):
                wrong += 1
                findings.problems.append(
                    f"{path}: {now}, but the manifest says {expected}: the content changed, or "
                    f"cannot be read; {AGAIN}"
                )
            bar.update(entry["bytes"])
    rate = total / 1e6 / max(time.monotonic() - start, 1e-9)
    checked = f"{wrong:,} wrong checksums" if wrong else "checksums match"
    findings.facts.append(("files", f"{text}, {checked} ({rate:,.0f} MB/s)"))


def check_spec(
    root: Path, spec: FeatureSpec, manifest: Manifest | None, findings: Findings
) -> None:
    """Compares the table sizes of the manifest and of both files of the spec."""
    stated = {} if manifest is None else {MANIFEST_FILE: tuple(manifest.cardinalities)}
    if (root / SPEC_FILE).is_file() and (root / MODEL_SIZE_FILE).is_file():
        with findings.collected():
            sizes = FeatureSpec.load_model_size(root / MODEL_SIZE_FILE, 0).table_sizes
            stated[MODEL_SIZE_FILE] = sizes
    for name, sizes in stated.items():
        if sizes != spec.table_sizes:
            findings.problems.append(
                f"{root / name}: cardinalities {list(sizes)} differ from those of the feature "
                f"spec, {list(spec.table_sizes)}; restore the file that was changed"
            )
