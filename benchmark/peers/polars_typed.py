# SPDX-License-Identifier: Apache-2.0
"""Typed preprocessing in Polars: parse, count exact texts, ordered joins, in memory.

python -m benchmark.peers.polars_typed LOG.csv OUTPUT_FOLDER THREADS FREQUENCY_LIMIT
"""

import os
import sys
from pathlib import Path

import numpy as np

from recsys.data.feature_spec import index_dtype

PARTS = (0.8, 0.1, 0.1)


def run(log: Path, output: Path, threads: int, frequency_limit: int) -> None:
    """Runs the whole job."""
    os.environ["POLARS_MAX_THREADS"] = str(threads)
    import polars as pl

    columns = pl.scan_csv(log).collect_schema().names()
    texts = [name for name in columns if name.startswith("text_")]
    numbers = [name for name in columns if name.startswith(("int_", "float_"))]
    types = dict.fromkeys(texts, pl.String) | dict.fromkeys(numbers, pl.Float64)
    frame = pl.read_csv(log, schema_overrides=types, quote_char='"')
    train = int(PARTS[0] * len(frame) + 1e-9)
    ends = [train, int((PARTS[0] + PARTS[1]) * len(frame) + 1e-9), len(frame)]
    logs = frame.select((pl.col(numbers).fill_null(0).clip(lower_bound=0) + 1).log())
    arrays = {
        "label": frame["click"].to_numpy().astype(np.bool_),
        "numerical": logs.cast(pl.Float32).to_numpy(order="c"),
    }
    for number, name in enumerate(texts):
        kept = (
            frame[:train]
            .select(name)
            .drop_nulls()
            .group_by(name)
            .len()
            .filter(pl.col("len") >= frequency_limit)
            .sort("len", pl.col(name).str.len_bytes(), name, descending=[True, False, False])
            .select(name, pl.int_range(1, pl.len() + 1, dtype=pl.Int32).alias("id"))
        )
        joined = frame.select(name).join(kept, on=name, how="left", maintain_order="left")
        ids = joined["id"].fill_null(0).to_numpy()
        arrays[f"cat_{number}"] = ids.astype(index_dtype(kept.height + 1))
    start = 0
    for split, end in zip(("train", "validation", "test"), ends, strict=True):
        (output / split).mkdir(parents=True)
        for name, array in arrays.items():
            array[start:end].tofile(output / split / f"{name}.bin")
        start = end


if __name__ == "__main__":
    run(Path(sys.argv[1]), Path(sys.argv[2]), *map(int, sys.argv[3:]))
