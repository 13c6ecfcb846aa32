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
from preproc.clicks.growth.rare_counts import read_narrow, write_narrow
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
        "nvtabular_dictionaries",
        rows=rows.key,
        counted=counted,
        frequency_limit=limit,
        **engine_job.growth_key,
    )
    growth = engine_job.growth
    dictionaries = Dictionaries(
        folder, job.semantics.key_types, folder.name, has_counts=growth is not None
    )
    for column in dictionaries.missing():
        values, counts = _counts(folders, names[column], job.memory_limit)
        before = np.empty(0, np.uint32)
        if growth is not None and growth.known is not None:
            before = growth.known.load_column(column).values
            values, counts = _added(values, counts, growth.known.counts_path(column), before)
        if growth is not None:
            is_rare = counts < max(limit, 1)
            write_narrow(dictionaries.counts_path(column), values[is_rare], counts[is_rare])
        new = order_dictionary(values, counts, limit)
        dictionaries.save(column, Keys("uint32", np.concatenate([before, new])))
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


def _counts(
    folders: list[Path], name: str, memory_limit: int
) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint64]]:
    """Returns the categories of a column, and the count of each."""
    if not folders:
        return np.empty(0, np.uint32), np.empty(0, np.uint64)
    remedy = f"{REMEDIES}, or use `engine` native, which merges piece by piece"
    distinct, counts = merge_counts(folders, name, memory_limit, remedy)
    values = distinct.to_numpy()
    present = values != MISSING_CATEGORY
    return values[present].astype(np.uint32), counts[present].astype(np.uint64)


def _added(
    values: npt.NDArray[np.uint32],
    counts: npt.NDArray[np.uint64],
    rare: Path,
    known: npt.NDArray[np.uint32],
) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint64]]:
    """Adds the counts of rare categories, and leaves out the known ones."""
    rare_values, rare_counts = read_narrow(rare)
    distinct, at = np.unique(np.concatenate([values, rare_values]), return_inverse=True)
    total = np.zeros(len(distinct), np.uint64)
    np.add.at(total, at, np.concatenate([counts, rare_counts]))
    is_new = ~np.isin(distinct, known)
    return distinct[is_new], total[is_new]
