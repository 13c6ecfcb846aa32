# SPDX-License-Identifier: Apache-2.0
"""Criteo preprocessing compared with Polars and DuckDB, or our engines with each other.

    python -m benchmark.run preprocessing
    python -m benchmark.run preprocessing --engines --rows 1000000   (make spark nvtabular)
    python -m benchmark.run preprocessing --typed                    (30 columns with a schema)

Generates the logs once (four days), then runs the candidates in turns, each in its own process:
text -> counts over all days -> dictionary -> split binary. All must write the same bytes. With
--engines every round also runs each candidate on 1,000 rows, to measure its start-up time.
"""

import dataclasses
import functools
import importlib.util
import json
import math
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmark.case import Case, Group, Key, Values
from benchmark.cases import typed_log
from benchmark.commands import HERE
from benchmark.processes import ProcessUsage, run_process
from preproc.clicks import engines
from preproc.synthetic.clicks import GeneratorConfig, generate
from recsys.data.manifest import MANIFEST_FILE, file_checksum
from recsys.errors import UserError
from recsys.settings import setting

DAYS = 4
NUM_FILES = 84
CANDIDATES = ("native", "polars", "duckdb")
ENGINES = ("native", "spark", "nvtabular")
START_ROWS = 1000


class DifferingBytesError(UserError):
    """A candidate failed, or two of them disagree."""


def dataset_checksums(root: Path) -> dict[str, str]:
    """Returns {column file: checksum} of a dataset."""
    return {
        path.relative_to(root).as_posix(): file_checksum(path)
        for split in ("train", "validation", "test")
        for path in sorted((root / split).glob("*.bin"))
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
    typed: bool = setting(
        False, "Compare with Polars on a log of 30 typed columns instead of Criteo's"
    )
    candidates: tuple[str, ...] = setting(
        (), "Candidates, separated by commas; the first writes the expected bytes"
    )
    versions: dict[str, str] = dataclasses.field(default_factory=dict)
    """Name -> version of Spark or NVTabular, as their runs report it."""

    @property
    def name(self) -> str:
        """Name of the results."""
        if self.typed:
            return "preprocessing_typed"
        return "preprocessing_engines" if self.engines else "preprocessing"

    def config(self) -> dict[str, Any]:
        """Returns the sizes and the versions of other software."""
        criteo = {"days": DAYS, "frequency_limit": self.frequency_limit}
        own = {"columns": "4 int, 4 float, 22 string"} if self.typed else criteo
        return {"rows": self.rows, "threads": self.threads, **own, **self.versions}

    def compared(self) -> tuple[str, ...]:
        """Returns the names of the candidates."""
        usual = CANDIDATES[:2] if self.typed else CANDIDATES
        return self.candidates or (ENGINES if self.engines else usual)

    def groups(self, folder: Path) -> Iterator[Group]:
        """Yields the candidates over one generated log."""
        compared = self.compared()
        if "spark" in compared and importlib.util.find_spec("pyspark") is None:
            raise UserError("PySpark is not installed here: run `make spark`")
        raws = {folder / "raw": self.rows} | ({folder / "few": START_ROWS} if self.engines else {})
        for output, rows in raws.items():
            if self.typed:
                typed_log.generate_typed(output, rows)
            else:
                generate(GeneratorConfig(output=output, rows=rows, days=DAYS), progress=True)
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
        checksums = dataset_checksums(output)
        self.versions.update(foreign_versions(output))
        shutil.rmtree(output)
        num_files = typed_log.NUM_FILES if self.typed else NUM_FILES
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
        if candidate in engines.ENGINES:
            on_spark = f"--master=local[{self.threads}]"
            log = raw / "log.csv" if self.typed else raw
            rules = ("--preset=dlrm", f"--frequency_limit={self.frequency_limit}")
            # In input order, as Polars writes it.
            schema = (f"--schema={raw / 'schema.yaml'}", "--shuffle_seed=none")
            return [
                *(sys.executable, "-m", "preproc.clicks", f"--input={log}", f"--output={output}"),
                *(schema if self.typed else rules),
                *(f"--engine={candidate}", "--format=split", "--progress=none"),
                on_spark if candidate == "spark" else f"--threads={self.threads}",
            ]
        if self.typed:
            module = f"benchmark.peers.{candidate}_typed"
            files = (str(raw / "log.csv"), str(output))
            return [sys.executable, "-m", module, *files, str(self.threads), "2"]
        module = f"benchmark.peers.{candidate}_criteo"
        numbers = (str(self.threads), str(self.frequency_limit))
        return [sys.executable, "-m", module, str(raw), str(output), *numbers]


def _lead_of_first(rounds: Mapping[str, Values]) -> Values:
    """Returns how many times longer than the first each candidate took."""
    rates = [next(iter(values.items())) for values in rounds.values()]
    (first, ours), *others = rates
    return {Key(key.row, f"time_over_{first.row}", "x"): ours / rate for key, rate in others}


CASE = Preprocessing
