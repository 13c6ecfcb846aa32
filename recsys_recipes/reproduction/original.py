# SPDX-License-Identifier: Apache-2.0
"""The run to reproduce: its checkpoints, settings and dataset, and whether it can be reproduced."""

import dataclasses
import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from dlrm.train.checkpoint import ROWS
from recsys.data.manifest import Manifest, file_checksum
from recsys.errors import UserError, show_names
from recsys.settings import declared
from recsys.train.checkpoint import (
    MANIFEST_FILE,
    Checkpoint,
    CheckpointError,
    named_checkpoint,
    read_checkpoint,
)
from recsys.train.origin import FINGERPRINT
from recsys.train.saving.environment import ENVIRONMENT
from recsys_recipes.models import ModelSpec, model_of

_CPU = "cpu"

NOT_REPEATED = frozenset(
    {
        *("mode", "resume", "save_checkpoint_path", "export_root", "output_dir", "log_path"),
        *("dataset", "dataset_path", "dataset_name", "base_device", "num_threads", "baselines"),
        *("report", "tensorboard", "run_profiler", "run_benchmark", "benchmark_steps"),
        *("ranks_file", "lists_file", "predictions", "use_torch_jit_trace"),
    }
)
"""Settings of a training that name its files, follow from its environment, or do not change it."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class OriginalRun:
    """A run to reproduce.

    Attributes:
        path: folder of the run, or one checkpoint of it.
        model: its model.
        checkpoints: role (`latest`, `best`, or `checkpoint` if only one is given) -> checkpoint; a
            checkpoint with two roles occurs once.
        trained: the checkpoint whose settings are repeated.
        dataset: folder of the dataset.
        manifest: its manifest.
    """

    path: Path
    model: ModelSpec
    checkpoints: Mapping[str, Checkpoint]
    trained: Checkpoint
    dataset: Path
    manifest: Manifest

    @classmethod
    def open(cls, path: Path, dataset: Path | None) -> "OriginalRun":
        """Opens a run and the manifest of its dataset.

        Args:
            path: folder of the run, or one checkpoint of it.
            dataset: folder of its dataset; None takes the one in its settings.

        Raises:
            UserError: the run is missing, damaged or cannot be reproduced; or the dataset is
                missing or another one.
        """
        if not path.is_dir():
            raise UserError(
                f"{path}: is not a folder; name the folder in which `recsys-recipes train` saved "
                "the run",
                path=path,
            )
        model = model_of(path)
        if model.package is None:
            raise UserError(
                f"{path}: holds {model.title}, which is fitted at once, not trained; fit it again "
                f"with `recsys-recipes train {model.name}`. Runs of DLRM and BERT4Rec can be "
                "reproduced",
                path=path,
            )
        checkpoints = _checkpoints(path)
        trained = next(iter(checkpoints.values()))
        folder = _dataset_of(model, trained, dataset)
        original = cls(
            path=path,
            model=model,
            checkpoints=checkpoints,
            trained=trained,
            dataset=folder,
            manifest=Manifest.load(folder),
        )
        original._check_dataset()
        original._check_training()
        original._check_device()
        return original

    @property
    def environment(self) -> Mapping[str, Any]:
        """The environment that the run recorded; empty if it recorded none."""
        recorded = self.trained.state.get(ENVIRONMENT)
        return recorded if isinstance(recorded, dict) else {}

    @property
    def processes(self) -> int:
        """Number of processes of the training; one if it is not recorded.

        Raises:
            CheckpointError: it is not a number of processes.
        """
        recorded = self.environment.get("processes", 1)
        if type(recorded) is not int or recorded < 1:
            raise CheckpointError(
                f"{self.trained.path / MANIFEST_FILE}: {ENVIRONMENT}, processes must be an integer "
                f"from 1, got {recorded!r}",
                path=self.trained.path / MANIFEST_FILE,
            )
        return recorded

    @property
    def machine_settings(self) -> dict[str, Any]:
        """Settings that give a training or a test the recorded device and threads."""
        config, here = self.trained.config, self.environment
        settings = {name: config.get(name) for name in ("base_device", "num_threads")}
        if here:
            device = _CPU if here.get("device", _CPU) == _CPU else "cuda"
            settings = {"base_device": device, "num_threads": here.get("threads")}
        return {name: value for name, value in settings.items() if value is not None}

    def check_files_of_dataset(self) -> None:
        """Refuses a dataset whose files are not as its manifest lists them.

        Raises:
            UserError: names the files.
        """
        if damaged := _damaged_files(self.dataset, self.manifest.files):
            raise UserError(
                f"`dataset` {self.dataset}: {show_names(damaged)} missing, or not as "
                f"{MANIFEST_FILE} lists it; get the dataset again, or name the raw files with "
                "`input` to make it again",
                settings=("dataset", "input"),
                path=self.dataset / damaged[0],
            )

    def settings(self) -> dict[str, Any]:
        """Returns the settings to train with, without those that have the default of this version.

        Settings that this version does not know are left out.

        Raises:
            UserError: a value does not have the type of its setting.
        """
        changed: dict[str, Any] = {}
        for section in self.model.flags.SECTIONS:
            defaults = {field.name: field.default for field in declared(section)}
            for name, value in self.trained.settings(section).items():
                if name not in NOT_REPEATED and value != defaults[name]:
                    changed[name] = list(value) if isinstance(value, tuple) else value
        return changed

    def _check_dataset(self) -> None:
        """Refuses a dataset that the run was not trained on."""
        state = self.trained.state
        was = state.get(ROWS, state.get(FINGERPRINT))
        if was is not None and was != self.manifest.fingerprint:
            raise UserError(
                f"`dataset` {self.dataset}: has the fingerprint {self.manifest.fingerprint}, but "
                f"{self.path} was trained on {was}; name the dataset of the run",
                setting="dataset",
                path=self.dataset,
            )

    def _check_training(self) -> None:
        """Refuses a run that depends on more than its dataset and settings."""
        config, state = self.trained.config, self.trained.state
        why = ""
        if config.get("load_checkpoint_path") is not None:
            why = (
                f"began with the weights of {config['load_checkpoint_path']} "
                "(`load_checkpoint_path`); only a run that began with random weights can be "
                "reproduced"
            )
        elif config.get("grow"):
            why = (
                "was trained day by day (`grow`); reproduce it with `recsys-recipes train` on all "
                "days"
            )
        elif "latest" in self.checkpoints and not state.get("ended"):
            why = (
                f"has not ended: its latest checkpoint is of step {state.get('step')}; continue it "
                "with `resume`, then reproduce it"
            )
        elif config.get("loader") == "merlin" and importlib.util.find_spec("merlin") is None:
            why = "was trained with `loader` merlin; install merlin-dataloader (make merlin)"
        elif (file := config.get("placement")) is not None and not Path(file).is_file():
            why = f"was trained with `placement` {file}, which is missing; put the file there"
        if why:
            raise UserError(f"{self.path}: {why}", path=self.path)

    def _check_device(self) -> None:
        """Refuses a run on more GPUs than are here."""
        device, needed = self.environment.get("device", _CPU), self.processes
        if device == _CPU:
            return
        found = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if found < needed:
            raise UserError(
                f"{self.path}: was trained on {needed} GPU ({device}), but {found} are "
                "here; reproduce it on a machine with as many",
                path=self.path,
            )


def _checkpoints(path: Path) -> dict[str, Checkpoint]:
    """Opens the checkpoints of a run and checks their files, the latest first.

    Raises:
        CheckpointError: there is none, or a file is missing or damaged.
    """
    if (path / MANIFEST_FILE).is_file():
        opened = {"checkpoint": read_checkpoint(path)}
    else:
        folders = {named_checkpoint(path, "latest"): "latest"}
        folders.setdefault(named_checkpoint(path, "best"), "best")
        opened = {role: read_checkpoint(each) for each, role in folders.items() if each is not None}
    if not opened:
        raise CheckpointError(f"{path}: no checkpoint here; name the folder of a run", path=path)
    for checkpoint in opened.values():
        if damaged := _damaged_files(checkpoint.path, checkpoint.files):
            raise CheckpointError(
                f"{checkpoint.path}: {show_names(damaged)} missing, or not as {MANIFEST_FILE} "
                "lists it; get the run again",
                path=checkpoint.path / damaged[0],
            )
    return opened


def _damaged_files(folder: Path, files: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Returns the names of files that are missing, or differ from their size or checksum."""
    return [
        name
        for name, entry in sorted(files.items())
        for file in [folder / name]
        if not file.is_file()
        or file.stat().st_size != entry["bytes"]
        or file_checksum(file) != entry["xxh3_128"]
    ]


def _dataset_of(model: ModelSpec, checkpoint: Checkpoint, given: Path | None) -> Path:
    """Returns the folder of the dataset of a run.

    Raises:
        UserError: the run was trained on generated rows, or the folder is missing.
    """
    sections = model.flags.SECTIONS.items()
    data = checkpoint.section(next(section for section, name in sections if name == "data"))
    stored = None if getattr(data, "is_synthetic", False) else data.folder
    if stored is None:
        raise UserError(
            f"{checkpoint.path}: was trained on generated rows, so there is no dataset to check; "
            "repeat its command instead",
            path=checkpoint.path,
        )
    folder = given or stored
    if not (folder / MANIFEST_FILE).is_file():
        raise UserError(
            f"`dataset` {folder}: no {MANIFEST_FILE} of the dataset that {checkpoint.path} was "
            "trained on; name its folder. With `input`, the manifest alone is enough",
            setting="dataset",
            path=folder,
        )
    return folder
