# SPDX-License-Identifier: Apache-2.0
"""Interface of the engines: `EngineJob` in, `EngineResult` out.

An engine is a function from an `EngineJob` to an `EngineResult`. It stages a dataset folder with
dictionaries/cat_i.bin, quarantine.csv if rows were rejected, and the split folders if the format
`split` is wanted. Rows are in input order. Later stages, the same for all engines, shuffle them,
write parquet/ and publish the dataset; an engine never writes to the output path.
"""

import dataclasses
import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from preproc.criteo.dictionaries import Dictionaries
from preproc.criteo.engines import ENGINES
from preproc.criteo.job import CriteoJob
from preproc.criteo.rules import RejectReason, Split
from preproc.files.budget import Unit, Work, nothing
from preproc.files.input_file import InputFile
from preproc.files.progress import Progress, ProgressReporter, Tally
from preproc.files.workspace import Workspace


@dataclasses.dataclass(frozen=True, slots=True)
class EngineJob:
    """Inputs of an engine: settings, raw files, work folder and progress."""

    job: CriteoJob
    inputs: tuple[InputFile, ...]
    workspace: Workspace
    reporter: ProgressReporter
    dictionaries: Dictionaries | None = None
    """Dictionaries to encode with; None: categories are counted."""

    def for_engine(self) -> "EngineJob":
        """Returns the job with the format that the engine has to write.

        TorchRec's layout is made later, from columns with float32 features outside of the dataset.
        Engines write these columns where the format is parquet alone.
        """
        if self.job.layout == "nvidia":
            return self
        return dataclasses.replace(self, job=dataclasses.replace(self.job, format=("parquet",)))


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class FileRows:
    """Valid rows, lines and rejected rows of a raw file."""

    rows: int
    lines: int
    rejected: dict[RejectReason, int]


@dataclasses.dataclass(frozen=True, slots=True)
class EncodedColumns:
    """Encoded columns on disk, the input of the stages after the engine.

    Attributes:
        folder: holds a folder of split-binary columns per split; the dataset folder itself where
            the dataset has the format `split`.
        float32: holds a file of numerical features per split, [rows, 13] float32; None where no
            format needs them.
        is_shuffled: the training split has its final order, not the input's.
    """

    folder: Path
    float32: Path | None
    is_shuffled: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class EngineResult:
    """A staged dataset and its counts.

    Attributes:
        dataset: the staged folder.
        engine: name and version, for the manifest.
        files: counts of each input file, in input order.
        rows: rows of each split.
        positives: clicks of each split.
        cardinalities: rows of each embedding table (kept categories + 1).
        columns: input of the shuffle and of the other formats and layouts.
    """

    dataset: Path
    engine: dict[str, Any]
    files: tuple[FileRows, ...]
    rows: dict[Split, int]
    positives: dict[Split, int]
    cardinalities: tuple[int, ...]
    columns: EncodedColumns


class Executor(Protocol):
    """Runs units in threads of this process or on a cluster."""

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
        """Calls `work` for every unit; returns the sum of the counts.

        Args:
            work: called with a unit, its memory budget in bytes and `progress`. It may be sent to
                another process, so it is a function of a module, or a partial of one.
            units: in the order in which they are started.
            least_bytes: smallest memory budget of a unit.
            progress: counters that `work` advances.
            prepare: called once in each process, before its free memory is divided.
            watch: called with the counts so far, from time to time; an error that it raises ends
                the stage.

        Raises:
            PreprocError: a unit failed, or the memory does not suffice for one.
        """


Engine = Callable[[EngineJob], EngineResult]


def load_engine(name: str) -> Engine:
    """Imports an engine of the registry."""
    engine: Engine = importlib.import_module(ENGINES[name]).run
    return engine
