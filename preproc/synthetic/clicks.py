# SPDX-License-Identifier: Apache-2.0
"""Writes Criteo-format click logs with labels from a planted model.

    python -m preproc.generate_criteo --output DIR --rows 4000000 --days 4

writes DIR/day_0 ... day_3, and DIR/planted.json with the best AUC and log loss that a model can
reach on these rows: those of the true click probabilities. Columns, missing rates and cardinalities
follow the Kaggle log. The bytes depend on the seed and the sizes (and on the machine's `power`,
`exp` and `log` in NumPy), but not on the number of threads.
"""

import contextlib
import dataclasses
import functools
import gzip
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np
from absl import flags
from tqdm import tqdm

from preproc.clicks.input import DAY_NAME
from preproc.clicks.schema.row_format import NUM_CATEGORICAL
from preproc.files.disk import DiskNeeds
from preproc.files.output import check_files
from preproc.synthetic.model import BestReachable, PlantedModel
from preproc.synthetic.rows import (
    KAGGLE_CARDINALITIES,
    GeneratedChunk,
    calibrated_model,
    make_chunk,
)
from recsys.ahead import call_ahead
from recsys.errors import UserError
from recsys.files.durable import durable_rename
from recsys.flags import define_flags as define_settings
from recsys.flags import values_from_flags
from recsys.program import new_flags, print_line, run_command
from recsys.resources import available_cores
from recsys.settings import REQUIRED, require_not_negative, require_threads, setting

CHUNK_ROWS = 32_768
_ROW_BYTES, _GZIP_ROW_BYTES = 200, 80


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class GeneratorConfig:
    """Settings of a generated click log."""

    output: Path = setting(REQUIRED, "folder for day_0 ..., or with --days 0 a file (or folder)")
    rows: int = setting(REQUIRED, "rows in total, over all days")
    days: int = setting(0, "write this many day files; 0 writes one train.txt")
    seed: int = setting(0, "seed of the rows and of the planted model")
    gzip: bool = setting(False, "compress: day_0.gz ... (several gzip members per file)")
    threads: int = setting(2, "threads; the bytes do not depend on it", default_text="one per core")
    cardinalities: tuple[int, ...] = setting(
        KAGGLE_CARDINALITIES,
        "distinct ids, 26 numbers",
        default_text="those of the Kaggle log",
    )
    click_rate: float = setting(0.256, "share of clicks")
    best_auc: float = setting(0.80, "AUC of the true probabilities")
    write_probabilities: bool = setting(False, "also write each row's true probability (float32)")
    overwrite: bool = setting(False, "replace existing data")

    def __post_init__(self) -> None:
        """Refuses settings that are not valid."""
        require_not_negative(self, "seed", "days")
        require_threads(self, "threads")
        if self.rows < max(self.days, 1):
            raise UserError(f"`rows` must be at least 1 per day, got {self.rows}", setting="rows")
        if len(self.cardinalities) != NUM_CATEGORICAL or not all(
            1 <= c < 2**32 for c in self.cardinalities
        ):
            raise UserError(
                f"`cardinalities` must be {NUM_CATEGORICAL} numbers in [1, 2**32)",
                setting="cardinalities",
            )
        if not 0 < self.click_rate < 1 or not 0.5 < self.best_auc < 1:
            raise UserError(
                "`click_rate` must lie in (0, 1) and `best_auc` in (0.5, 1)",
                settings=("click_rate", "best_auc"),
            )

    @property
    def is_single_file(self) -> bool:
        """Whether to write one train.txt instead of days."""
        return self.days == 0

    def data_files(self) -> list[Path]:
        """Returns the files to write, in row order."""
        suffix = ".gz" if self.gzip else ""
        if not self.is_single_file:
            return [self.output / f"day_{d}{suffix}" for d in range(self.days)]
        is_folder = self.output.is_dir() or not self.output.suffix
        return [self.output / f"train.txt{suffix}" if is_folder else self.output]

    def planted_file(self) -> Path:
        """Returns the file for the best reachable metrics."""
        if self.is_single_file:
            return Path(f"{self.data_files()[0]}.planted.json")
        return self.output / "planted.json"

    def probabilities_file(self) -> Path:
        """Returns the file for the true probabilities, float32 in row order."""
        return self.planted_file().with_suffix(".probabilities.f32")

    def rows_of_file(self) -> list[int]:
        """Returns the rows of each file; they differ by at most 1."""
        files = max(self.days, 1)
        return [self.rows // files + (d < self.rows % files) for d in range(files)]


@dataclasses.dataclass(frozen=True, slots=True)
class ChunkJob:
    """A chunk to make: its file, its number within the file, and its rows."""

    file: int
    chunk: int
    rows: int


def make_job(config: GeneratorConfig, model: PlantedModel, job: ChunkJob) -> GeneratedChunk:
    """Makes a chunk from its own random stream."""
    seeds = np.random.SeedSequence(config.seed, spawn_key=(2, job.file, job.chunk))
    chunk = make_chunk(model, np.random.Philox(seeds), job.rows, config.cardinalities)
    if not config.gzip:
        return chunk
    text = gzip.compress(chunk.text, compresslevel=1, mtime=0)
    return dataclasses.replace(chunk, text=text)


def named_ranges(config: GeneratorConfig) -> dict[str, tuple[int, int]]:
    """Returns the row ranges [first, end) to report metrics for, by name."""
    total = config.rows
    if config.is_single_file:
        return {
            "all": (0, total),
            "last_20_percent": (total * 4 // 5, total),
            "last_10_percent": (total * 9 // 10, total),
        }
    stops = np.cumsum(config.rows_of_file()).tolist()
    ranges = {
        f"day_{d}": (start, stop)
        for d, (start, stop) in enumerate(zip([0, *stops[:-1]], stops, strict=True))
    }
    start, stop = ranges[f"day_{config.days - 1}"]
    half = start + (stop - start) // 2
    return {
        "all": (0, total),
        **ranges,
        "last_day_first_half": (start, half),
        "last_day_second_half": (half, stop),
    }


def generate(config: GeneratorConfig, *, progress: bool = False) -> dict[str, object]:
    """Writes the log and returns the contents of planted.json.

    Files have temporary names until all are complete.

    Raises:
        PreprocError: a file exists and `overwrite` is not set, or the disk is full.
    """
    finals = [*config.data_files(), config.planted_file()]
    if config.write_probabilities:
        finals.append(config.probabilities_file())
    folder = finals[0].parent
    old = {p for p in [*finals, config.probabilities_file()] if p.exists()}
    if not config.is_single_file:
        # Days left by an earlier, longer run would silently become part of this log.
        old |= {p for p in folder.glob("day_*") if DAY_NAME.fullmatch(p.name)}
    check_files(finals, old, overwrite=config.overwrite)
    row_bytes = _GZIP_ROW_BYTES if config.gzip else _ROW_BYTES
    needs = DiskNeeds(
        {folder: config.rows * row_bytes}, config.rows, "or choose `output` on another disk"
    )
    needs.check()
    temporary = {path: path.with_name(path.name + ".tmp") for path in finals}
    with needs.explained("nothing was written"):
        folder.mkdir(parents=True, exist_ok=True)
        try:
            planted = _write(config, temporary, progress=progress)
            temporary[config.planted_file()].write_text(json.dumps(planted, indent=1) + "\n")
            for path in old:
                path.unlink()
            for path in finals:
                durable_rename(temporary[path], path)
        finally:
            for path in temporary.values():
                path.unlink(missing_ok=True)
    return planted


def _write(
    config: GeneratorConfig, temporary: dict[Path, Path], *, progress: bool
) -> dict[str, object]:
    model = calibrated_model(
        config.seed, config.cardinalities, click_rate=config.click_rate, best_auc=config.best_auc
    )
    ranges = named_ranges(config)
    scores: dict[str, BestReachable] = {}
    results: dict[str, dict[str, float | int | None]] = {}
    row = 0
    with contextlib.ExitStack() as stack:
        bar = stack.enter_context(
            tqdm(
                total=config.rows,
                unit=" rows",
                unit_scale=True,
                disable=not progress,
                mininterval=0.2 if sys.stderr.isatty() else 10,
            )
        )
        files: list[BinaryIO] = []
        truth = (
            stack.enter_context(temporary[config.probabilities_file()].open("wb"))
            if config.write_probabilities
            else None
        )
        for job, chunk in _make_chunks(config, model):
            if job.file == len(files):
                path = temporary[config.data_files()[job.file]]
                files.append(stack.enter_context(path.open("wb")))
            files[job.file].write(chunk.text)
            if truth is not None:
                truth.write(chunk.probabilities.astype("<f4").tobytes())
            for name, (start, stop) in ranges.items():
                first, last = max(start - row, 0), min(stop - row, job.rows)
                if first < last:
                    score = scores.setdefault(name, BestReachable())
                    score.add(chunk.probabilities[first:last], chunk.labels[first:last])
                if name in scores and stop <= row + job.rows:
                    results[name] = scores.pop(name).result()
            row += job.rows
            bar.update(job.rows)
    return {
        "format": 1,
        "files": [path.name for path in config.data_files()],
        "rows_of_file": config.rows_of_file(),
        "seed": config.seed,
        "cardinalities": config.cardinalities,
        "best_reachable": {
            name: {"first_row": start, **results[name]}
            for name, (start, _) in ranges.items()
            if name in results
        },
        "probabilities": config.probabilities_file().name if config.write_probabilities else None,
    }


def _make_chunks(
    config: GeneratorConfig, model: PlantedModel
) -> Iterator[tuple[ChunkJob, GeneratedChunk]]:
    """Makes chunks in threads and yields them in order."""
    jobs = (
        ChunkJob(file, chunk, min(CHUNK_ROWS, rows - chunk * CHUNK_ROWS))
        for file, rows in enumerate(config.rows_of_file())
        for chunk in range(-(-rows // CHUNK_ROWS))
    )

    def make(job: ChunkJob) -> tuple[ChunkJob, GeneratedChunk]:
        return job, make_job(config, model, job)

    calls = (functools.partial(make, job) for job in jobs)
    yield from call_ahead(calls, depth=config.threads, threads=config.threads)


SECTIONS: dict[type, str] = {GeneratorConfig: "log"}
"""Sections of the flags, and their headings."""


def define_flags() -> flags.FlagValues:
    """Defines the flags of this command."""
    values = new_flags()
    define_settings(values, SECTIONS, defaults={"threads": available_cores()})
    return values


def run(values: flags.FlagValues) -> None:
    """Writes a log and prints its best reachable metrics.

    Raises:
        UserError: a flag is missing or invalid.
    """
    given, _ = values_from_flags(values, SECTIONS)
    planted = generate(GeneratorConfig(**given), progress=True)
    print_line(json.dumps(planted["best_reachable"], indent=1))


def main(argv: Sequence[str]) -> int:
    """Runs the command line; returns the exit status."""
    return run_command(run, define_flags(), argv, __doc__, "interrupted; nothing was written")
