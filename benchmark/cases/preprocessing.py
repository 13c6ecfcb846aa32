# SPDX-License-Identifier: Apache-2.0
"""Criteo preprocessing compared with Polars and DuckDB, or our engines with each other.

    python -m benchmark.run preprocessing
    python -m benchmark.run preprocessing --engines --rows 1000000   (make spark nvtabular)
    python -m benchmark.run preprocessing --log typed                (30 columns with a schema)
    python -m benchmark.run preprocessing --log ratings --rows 20000000

Generates the logs once (four days), then runs the candidates in turns, each in its own process:
text -> counts over all days -> dictionary -> split binary; ratings -> sequences. All must write the
same values. With --engines every round also runs each candidate on 1,000 rows, to measure its
start-up time.
"""

import dataclasses
import functools
import importlib.util
import json
import math
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from benchmark.case import Case, Group, Key, Values
from benchmark.cases import typed_log
from benchmark.commands import HERE
from benchmark.processes import ProcessUsage, run_process
from preproc.clicks import engines
from preproc.synthetic import ratings
from preproc.synthetic.clicks import GeneratorConfig, generate
from recsys.data.manifest import MANIFEST_FILE, file_checksum
from recsys.data.sequences.files import (
    ITEM_MAP_FILE,
    ITEM_MAP_SCHEMA,
    SEQUENCE_SCHEMA,
    USER_MAP_FILE,
    USER_MAP_SCHEMA,
)
from recsys.errors import UserError
from recsys.settings import require_choices, setting

DAYS = 4
CANDIDATES = ("native", "polars", "duckdb")
ENGINES = ("native", "spark", "nvtabular")
START_ROWS = 1000
LEAST_RATINGS = 5
"""Users with fewer ratings are left out."""


class DifferingBytesError(UserError):
    """A candidate failed, or two of them disagree."""


def dataset_checksums(root: Path) -> dict[str, str]:
    """Returns {column file: checksum} of a dataset."""
    return {
        path.relative_to(root).as_posix(): file_checksum(path)
        for split in ("train", "validation", "test")
        for path in sorted((root / split).glob("*.bin"))
    }


def sequence_checksums(root: Path) -> dict[str, str]:
    """Returns {table: checksum} of the values in sequences and maps, however they are stored."""
    tables = {
        "sequences": (sorted((root / "sequences").glob("*.parquet")), SEQUENCE_SCHEMA),
        ITEM_MAP_FILE: ([root / ITEM_MAP_FILE], ITEM_MAP_SCHEMA),
        USER_MAP_FILE: ([root / USER_MAP_FILE], USER_MAP_SCHEMA),
    }
    checksums = {}
    for name, (paths, schema) in tables.items():
        checksum = xxhash.xxh3_128()
        table = pa.concat_tables(pq.read_table(path).cast(schema) for path in paths)
        for column in table.combine_chunks().columns:
            for buffer in column.combine_chunks().buffers():
                checksum.update(buffer or b"")
        checksums[name] = checksum.hexdigest()
    return checksums


def generate_criteo(folder: Path, rows: int) -> None:
    """Writes the days of a log."""
    generate(GeneratorConfig(output=folder, rows=rows, days=DAYS), progress=True)


def generate_movielens(folder: Path, rows: int) -> None:
    """Writes ratings in the form and the proportions of MovieLens-20M to log.csv."""
    users, items = max(rows // 144, 1), max(rows // 740, 2)
    folder.mkdir(parents=True)
    ratings.generate(
        ratings.RatingsConfig(
            output=folder / "log.csv", users=users, items=items, interactions=rows
        )
    )


@dataclasses.dataclass(frozen=True, slots=True)
class Log:
    """A kind of log.

    Attributes:
        name: of the results.
        candidates: that are compared by default.
        num_files: files, or tables, of a dataset.
        generate: writes a log of some rows to a folder.
        checksums: of the files of a dataset.
    """

    name: str
    candidates: tuple[str, ...]
    num_files: int
    generate: Callable[[Path, int], object]
    checksums: Callable[[Path], dict[str, str]]


LOGS = {
    "criteo": Log("preprocessing", CANDIDATES, 84, generate_criteo, dataset_checksums),
    "typed": Log(
        "preprocessing_typed",
        CANDIDATES[:2],
        typed_log.NUM_FILES,
        typed_log.generate_typed,
        dataset_checksums,
    ),
    "ratings": Log(
        "preprocessing_ratings", ("pyarrow", "polars"), 3, generate_movielens, sequence_checksums
    ),
}


def foreign_versions(output: Path) -> dict[str, str]:
    """Reads the version of Spark or NVTabular from a dataset's manifest."""
    manifest = output / MANIFEST_FILE
    if not manifest.exists():
        return {}
    engine = json.loads(manifest.read_text())["engine"]
    version = engine.get("spark_version") or engine.get("version")
    return {engine["name"]: version} if version else {}


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Preprocessing(Case):
    """Raw logs to a split-binary dataset."""

    rows: int = setting(4_000_000, "Generated rows, four days")
    threads: int = setting(2, "Threads of each candidate")
    frequency_limit: int = setting(15, "Categories with fewer rows get id 0")
    engines: bool = setting(False, "Compare our engines with each other, start-up time included")
    log: str = setting("criteo", f"Kind of the log: {', '.join(LOGS)}")
    candidates: tuple[str, ...] = setting(
        (), "Candidates, separated by commas; the first writes the expected bytes"
    )
    versions: dict[str, str] = dataclasses.field(default_factory=dict)
    """Name -> version of Spark or NVTabular, as their runs report it."""

    def __post_init__(self) -> None:
        """Refuses an unknown kind of log."""
        require_choices(self, {"log": LOGS})

    @property
    def kind(self) -> Log:
        """The kind of the log."""
        return LOGS[self.log]

    @property
    def name(self) -> str:
        """Name of the results."""
        return "preprocessing_engines" if self.engines else self.kind.name

    def config(self) -> dict[str, Any]:
        """Returns the sizes and the versions of other software."""
        of_logs: dict[str, dict[str, Any]] = {
            "criteo": {"days": DAYS, "frequency_limit": self.frequency_limit},
            "typed": {"columns": "4 int, 4 float, 22 string"},
            "ratings": {"min_user_count": LEAST_RATINGS},
        }
        of_log = of_logs[self.log]
        return {"rows": self.rows, "threads": self.threads, **of_log, **self.versions}

    def compared(self) -> tuple[str, ...]:
        """Returns the names of the candidates."""
        return self.candidates or (ENGINES if self.engines else self.kind.candidates)

    def groups(self, folder: Path) -> Iterator[Group]:
        """Yields the candidates over one generated log."""
        compared = self.compared()
        if "spark" in compared and importlib.util.find_spec("pyspark") is None:
            raise UserError("PySpark is not installed here: run `make spark`")
        raws = {folder / "raw": self.rows} | ({folder / "few": START_ROWS} if self.engines else {})
        for output, rows in raws.items():
            self.kind.generate(output, rows)
        raw_bytes = sum(path.stat().st_size for path in (folder / "raw").glob("[dl]*"))
        expected: dict[Path, dict[str, str]] = {}

        def measure(candidate: str, _seed: int) -> Values:
            usage, *starts = (self.run_once(candidate, raw, folder, expected) for raw in raws)
            values = {
                Key(candidate, "rows_per_s", "rows/s"): self.rows / usage.wall_s,
                Key(candidate, "input_mb_per_s", "MB/s"): raw_bytes / 1e6 / usage.wall_s,
                Key(candidate, "cpu_us_per_row", "us"): usage.cpu_s / self.rows * 1e6,
                Key(candidate, "peak_anonymous", "MiB"): usage.peak_anon_mib,
            }
            for start in starts:
                # On a busy machine the start can take longer than a run on few rows.
                rest_s = usage.wall_s - start.wall_s
                rate = (self.rows - START_ROWS) / rest_s if rest_s > 0 else math.nan
                values[Key(candidate, "start", "s")] = start.wall_s
                values[Key(candidate, "rows_per_s_after_start", "rows/s")] = rate
            return values

        yield Group(
            candidates={name: functools.partial(measure, name) for name in compared},
            derive=_lead_of_first,
        )

    def run_once(
        self, candidate: str, raw: Path, work: Path, expected: dict[Path, dict[str, str]]
    ) -> ProcessUsage:
        """Runs a candidate and checks its output.

        Raises:
            DifferingBytesError: it failed or wrote other bytes than the first candidate.
        """
        output = work / candidate
        usage = run_process(
            self.command(candidate, raw, output),
            env={
                "PYTHONPATH": str(HERE),
                # Only the first run compiles Python modules, whatever this environment says.
                "PYTHONPYCACHEPREFIX": str(work / "bytecode"),
                "PYTHONDONTWRITEBYTECODE": "",
            },
        )
        if usage.exit_status != 0:
            message = f"{candidate} failed with exit status {usage.exit_status}:\n{usage.output}"
            raise DifferingBytesError(message)
        checksums = self.kind.checksums(output)
        self.versions.update(foreign_versions(output))
        shutil.rmtree(output)
        num_files = self.kind.num_files
        if len(checksums) != num_files:
            raise DifferingBytesError(f"{candidate} wrote {len(checksums)} files, not {num_files}")
        first = expected.setdefault(raw, checksums)
        differing = [name for name in first if first[name] != checksums.get(name)]
        if differing:
            raise DifferingBytesError(
                f"{candidate} differs from {self.compared()[0]} in {len(differing)} of "
                f"{num_files} files: {', '.join(differing[:5])}"
            )
        return usage

    def command(self, candidate: str, raw: Path, output: Path) -> list[str]:
        """Returns the command line of one run."""
        log = raw if self.log == "criteo" else raw / "log.csv"
        if candidate not in (*engines.ENGINES, "pyarrow"):
            limit = {"criteo": self.frequency_limit, "typed": 2, "ratings": LEAST_RATINGS}[self.log]
            module = f"benchmark.peers.{candidate}_{self.log}"
            arguments = (str(log), str(output), str(self.threads), str(limit))
            return [sys.executable, "-m", module, *arguments]
        words = [f"--input={log}", f"--output={output}", f"--engine={candidate}", "--progress=none"]
        if self.log == "ratings":
            words += [f"--min_user_count={LEAST_RATINGS}"]
            return [sys.executable, "-m", "preproc.movielens", *words]
        if self.log == "criteo":
            words += ["--preset=dlrm", f"--frequency_limit={self.frequency_limit}"]
        else:  # in input order, as Polars writes it
            words += [f"--schema={raw / 'schema.yaml'}", "--shuffle_seed=none"]
        on_spark = f"--master=local[{self.threads}]"
        words += [
            "--format=split",
            on_spark if candidate == "spark" else f"--threads={self.threads}",
        ]
        return [sys.executable, "-m", "preproc.clicks", *words]


def _lead_of_first(rounds: Mapping[str, Values]) -> Values:
    """Returns how many times longer than the first each candidate took."""
    rates = [next(iter(values.items())) for values in rounds.values()]
    (first, ours), *others = rates
    return {Key(key.row, f"time_over_{first.row}", "x"): ours / rate for key, rate in others}


CASE = Preprocessing
