# SPDX-License-Identifier: Apache-2.0
"""Criteo preprocessing in DuckDB: to parquet, counts, ordered joins.

DuckDB refuses rows with a wrong number of fields, but silently rounds `1.5` to 2.
"""

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
        ImportError: DuckDB is not installed.
    """
    try:
        import duckdb
    except ImportError as error:
        raise ImportError("DuckDB is needed: pip install -e .[benchmark]") from error
    job.output.mkdir(parents=True)
    with tempfile.TemporaryDirectory(dir=job.output) as folder, duckdb.connect() as db:
        db.execute(f"SET threads = {job.threads}")
        db.execute(f"SET temp_directory = '{folder}'")
        db.execute("SET enable_progress_bar = false")
        parquet = [_to_parquet(db, day, Path(folder) / f"{day.name}.parquet") for day in job.days()]
        cardinalities = _make_dictionaries(db, parquet, job.frequency_limit)
        rows = [_scalar(db, "SELECT count(*) FROM read_parquet(?)", str(p)) for p in parquet]
        write_splits(
            job,
            cardinalities,
            rows,
            lambda day, first, stop: _encode(db, parquet[day], first, stop),
        )


def _scalar(db: Any, query: str, *arguments: object) -> int:
    return int(db.execute(query, arguments).fetchone()[0])


def _to_parquet(db: Any, day: Path, target: Path) -> Path:
    """Parses a day's text into parquet; categories become numbers."""
    types = {LABEL: "TINYINT"} | dict.fromkeys(NUMERICAL, "INTEGER")
    types |= dict.fromkeys(CATEGORICAL, "VARCHAR")
    columns = ", ".join(f"'{name}': '{kind}'" for name, kind in types.items())
    categories = ", ".join(f"('0x' || {name})::UINTEGER AS {name}" for name in CATEGORICAL)
    db.execute(
        f"COPY (SELECT {LABEL}, {', '.join(NUMERICAL)}, {categories} FROM read_csv('{day}', "
        f"auto_detect = false, delim = '\t', header = false, quote = '', escape = '', "
        f"nullstr = '', columns = {{{columns}}})) TO '{target}' (FORMAT parquet, CODEC 'lz4_raw')"
    )
    return target


def _make_dictionaries(db: Any, parquet: list[Path], frequency_limit: int) -> list[int]:
    """Creates a table dict_<column> (value, id) per column; returns cardinalities."""
    files = [str(p) for p in parquet]
    cardinalities = []
    for name in CATEGORICAL:
        db.execute(
            f"CREATE TABLE dict_{name} AS "
            "SELECT value, row_number() OVER (ORDER BY occurrences DESC, value)::INTEGER AS id "
            f"FROM (SELECT {name} AS value, count(*) AS occurrences FROM read_parquet(?) "
            f"WHERE {name} IS NOT NULL GROUP BY value HAVING count(*) >= ?)",
            [files, frequency_limit],
        )
        cardinalities.append(_scalar(db, f"SELECT count(*) FROM dict_{name}") + 1)
    return cardinalities


def _encode(db: Any, parquet: Path, start: int, stop: int) -> dict[str, Any]:
    """Returns the encoded columns of rows [start, stop) of a day."""
    numerical = [f"ln(greatest(coalesce({n}, 0), -1)::DOUBLE + 2)::FLOAT AS {n}" for n in NUMERICAL]
    ids = [f"coalesce(dict_{name}.id, 0) AS {name}" for name in CATEGORICAL]
    joins = [f"LEFT JOIN dict_{name} ON dict_{name}.value = rows.{name}" for name in CATEGORICAL]
    result: dict[str, Any] = db.execute(
        f"SELECT {LABEL}, {', '.join(numerical)}, {', '.join(ids)} FROM (SELECT * FROM "
        "read_parquet(?, file_row_number = true) WHERE file_row_number >= ? AND "
        f"file_row_number < ?) AS rows {' '.join(joins)} ORDER BY file_row_number",
        [str(parquet), start, stop],
    ).fetchnumpy()
    return result


if __name__ == "__main__":
    main(run)
