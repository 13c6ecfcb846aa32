# SPDX-License-Identifier: Apache-2.0
"""The last stages of every engine: shuffle, parquet, spec and manifest, then one rename."""

import dataclasses
from pathlib import Path

from preproc.criteo.engine import EngineJob, EngineResult
from preproc.criteo.rules import REJECT_REASONS
from preproc.criteo.shuffle_train import shuffle_train
from preproc.criteo.torchrec import dataset_spec, separate_dataset, write_wide
from recsys.data.manifest import Manifest, fingerprint


def finalize(engine_job: EngineJob, result: EngineResult) -> Path:
    """Completes the staged dataset and gives it its final name.

    Returns:
        The dataset folder.
    """
    result = _complete(engine_job, result)
    job, dataset = engine_job.job, result.dataset
    dataset_spec(job.layout, result.cardinalities).save(dataset, wide=job.layout == "torchrec")
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


def _complete(engine_job: EngineJob, result: EngineResult) -> EngineResult:
    """Does what engines leave to others: the shuffle, then formats made of rows in that order."""
    job = engine_job.job
    if job.semantics.shuffle_seed is not None and not result.columns.is_shuffled:
        result = shuffle_train(engine_job, result, job.semantics.shuffle_seed)
    if job.layout == "torchrec":
        result = separate_dataset(result)
    if "parquet" in job.format:
        from preproc.criteo.parquet import write_splits  # PyArrow, only for those who want parquet

        write_splits(engine_job, result)
    if "split" in job.format and job.layout == "torchrec":
        write_wide(engine_job, result)
    return result
