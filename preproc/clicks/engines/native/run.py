# SPDX-License-Identifier: Apache-2.0
"""The native engine: scan, merge and encode, in resumable units.

scan    each unit of text -> row counts, rejected rows, sorted runs of (category, count) per column
merge   runs of the counted rows -> a dictionary per column
encode  each unit of text again -> its rows of the split-binary columns

The results of a unit are in a folder named by a hash of everything they depend on, so a changed
setting repeats only the stages that it affects. Units depend only on file sizes, never on threads
or memory. A scan keeps checksums of the text. They are part of the key of later stages, and the
encode stage compares them with the text that it reads.
"""

from typing import Any

from preproc.clicks.engine import EngineJob, EngineResult
from preproc.clicks.engines import reference
from preproc.clicks.engines.native.encode import encode
from preproc.clicks.engines.native.merge import merge
from preproc.clicks.engines.native.scan import rejected_rows, scan
from preproc.clicks.engines.native.units import NativeSettings, plan_units
from preproc.clicks.kernel import binding
from preproc.clicks.schema.row_format import Edges
from preproc.files.budget import Threads
from recsys.installation import command_for


def run(engine_job: EngineJob, settings: NativeSettings | None = None) -> EngineResult:
    """Prepares a dataset with the C++ kernel."""
    if not binding.is_built():
        engine_job.reporter.note(
            f"the native kernel is not built ({command_for('kernels')} adds it); using the "
            "reference engine instead: same bytes, about 50 times slower"
        )
        return reference.run(engine_job)
    job = engine_job.job
    executor = Threads(job.threads, job.memory_limit)
    engine = {"name": "native", "kernel_version": binding.kernel_version()}
    return run_stages(engine_job, executor, settings or NativeSettings(), engine)


def run_stages(
    engine_job: EngineJob, executor: Threads, settings: NativeSettings, engine: dict[str, Any]
) -> EngineResult:
    """Scans, merges and encodes on an executor; `engine` is the manifest's."""
    units = plan_units(engine_job, settings)
    scanned = scan(engine_job, executor, units, settings)
    engine_job.check_inputs()
    edges: Edges = {}
    dictionaries = engine_job.dictionaries
    if dictionaries is None:
        merged, edges = merge(engine_job, executor, scanned, settings)
        dictionaries = engine_job.with_reused_ids(merged)
        engine_job, scanned = engine_job.with_edges(edges), scanned.with_edges(edges)
    plan = encode(engine_job, executor, scanned, dictionaries)
    engine_job.check_inputs()
    return plan.stage.finish(
        engine=engine,
        files=scanned.files,
        bounds=plan.bounds,
        clicks=plan.stage.clicks(scanned_unit.unit.name for scanned_unit in scanned.units),
        dictionaries=dictionaries,
        rejected=rejected_rows(scanned.units),
        edges=edges,
    )
