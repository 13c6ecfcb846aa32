# SPDX-License-Identifier: Apache-2.0
"""The NVTabular engine: NVTabular's operators on cuDF or pandas.

read     each file of text -> parquet parts of valid rows, and a file of rejected rows
count    Categorify counts the categories of each group of parts; we order the dictionaries
encode   Categorify with these vocabularies, FillMissing, Clip and the logarithm -> columns

It uses cuDF if there is a GPU, and writes the same bytes as the native engine. A group is the parts
of one request to NVTabular. Finished files and groups are kept for a resumed run. NVTabular 23.8
needs older packages, so it runs in a process with its own environment (`make nvtabular`).
"""

import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from preproc.clicks.columns import EncodeStage, SplitColumnsWriter, open_stage
from preproc.clicks.dictionaries import Dictionaries
from preproc.clicks.engine import EngineJob, EngineResult
from preproc.clicks.engines.nvtabular.dictionary import build_dictionaries
from preproc.clicks.engines.nvtabular.rows import (
    LABEL,
    MISSING_CATEGORY,
    NUMERICAL,
    ROW,
    ValidRows,
    category_columns,
    read_rows,
)
from preproc.clicks.rules import Bounds, ClicksSemantics, Split, split_bounds
from preproc.nvtabular.counts import (
    GroupProgress,
    RowFile,
    group_parts,
    groups_of,
    read_in_order,
    total_bytes,
    write_vocabulary,
)
from preproc.nvtabular.process import FIRST_ID, NvtabularProcess
from recsys.data.click_columns import ClickColumns
from recsys.data.feature_spec import FeatureSpec

LOG_FILE = "nvtabular.log"


def run(engine_job: EngineJob) -> EngineResult:
    """Prepares a dataset with NVTabular.

    Raises:
        PreprocError: NVTabular is not installed or failed, or the input is not valid.
    """
    job = engine_job.job
    process = NvtabularProcess(
        job.nvtabular_python,
        job.nvtabular_device,
        job.memory_limit,
        job.threads,
        engine_job.workspace.root / LOG_FILE,
    )
    with process:
        rows = read_rows(engine_job)
        bounds = split_bounds([f.rows for f in rows.files], job.semantics)
        total = sum(f.rows for f in rows.files)
        counted = total if job.semantics.dictionary_days == "all" else bounds["train"][1]
        dictionaries = engine_job.dictionaries or engine_job.with_reused_ids(
            build_dictionaries(engine_job, process, rows, counted)
        )
        spec = FeatureSpec.criteo(dictionaries.cardinalities)
        stage, clicks = _encode(engine_job, process, rows, dictionaries, spec, bounds)
    return stage.finish(
        engine={"name": "nvtabular", "version": process.version, "device": process.device},
        files=rows.files,
        bounds=bounds,
        clicks=clicks,
        dictionaries=dictionaries,
        rejected=rows.rejected_rows(),
    )


def _encode(
    engine_job: EngineJob,
    process: NvtabularProcess,
    rows: ValidRows,
    dictionaries: Dictionaries,
    spec: FeatureSpec,
    bounds: Bounds,
) -> tuple[EncodeStage, dict[Split, int]]:
    """Encodes the missing groups; returns the stage and the clicks of each split."""
    size = group_parts(engine_job.job.memory_limit)
    stage = open_stage(engine_job, dictionaries, rows=rows.key, group_parts=size)
    scratch = engine_job.workspace.unit_dir("nvtabular_encode", stage.key)
    groups = list(groups_of(rows.parts, size))
    missing = [i for i in range(len(groups)) if stage.record(_group_name(i)) is None]
    names = category_columns(engine_job.job.semantics)
    progress = GroupProgress()
    for index in set(range(len(groups))) - set(missing):
        progress.skip(groups[index])
    total = total_bytes(rows.parts)
    with engine_job.reporter.stage("encode", total, progress.counters):
        if missing:
            _prepare(process, groups[0][:1], dictionaries, engine_job.job.semantics, scratch)
            with SplitColumnsWriter(stage, spec, bounds).open() as writer:
                for index in missing:
                    before = first = sum(file.rows for group in groups[:index] for file in group)
                    clicks = Counter[Split](dict.fromkeys(bounds, 0))
                    for columns in _encode_group(
                        process, groups[index], first, names, scratch, progress
                    ):
                        clicks.update(writer.write(first, columns))
                        first += len(columns)
                    writer.finish_unit(_group_name(index), [(before, first)], clicks)
    shutil.rmtree(scratch)
    return stage, stage.clicks(_group_name(i) for i in range(len(groups)))


def _encode_group(
    process: NvtabularProcess,
    group: list[RowFile],
    first: int,
    names: Sequence[str],
    scratch: Path,
    progress: GroupProgress,
) -> Iterator[ClickColumns]:
    """Yields the encoded parts of a group from row `first` on."""
    encoded = scratch / "encoded"
    progress.run(process, {"do": "encode", "folder": str(encoded)}, group)
    files = (RowFile(encoded / file.path.name, file.rows) for file in group)
    for table in read_in_order(files, ROW, first):
        yield _click_columns(table, names)


def _group_name(index: int) -> str:
    return f"{index:05d}"


def _prepare(
    process: NvtabularProcess,
    parts: list[RowFile],
    dictionaries: Dictionaries,
    semantics: ClicksSemantics,
    scratch: Path,
) -> None:
    """Sends NVTabular the vocabularies and the transform of numerical features."""
    vocabularies = {}
    names = category_columns(semantics)
    for name, categories in zip(names, dictionaries.load(), strict=True):
        # The missing category comes first: it gets id 0, and no vocabulary is empty.
        values = np.concatenate([[MISSING_CATEGORY], categories.values]).astype(np.int64)
        vocabularies[name] = write_vocabulary(scratch, name, values)
    request = {
        "do": "prepare",
        "minimum": semantics.numerical_min,
        "offset": semantics.numerical_offset,
        "fill": {"raw_zero": "input", "output_zero": "output"}[semantics.numerical_missing],
        "parts": [str(p.path) for p in parts],
        "folder": str(scratch / "vocabularies"),
        "kept": [ROW, LABEL],
        "numerical": list(NUMERICAL),
        "vocabularies": vocabularies,
    }
    process.call(request, lambda _: None)


def _click_columns(table: pa.Table, names: Sequence[str]) -> ClickColumns:
    """Returns the columns of an encoded part."""
    ids = (table[name].to_numpy() for name in names)
    return ClickColumns(
        table[LABEL].to_numpy() == 1,
        np.stack([table[name].to_numpy() for name in NUMERICAL], axis=1).astype(np.float32),
        tuple(np.maximum(i - FIRST_ID, 0).astype(np.int32) for i in ids),
    )
