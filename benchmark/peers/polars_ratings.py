# SPDX-License-Identifier: Apache-2.0
"""Ratings to sequences in Polars: parse, filter, number, order, in memory.

python -m benchmark.peers.polars_ratings RATINGS.csv OUTPUT_FOLDER THREADS LEAST_RATINGS
"""

import os
import sys
from pathlib import Path


def run(ratings: Path, output: Path, threads: int, least: int) -> None:
    """Writes the sequences of users with at least `least` ratings, and both maps."""
    os.environ["POLARS_MAX_THREADS"] = str(threads)
    import polars as pl

    columns = {"userId": pl.Int64, "movieId": pl.Int64, "timestamp": pl.Int64}
    frame = pl.read_csv(ratings, columns=list(columns), schema_overrides=columns)

    def counts(name: str) -> pl.DataFrame:
        return frame.group_by(name).agg(pl.len().cast(pl.Int64).alias("count"))

    users = counts("userId").filter(pl.col("count") >= least).sort("userId")
    users = users.with_columns(user_id=pl.int_range(pl.len(), dtype=pl.Int64))
    frame = frame.join(users.select("userId", "user_id"), on="userId", maintain_order="left")
    items = counts("movieId").sort("count", "movieId", descending=[True, False])
    items = items.with_columns(item_id=pl.int_range(1, pl.len() + 1, dtype=pl.Int32))
    frame = frame.join(items.select("movieId", "item_id"), on="movieId", maintain_order="left")
    ordered = frame.sort("user_id", "timestamp", maintain_order=True)
    sequences = ordered.group_by("user_id", maintain_order=True).agg(pl.col("item_id"))
    (output / "sequences").mkdir(parents=True)
    sequences.rename({"item_id": "items"}).write_parquet(output / "sequences/part-0000.parquet")
    for dense, raw, table in (("user_id", "userId", users), ("item_id", "movieId", items)):
        made = table.select(dense, pl.col(raw).cast(pl.String).alias("raw_id"), "count")
        made.write_parquet(output / f"{dense[:4]}_map.parquet")


if __name__ == "__main__":
    run(Path(sys.argv[1]), Path(sys.argv[2]), *map(int, sys.argv[3:]))
