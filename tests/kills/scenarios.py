# SPDX-License-Identifier: Apache-2.0
"""The commands that are killed or meet faults, what they read, and what they must leave."""

import dataclasses
import filecmp
import functools
import hashlib
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Self

from recsys.serve.manifest import Deployment
from recsys.serve.versions.delta import apply_delta
from tests.harness import torchrun
from tests.kills.processes import whole
from tests.preproc.clicks.rows import write_days

Contents = dict[str, str]

_MODEL = (
    *("--embedding_dim=8", "--bottom_mlp_sizes=16,8", "--top_mlp_sizes=16,1", "--batch_size=64"),
    *("--test_batch_size=4096", "--lr=0.5", "--warmup_steps=0", "--decay_steps=0", "--epochs=1"),
    "--base_device=cpu",
)


class Inputs:
    """What the commands read; each is made when it is first asked for.

    Args:
        root: an empty folder.
    """

    def __init__(self, root: Path) -> None:
        self._root = root

    def _run(self, *arguments: object) -> None:
        whole(arguments, self._root / "commands")

    @functools.cached_property
    def logs(self) -> Path:
        """Two days of clicks."""
        return write_days(self._root / "logs", days=2, rows=3000)

    @functools.cached_property
    def next_day(self) -> Path:
        """The second day of a growing dataset."""
        return write_days(self._root / "next", days=1, rows=3000, seed=8)

    @functools.cached_property
    def days(self) -> Path:
        """A growing dataset of one day."""
        first = write_days(self._root / "first", days=1, rows=3000, seed=7)
        self._run(*_extend(self._root / "days", first), "--preset=dlrm")
        return self._root / "days"

    @functools.cached_property
    def dataset(self) -> Path:
        """The two days, prepared."""
        self._run(*_prepare(self.logs, self._root / "dataset"))
        return self._root / "dataset"

    @functools.cached_property
    def run(self) -> Path:
        """A trained model."""
        self._run(*_train(self.dataset, self._root / "run"))
        return self._root / "run"

    @functools.cached_property
    def models(self) -> Path:
        """A repository with the first version of a model, of fewer steps."""
        self._run(*_train(self.dataset, self._root / "earlier"), "--max_steps=20")
        self._run(*_deploy(self._root / "earlier", self._root / "models", 1))
        return self._root / "models"

    @functools.cached_property
    def delta(self) -> Path:
        """What a second version changes."""
        shutil.copytree(self.models, self._root / "next_models")
        flag = f"--delta={self._root / 'delta'}"
        self._run(*_deploy(self.run, self._root / "next_models", 2), flag)
        return self._root / "delta"


def _prepare(logs: Path, output: Path) -> Sequence[object]:
    return ("-m", "preproc.clicks", f"--input={logs}", f"--output={output}", "--progress=none")


def _extend(days: Path, logs: Path) -> Sequence[object]:
    command = ("-m", "recsys_recipes", "prepare", "clicks", f"--extend={days}")
    return (*command, f"--input={logs}", "--progress=none")


def _train(dataset: Path, run: Path) -> Sequence[object]:
    flags = (f"--dataset={dataset}", f"--save_checkpoint_path={run}", "--resume", "--save_freq=10")
    log = f"--log_path={run.parent}.json"  # it holds times
    return ("-m", "dlrm.scripts.main", *_MODEL, *flags, log)


def _deploy(run: Path, repository: Path, version: int) -> Sequence[object]:
    command = ("-m", "recsys_recipes", "deploy", f"--checkpoint={run}", "--verify=64")
    return (*command, f"--repository={repository}", f"--version={version}")


def files(root: Path) -> Contents:
    """Returns the checksum of every file and the names of all folders.

    Files that hold the time count by their names only.
    """
    return {
        path.relative_to(root).as_posix(): "a folder" if path.is_dir() else _checksum(path)
        for path in sorted(root.rglob("*"))
    }


def _checksum(path: Path) -> str:
    holds_time = path.name.endswith(("deployment.json", ".pbtxt", ".pyc"))
    return "" if holds_time else hashlib.sha256(path.read_bytes()).hexdigest()


def run_tensors(root: Path) -> Contents:
    """Returns the checksum of every tensor of a run's latest checkpoint, and the run's files.

    Reports hold times, so only their names count.
    """
    from tests.checkpoints import tensors  # imports torch, which takes seconds

    found = {
        name: hashlib.sha256(tensor.contiguous().view(-1).numpy().tobytes()).hexdigest()
        for name, tensor in tensors(root / "run").items()
    }
    return found | {path.relative_to(root).as_posix(): "" for path in sorted(root.rglob("*"))}


def repository(root: Path) -> Contents:
    """Returns the files of a repository; each version must be one that a server loads.

    A delta beside it must extend the first version, and give the second one.
    """
    found = files(root)
    first, second = (root / "models" / "dlrm" / number for number in "12")
    for version in (first, second):
        if version.exists():
            Deployment.open(version, "dlrm")
    if (delta := root / "delta").exists():
        with tempfile.TemporaryDirectory() as name:
            apply_delta(delta, first, Path(name))
            if second.exists():
                compared = filecmp.dircmp(name, second, ignore=["__pycache__"])
                assert compared.left_list == compared.right_list == compared.same_files
        found["delta"] = "whole"
    return found


def _require_readable(root: Path) -> None:
    """Reads the latest checkpoint of a run, if there is one."""
    from recsys.train.saving.run_folder import CheckpointFolder
    from tests.checkpoints import tensors

    if CheckpointFolder(root / "run").latest() is not None:
        tensors(root / "run")


@dataclasses.dataclass(frozen=True, slots=True)
class Scenario:
    """A command that is disturbed.

    Attributes:
        command: its arguments, from (inputs, output folder).
        contents: what its output folder must hold at the end.
        parts: what appears in that folder whole or not at all.
        require_readable: raises an error if something else is half-written.
        before: writes what the output folder holds before the command.
        needs: tools without which it is skipped.
    """

    command: Callable[[Inputs, Path], Sequence[object]]
    contents: Callable[[Path], Contents]
    parts: tuple[str, ...] = ()
    require_readable: Callable[[Path], None] = lambda root: None
    before: Callable[[Inputs, Path], None] = lambda inputs, folder: None
    needs: tuple[str, ...] = ()

    def start(self, inputs: Inputs, folder: Path) -> None:
        """Makes the output folder."""
        folder.mkdir(parents=True)
        self.before(inputs, folder)


class ViolationError(Exception):
    """A command does not do or leave what it should."""


@dataclasses.dataclass(frozen=True, slots=True)
class Expected:
    """What a whole run of a scenario leaves, and the seconds that it takes."""

    scenario: Scenario
    contents: Contents
    seconds: float

    @classmethod
    def of(
        cls, scenario: Scenario, inputs: Inputs, folder: Path, variables: Mapping[str, str] = {}
    ) -> Self:
        """Does a whole run in a folder, with variables in addition to the environment."""
        output = folder / "output"
        scenario.start(inputs, output)
        seconds = whole(scenario.command(inputs, output), folder, variables)
        return cls(scenario, scenario.contents(output), seconds)

    def require_nothing_half_written(self, output: Path) -> None:
        """Raises an error if something has appeared in an output folder before it is whole."""
        self.scenario.require_readable(output)
        parts = [part for part in self.scenario.parts if (output / part).exists()]
        found = self.scenario.contents(output) if parts else {}
        torn = [name for name in self._differing(found) if {name, *_parents(name)} & {*parts}]
        if torn:
            raise ViolationError(f"half-written: {torn[:9]}")

    def is_whole(self, output: Path) -> bool:
        """Returns whether an output folder holds exactly what a whole run leaves."""
        return not self._differing(self.scenario.contents(output))

    def require_whole(self, output: Path) -> None:
        """Raises an error if it does not."""
        if differing := self._differing(self.scenario.contents(output)):
            raise ViolationError(f"not as after a whole run: {differing[:9]}")

    def _differing(self, found: Contents) -> list[str]:
        names = found.keys() | self.contents.keys()
        return sorted(name for name in names if found.get(name) != self.contents.get(name))


def _parents(name: str) -> list[str]:
    return [path.as_posix() for path in PurePosixPath(name).parents]


def _copy(name: str, source: Callable[[Inputs], Path]) -> Callable[[Inputs, Path], None]:
    def before(inputs: Inputs, folder: Path) -> None:
        shutil.copytree(source(inputs), folder / name)

    return before


_FORMATS = ("--shuffle_seed=3", "--format=parquet,npy,split")

SCENARIOS = {
    "prepare": Scenario(
        lambda inputs, folder: (*_prepare(inputs.logs, folder / "made"), *_FORMATS),
        files,
        ("made",),
    ),
    "prepare_spark": Scenario(
        lambda inputs, folder: (
            *(*_prepare(inputs.logs, folder / "made"), "--engine=spark", "--master=local[2]"),
        ),
        files,
        ("made",),
        needs=("Spark",),
    ),
    "extend": Scenario(
        lambda inputs, folder: _extend(folder / "days", inputs.next_day),
        files,
        ("days/day_0000", "days/day_0001"),
        before=_copy("days", lambda inputs: inputs.days),
    ),
    "train": Scenario(
        lambda inputs, folder: _train(inputs.dataset, folder / "run"),
        run_tensors,
        require_readable=_require_readable,
    ),
    "train_ranks": Scenario(
        lambda inputs, folder: (*torchrun(2), *_train(inputs.dataset, folder / "run")),
        run_tensors,
        require_readable=_require_readable,
    ),
    "deploy": Scenario(
        lambda inputs, folder: _deploy(inputs.run, folder / "models", 1),
        repository,
        ("models/dlrm/1",),
    ),
    "delta": Scenario(
        lambda inputs, folder: (
            *(*_deploy(inputs.run, folder / "models", 2), f"--delta={folder / 'delta'}"),
        ),
        repository,
        ("models/dlrm/1", "models/dlrm/2", "delta"),
        before=_copy("models", lambda inputs: inputs.models),
    ),
    "apply": Scenario(
        lambda inputs, folder: (
            *("-m", "recsys_recipes", "deploy", f"--repository={folder / 'models'}"),
            f"--apply={inputs.delta}",
        ),
        repository,
        ("models/dlrm/1", "models/dlrm/2"),
        before=_copy("models", lambda inputs: inputs.models),
    ),
}
