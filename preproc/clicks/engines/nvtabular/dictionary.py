# SPDX-License-Identifier: Apache-2.0
"""Makes dictionaries from NVTabular's counts of categories.

NVTabular sorts categories of equal count in no stable order and numbers them from 3, so its ids
are not used. Instead its counts are merged and ordered here by the rules (count descending, then
value ascending), and NVTabular encodes with vocabularies in this order.
"""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq

from preproc.clicks.dictionaries import Dictionaries, Keys
from preproc.clicks.engine import EngineJob
from preproc.clicks.engines.nvtabular.rows import (
    MISSING_CATEGORY,
    ValidRows,
    category_columns,
    write_part,
)
from preproc.clicks.rules import REMEDIES, order_dictionary
from preproc.nvtabular.counts import RowFile, count_columns, group_parts, merge_counts
from preproc.nvtabular.process import NvtabularProcess


def build_dictionaries(
    engine_job: EngineJob, process: NvtabularProcess, rows: ValidRows, counted: int
) -> Dictionaries:
    """Makes the missing dictionaries from the first `counted` rows.

    Raises:
        PreprocError: NVTabular failed, or the counts of a column do not fit the memory limit.
    """
    job = engine_job.job
    limit, size = job.semantics.frequency_limit, group_parts(job.memory_limit)
    folder = engine_job.work_folder(
        "nvtabular_count", rows=rows.key, counted=counted, group_parts=size
    )
    parts = _first_parts(rows, counted, folder)
    names = category_columns(job.semantics)
    folders = count_columns(process, parts, names, folder, size, engine_job.reporter)
    folder = engine_job.work_folder(
        "nvtabular_dictionaries", rows=rows.key, counted=counted, frequency_limit=limit
    )
    dictionaries = Dictionaries(folder, job.semantics.key_types, folder.name)
    for column in dictionaries.missing():
        categories = _dictionary(folders, names[column], limit, job.memory_limit)
        dictionaries.save(column, Keys("uint32", categories))
    return dictionaries


def _first_parts(rows: ValidRows, counted: int, folder: Path) -> list[RowFile]:
    """Returns parts with exactly the first `counted` rows."""
    parts, before = [], 0
    for file in rows.parts:
        if before + file.rows <= counted:
            parts.append(file)
        elif before < counted:
            cut = RowFile(folder / "cut.parquet", counted - before)
            if not cut.path.exists():
                write_part(cut.path, pq.read_table(file.path).slice(0, cut.rows))
            parts.append(cut)
        before += file.rows
    return parts


def _dictionary(
    folders: list[Path], name: str, limit: int, memory_limit: int
) -> npt.NDArray[np.uint32]:
    """Returns the kept categories of a column, in id order."""
    if not folders:
        return np.empty(0, np.uint32)
    remedy = f"{REMEDIES}, or use `engine` native, which merges piece by piece"
    distinct, counts = merge_counts(folders, name, memory_limit, remedy)
    values = distinct.to_numpy()
    present = values != MISSING_CATEGORY
    values, counts = values[present].astype(np.uint32), counts[present].astype(np.uint64)
    return order_dictionary(values, counts, limit)
