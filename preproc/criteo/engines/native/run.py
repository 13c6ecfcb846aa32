# SPDX-License-Identifier: Apache-2.0
"""The native engine: scan, merge and encode, in units that survive an interruption.

scan    every unit of text -> row counts, bad rows, sorted runs of (category, count) per column
merge   runs of the counted rows -> one dictionary per column
encode  every unit of text again -> its rows of the split-binary columns

A unit's results stand under a key of all they depend on, so a changed setting redoes only what it
touches. Units depend on sizes of files alone, never on threads or memory.
"""

from typing import Any

from preproc.criteo.engine import EngineJob, EngineResult, Executor, FileRows
from preproc.criteo.engines import reference
from preproc.criteo.engines.native.encode import encode
from preproc.criteo.engines.native.kernel import binding
from preproc.criteo.engines.native.merge import merge
from preproc.criteo.engines.native.scan import ScannedInput, scan
from preproc.criteo.engines.native.units import NativeSettings, plan_units
from preproc.criteo.rules import REJECT_REASONS
from preproc.files.budget import Threads
from preproc.files.quarantine import QUARANTINE_FILE, write_quarantine


def run(engine_job: EngineJob, settings: NativeSettings | None = None) -> EngineResult:
    """Prepares a dataset with the C++ kernel.

    Args:
        engine_job: what to do.
        settings: sizes that change speed and memory but no output; None chooses.
    """
    if not binding.is_built():
        engine_job.reporter.note(
            "the native kernel is not built (python setup.py build_ext --inplace, needs a C++ "
            "compiler); the reference engine works instead: same bytes, about 50 times slower"
        )
        return reference.run(engine_job)
    job = engine_job.job
    executor = Threads(job.threads, job.memory_limit)
    engine = {"name": "native", "kernel_version": binding.kernel_version()}
    return run_stages(engine_job, executor, settings or NativeSettings(), engine)


def run_stages(
    engine_job: EngineJob, executor: Executor, settings: NativeSettings, engine: dict[str, Any]
) -> EngineResult:
    """Scans, merges and encodes on an executor.

    Args:
        engine_job: what to do.
        executor: works on the units.
        settings: sizes that change speed and memory but no output.
        engine: name and version, for the manifest.
    """
    units = plan_units(engine_job.inputs, settings)
    scanned = scan(engine_job, executor, units, settings)
    dictionaries = merge(engine_job, executor, scanned, settings)
    encoded = encode(engine_job, executor, scanned, dictionaries)
    if any(unit.bad for unit in scanned.units):
        write_quarantine(encoded.dataset / QUARANTINE_FILE, scanned.bad_rows())
    return EngineResult(
        dataset=encoded.dataset,
        engine=engine,
        files=_file_rows(engine_job, scanned),
        rows=encoded.rows,
        positives=encoded.positives,
        cardinalities=dictionaries.cardinalities,
        columns=encoded.columns,
    )


def _file_rows(engine_job: EngineJob, scanned: ScannedInput) -> tuple[FileRows, ...]:
    held = []
    for index in range(len(engine_job.inputs)):
        units = [s.result for s in scanned.units if s.unit.file_index == index]
        held.append(
            FileRows(
                rows=sum(u.rows for u in units),
                lines=sum(u.lines for u in units),
                rejected={r: sum(u.rejected[r] for u in units) for r in REJECT_REASONS},
            )
        )
    return tuple(held)
