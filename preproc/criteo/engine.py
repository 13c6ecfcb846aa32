# SPDX-License-Identifier: Apache-2.0
"""What every engine takes and gives; finishing the dataset is the same for all of them.

An engine is a function of an `EngineJob`. It fills `dataset` with the split folders if they are
asked for, dictionaries/cat_i.bin and, where rows were bad, quarantine.csv, and returns an
`EngineResult`. Rows stand in input order; the shuffle and parquet/ follow from `columns`. It never
touches the final output path.
"""

import dataclasses
import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from preproc.criteo.engines import ENGINES
from preproc.criteo.job import CriteoJob
from preproc.criteo.rules import RejectReason, Split
from preproc.files.budget import Unit, Work, nothing
from preproc.files.input_file import InputFile
from preproc.files.progress import Progress, ProgressReporter, Tally
from preproc.files.workspace import Workspace


@dataclasses.dataclass(frozen=True, slots=True)
class EngineJob:
    """Everything an engine needs."""

    job: CriteoJob
    inputs: tuple[InputFile, ...]
    workspace: Workspace
    reporter: ProgressReporter

    def for_engine(self) -> "EngineJob":
        """Returns the job as its engine is to see it.

        TorchRec's layout is made from columns that are no part of the dataset, with float32
        features: those that any engine leaves for parquet.
        """
        if self.job.layout == "nvidia":
            return self
        return dataclasses.replace(self, job=dataclasses.replace(self.job, format=("parquet",)))


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class FileRows:
    """What one raw file held."""

    rows: int
    lines: int
    rejected: dict[RejectReason, int]


@dataclasses.dataclass(frozen=True, slots=True)
class EncodedColumns:
    """Columns that an engine leaves to the stages after it.

    Attributes:
        folder: where the split-binary columns are, a folder per split; the dataset itself if it is
            to have them.
        float32: folder with a file per split, its numerical features as [rows, 13] float32; None
            where no format needs them.
        is_shuffled: train has its final order; otherwise it is in input order.
    """

    folder: Path
    float32: Path | None
    is_shuffled: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class EngineResult:
    """What an engine made.

    Attributes:
        dataset: the staged folder.
        engine: name and version, for the manifest.
        files: per input file, in order.
        rows: rows of each split.
        positives: clicks of each split.
        cardinalities: rows of each embedding table (kept categories + 1).
        columns: what the shuffle, parquet and other layouts are made from.
    """

    dataset: Path
    engine: dict[str, Any]
    files: tuple[FileRows, ...]
    rows: dict[Split, int]
    positives: dict[Split, int]
    cardinalities: tuple[int, ...]
    columns: EncodedColumns


class Executor(Protocol):
    """Works on the units of a stage: threads of this process, or the executors of a cluster."""

    def map(
        self,
        work: Work[Unit],
        units: Sequence[Unit],
        least_bytes: int,
        progress: Progress,
        *,
        prepare: Callable[[], None] = nothing,
        watch: Callable[[Tally], None] = nothing,
    ) -> Tally:
        """Works on every unit and returns the counts of all.

        Args:
            work: does one unit within the memory that it is given; a module's function or a partial
                of one, as it may be sent to another process.
            units: in the order in which they are to be started.
            least_bytes: memory that a unit cannot do without.
            progress: advanced by the work.
            prepare: called in each process before its free memory is divided.
            watch: told the counts so far, now and then; may raise, which ends the rest.

        Raises:
            PreprocError: a unit cannot be done, or not even one has enough memory.
        """


Engine = Callable[[EngineJob], EngineResult]


def load_engine(name: str) -> Engine:
    """Returns an engine of the registry; what it alone needs is imported now."""
    engine: Engine = importlib.import_module(ENGINES[name]).run
    return engine
