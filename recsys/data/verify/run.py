# SPDX-License-Identifier: Apache-2.0
"""Checks a dataset before training; `recsys-recipes verify` prints the report."""

import time
from pathlib import Path

from recsys.data.feature_spec import MODEL_SIZE_FILE, SPEC_FILE, FeatureSpec
from recsys.data.manifest import LOG_KINDS, MANIFEST_FILE, SEQUENCES_KIND, Manifest
from recsys.data.parquet import ParquetReader, has_parquet, spec_by_ids
from recsys.data.parquet.schema import NoSpecError
from recsys.data.sequences.files import FOLDER
from recsys.data.split_layout import SPLIT_FOLDERS
from recsys.data.verify.files import check_files, check_spec
from recsys.data.verify.findings import Findings
from recsys.data.verify.sequences import check_sequences
from recsys.data.verify.splits import check_splits
from recsys.settings import joined


def verify(root: Path, *, quick: bool = False, num_numerical: int = 13) -> tuple[Findings, str]:
    """Checks a dataset.

    Args:
        quick: compare sizes instead of checksums, and read only a sample of the rows.
        num_numerical: number of numerical features, for datasets with only a model_size.json.

    Returns:
        (findings, text of the report).
    """
    start = time.monotonic()
    findings = Findings([("dataset", str(root))])
    manifest = None
    if (root / MANIFEST_FILE).is_file():
        with findings.collected():
            manifest = Manifest.load(root)
            check_files(root, manifest, quick, findings)
    else:
        text = f"no {MANIFEST_FILE}: made by other software; continuing without checksums"
        findings.facts.append(("made by", text))
    with findings.collected():
        if (manifest.kind == SEQUENCES_KIND) if manifest else (root / FOLDER).is_dir():
            check_sequences(root, manifest, findings)
        elif manifest is None or manifest.kind in (*LOG_KINDS, "synthetic"):
            spec = _load_spec(root, num_numerical, findings)
            lists = f", {len(spec.lists)} of lists" if spec.lists else ""
            text = f"{len(spec.numerical)} numerical, {len(spec.categorical)} categorical{lists}"
            findings.facts.append(("features", f"{text} with {sum(spec.table_sizes):,} ids in all"))
            check_spec(root, spec, manifest, findings)
            check_splits(root, spec, manifest, quick, findings)
        else:
            findings.problems.append(f"{root}: kind {manifest.kind} is unknown; update the code")
    return findings, findings.report(time.monotonic() - start)


def _load_spec(root: Path, num_numerical: int, findings: Findings) -> FeatureSpec:
    """Returns the spec of the folder, else of parquet files, else one from the largest ids."""
    has_spec_file = (root / SPEC_FILE).is_file() or (root / MODEL_SIZE_FILE).is_file()
    if has_spec_file or not has_parquet(root):
        return FeatureSpec.load(root, num_numerical)
    split = next(split for split in SPLIT_FOLDERS if has_parquet(root, split))
    try:
        return ParquetReader(root, split).spec
    except NoSpecError:
        spec = spec_by_ids(root)
        sizes = f"num_embeddings_per_feature {joined(spec.table_sizes)}"
        findings.facts.append(("spec", f"none; by the largest ids {sizes}"))
        return spec
