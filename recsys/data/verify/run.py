# SPDX-License-Identifier: Apache-2.0
"""Checks a dataset before training; `python -m dataspec.verify` prints the report."""

import functools
import time
from pathlib import Path

from recsys.data.errors import DatasetError
from recsys.data.feature_spec import MODEL_SIZE_FILE, SPEC_FILE, FeatureSpec
from recsys.data.manifest import LOG_KINDS, SEQUENCES_KIND, Manifest
from recsys.data.parquet import ParquetReader, has_parquet, spec_by_ids
from recsys.data.parquet.schema import NoSpecError
from recsys.data.sequences.files import FOLDER
from recsys.data.split_layout import SPLIT_FOLDERS
from recsys.data.verify.files import check_files, check_spec, load_manifest, load_spec
from recsys.data.verify.report import Findings
from recsys.data.verify.sequences import check_sequences
from recsys.data.verify.splits import check_splits
from recsys.settings import joined

_CLICK_KINDS = (*LOG_KINDS, "synthetic")


def verify(root: Path, *, quick: bool = False, num_numerical: int = 13) -> tuple[Findings, str]:
    """Checks a dataset.

    Args:
        root: folder of the dataset.
        quick: compare sizes instead of checksums, and read a sample of the rows.
        num_numerical: number of numerical features, for datasets with model_size.json only.

    Returns:
        (findings, text of the report).
    """
    start = time.monotonic()
    findings = Findings()
    findings.fact("dataset", str(root))
    manifest = load_manifest(root, findings)
    if manifest is not None:
        check_files(root, manifest, quick, findings)
    tables: list[str] = []
    if (manifest.kind == SEQUENCES_KIND) if manifest else (root / FOLDER).is_dir():
        check_sequences(root, manifest, findings)
    elif manifest is None or manifest.kind in _CLICK_KINDS:
        tables = _check_clicks(root, manifest, quick, num_numerical, findings)
    else:
        findings.problems.append(f"{root}: kind {manifest.kind} is unknown; update the code")
    return findings, _format(findings, tables, time.monotonic() - start)


def _check_clicks(
    root: Path, manifest: Manifest | None, quick: bool, num_numerical: int, findings: Findings
) -> list[str]:
    has_spec_file = (root / SPEC_FILE).is_file() or (root / MODEL_SIZE_FILE).is_file()
    if has_spec_file or not has_parquet(root):
        spec = load_spec(root, num_numerical, findings)
    else:
        spec = _spec_of_parquet(root, findings)
    if spec is None:
        return []
    lists = f", {len(spec.lists)} of lists" if spec.lists else ""
    findings.fact(
        "features",
        f"{len(spec.numerical)} numerical, {len(spec.categorical)} categorical{lists} with "
        f"{sum(spec.table_sizes):,} ids in all",
    )
    declared = check_spec(root, spec, manifest, findings)
    return check_splits(root, spec, manifest, declared, quick, findings)


def _spec_of_parquet(root: Path, findings: Findings) -> FeatureSpec | None:
    """Returns the spec of parquet files, else by the largest ids."""
    problems = []
    for split in filter(functools.partial(has_parquet, root), SPLIT_FOLDERS):
        try:
            return ParquetReader(root, split).spec
        except NoSpecError:
            return _spec_by_ids(root, findings)
        except DatasetError as error:
            problems.append(str(error))
    findings.problems += problems[:1]
    return None


def _spec_by_ids(root: Path, findings: Findings) -> FeatureSpec | None:
    try:
        spec = spec_by_ids(root)
    except DatasetError as error:
        findings.problems.append(str(error))
        return None
    sizes = joined(spec.table_sizes)
    findings.fact("spec", f"none; by the largest ids `num_embeddings_per_feature` {sizes}")
    return spec


def _format(findings: Findings, tables: list[str], seconds: float) -> str:
    width = max(len(name) for name, _ in findings.facts)
    lines = [f"{name.ljust(width)}  {text}" for name, text in findings.facts]
    lines += ["", *tables] if tables else []
    lines += [""] if findings.warnings or findings.problems else []
    lines += [f"warning: {w}" for w in findings.warnings]
    lines += [f"problem: {p}" for p in findings.problems]
    counts = f"{_count(findings.problems, 'problem')}, {_count(findings.warnings, 'warning')}"
    verdict = "FAILED" if findings.problems else "OK"
    return "\n".join([*lines, "", f"{verdict}: {counts} ({seconds:.1f} s)"])


def _count(items: list[str], noun: str) -> str:
    return f"{len(items) or 'no'} {noun}{'' if len(items) == 1 else 's'}"
