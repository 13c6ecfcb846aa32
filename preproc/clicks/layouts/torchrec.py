# SPDX-License-Identifier: Apache-2.0
"""Writes split binary in the layout of TorchRec with NVTabular.

It is the wide flavour of split binary: float32 labels and features, int32 ids, 160 bytes per Criteo
row, and TorchRec's column names.
"""

from preproc.clicks.columns import ColumnsReader
from preproc.clicks.engine import EngineJob, EngineResult
from preproc.clicks.job import ClicksJob
from preproc.clicks.rules import NUM_COLUMNS, Split
from preproc.files.budget import run_units, share_budget
from preproc.files.errors import CancelledError as CancelledError
from preproc.files.progress import Progress
from preproc.files.workspace import marked_files, write_record
from recsys.data.feature_spec import FeatureSpec
from recsys.data.split_binary import SplitBinaryWriter

UNIT_ROWS = 1 << 20
_CHUNK_ROWS = 1 << 15
_CHUNK_BYTES = 32 * 2**20
"""Memory of a thread: a chunk of rows in both flavours, and temporary arrays."""

ROW_BYTES = 4 * NUM_COLUMNS


def dataset_spec(job: ClicksJob, cardinalities: tuple[int, ...]) -> FeatureSpec:
    """Returns names and dtypes of the columns in a job's layout.

    TorchRec's numerical features are float32 with the names int_0, int_1, ... .
    """
    if job.layout == "torchrec":
        return FeatureSpec.criteo(cardinalities, numerical_dtype="float32", numerical_prefix="int_")
    return job.semantics.feature_spec(cardinalities)


def write_wide(engine_job: EngineJob, result: EngineResult) -> None:
    """Writes the splits in the wide flavour; skips units that are already written."""
    job, rows = engine_job.job, result.rows
    records = result.dataset.parent / "wide"
    records.mkdir(exist_ok=True)
    units = [(split, first) for split in rows for first in range(0, max(rows[split], 1), UNIT_ROWS)]
    paths = {(split, first): records / f"{split}_{first}.json" for split, first in units}
    missing = [unit for unit in units if not paths[unit].exists()]
    spec = dataset_spec(job, result.cardinalities)
    progress = Progress()

    def stop_of(unit: tuple[Split, int]) -> int:
        return min(unit[1] + UNIT_ROWS, rows[unit[0]])

    def work(unit: tuple[Split, int], writer: SplitBinaryWriter) -> None:
        split, first = unit
        last = stop_of(unit)
        ranges = ((r, min(r + _CHUNK_ROWS, last)) for r in range(first, last, _CHUNK_ROWS))
        for start, chunk in reader.read(split, ranges):
            if progress.stop:
                raise CancelledError("writing the wide flavour was cancelled")
            writer.write(start, chunk)
        writer.sync()
        write_record(paths[unit], {"rows": last - first})

    progress.rows = sum(rows.values()) - sum(stop_of(unit) - unit[1] for unit in missing)
    threads, _ = share_budget(job.memory_limit, job.threads, _CHUNK_BYTES)
    total = sum(rows.values()) * ROW_BYTES
    with (
        ColumnsReader(result.columns, spec) as reader,
        engine_job.reporter.stage(
            "wide", total, lambda: (progress.rows * ROW_BYTES, progress.rows)
        ),
        marked_files(paths.values()) as stack,
    ):
        writers = {
            split: stack.enter_context(
                SplitBinaryWriter(result.dataset / split, spec, rows[split], "wide")
            )
            for split in {split for split, _ in missing}
        }
        for unit, _ in run_units(
            missing, lambda unit: work(unit, writers[unit[0]]), threads, progress
        ):
            progress.rows += stop_of(unit) - unit[1]
