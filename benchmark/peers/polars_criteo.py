# SPDX-License-Identifier: Apache-2.0
"""Criteo preprocessing in Polars: to parquet, counts, ordered joins.

This was the fastest of the ways tried on 2 cores: without the intermediate parquet the text is
parsed once per column to count (2.6 times slower), and an eager read needs all rows in memory.
Polars does not check rows: it silently fills short rows with nulls.
"""

import os
import tempfile
from pathlib import Path
from typing import Any

from benchmark.peers.criteo_job import (
    CATEGORICAL,
    LABEL,
    NUMERICAL,
    CriteoPeerJob,
    main,
    write_splits,
)


def run(job: CriteoPeerJob) -> None:
    """Runs the whole job.

    Raises:
        ImportError: Polars is not installed.
    """
    os.environ["POLARS_MAX_THREADS"] = str(job.threads)
    try:
        import polars as pl
    except ImportError as error:
        raise ImportError("Polars is needed: pip install -e .[benchmark]") from error
    job.output.mkdir(parents=True)
    with tempfile.TemporaryDirectory(dir=job.output) as folder:
        parquet = [_to_parquet(pl, day, Path(folder) / f"{day.name}.parquet") for day in job.days()]
        dictionaries = _dictionaries(pl, parquet, job.frequency_limit)
        rows = [pl.scan_parquet(p).select(pl.len()).collect().item() for p in parquet]

        def encode(day: int, first: int, stop: int) -> dict[str, Any]:
            frame = pl.scan_parquet(parquet[day]).slice(first, stop - first)
            batch = _encode(pl, frame, dictionaries)
            return {name: batch[name].to_numpy() for name in batch.columns}

        write_splits(job, [d.height + 1 for d in dictionaries], rows, encode)


def _to_parquet(pl: Any, day: Path, target: Path) -> Path:
    """Parses a day's text into parquet; categories become numbers."""
    schema = {LABEL: pl.Int8}
    schema |= dict.fromkeys(NUMERICAL, pl.Int32) | dict.fromkeys(CATEGORICAL, pl.String)
    text = pl.scan_csv(day, separator="\t", has_header=False, quote_char=None, schema=schema)
    numbers = text.with_columns(pl.col(CATEGORICAL).str.to_integer(base=16, dtype=pl.UInt32))
    numbers.sink_parquet(target, compression="lz4", statistics=False, maintain_order=True)
    return target


def _dictionaries(pl: Any, parquet: list[Path], frequency_limit: int) -> list[Any]:
    """Makes a frame (value, id) per column, most frequent value first."""
    frames = []
    for name in CATEGORICAL:
        counted = (
            pl.scan_parquet(parquet)
            .select(pl.col(name).alias("value"))
            .drop_nulls()
            .group_by("value")
            .len("count")
            .filter(pl.col("count") >= frequency_limit)
            .sort(["count", "value"], descending=[True, False])
            .collect(engine="streaming")
        )
        frames.append(
            counted.select("value", pl.int_range(1, pl.len() + 1, dtype=pl.Int32).alias("id"))
        )
    return frames


def _encode(pl: Any, rows: Any, dictionaries: list[Any]) -> Any:
    """Replaces categories by ids and transforms the numerical features."""
    for name, dictionary in zip(CATEGORICAL, dictionaries, strict=True):
        renamed = dictionary.lazy().rename({"value": name, "id": f"{name}_id"})
        rows = rows.join(renamed, on=name, how="left", maintain_order="left")
    raised = pl.col(NUMERICAL).fill_null(0).clip(lower_bound=-1).cast(pl.Float64)
    ids = [pl.col(f"{name}_id").fill_null(0).alias(name) for name in CATEGORICAL]
    encoded = rows.select(LABEL, (raised + 2).log().cast(pl.Float32), *ids)
    # A batch fits in memory, and the in-memory engine joins it at half the CPU time.
    return encoded.collect(engine="in-memory")


if __name__ == "__main__":
    main(run)
