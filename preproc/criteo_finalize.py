# SPDX-License-Identifier: Apache-2.0
"""The last stage of every engine: spec and manifest, then one rename."""

import dataclasses
from pathlib import Path

from dataspec.feature_spec import FeatureSpec
from dataspec.manifest import Manifest, fingerprint
from preproc.criteo_engine import EngineJob, EngineResult
from preproc.criteo_schema import REJECT_REASONS


def finalize(engine_job: EngineJob, result: EngineResult) -> Path:
    """Completes the staged dataset and gives it its final name.

    Returns:
        The dataset folder.
    """
    job, dataset = engine_job.job, result.dataset
    FeatureSpec.criteo(result.cardinalities).save(dataset)
    total = sum(p.stat().st_size for p in dataset.rglob("*") if p.is_file())
    done = 0
    with engine_job.reporter.stage("finish", total, lambda: (done, 0)):
        files = Manifest.describe_files(dataset)
        done = total
    sources = [
        {"name": source.path.name, "bytes": source.size, "rows": held.rows}
        | {"rejected": sum(held.rejected.values())}
        for source, held in zip(engine_job.inputs, result.files, strict=True)
    ]
    Manifest(
        kind="criteo",
        engine=result.engine,
        semantics={"preset": job.preset, **dataclasses.asdict(job.semantics)},
        source_files=sources,
        rows={str(k): v for k, v in result.rows.items()},
        positives={str(k): v for k, v in result.positives.items()},
        rejected={r: sum(f.rejected[r] for f in result.files) for r in REJECT_REASONS},
        cardinalities=list(result.cardinalities),
        files=files,
        fingerprint=fingerprint(files),
    ).save(dataset)
    engine_job.workspace.publish(dataset)
    return job.output
