# SPDX-License-Identifier: Apache-2.0
"""A model repository of Triton; versions are added by renaming.

<repository>/<name>/config.pbtxt   configuration of all versions
                    configs/       the same for another device, for --model-config-name
                    <version>/     1, 2, ...: never changed once it exists
.<repository>.staging/             a version that is being written, next to the repository

Triton takes every folder of a repository for a model, and every folder of a model whose name begins
with a digit for a version ("2.tmp" is version 2 to it). If it loads a half-written version, it
never loads that version again. So only complete versions are moved into a repository.
"""

import contextlib
import os
import py_compile
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from recsys.errors import UserError
from recsys.files.durable import durable_rename, sync, sync_tree
from recsys.files.held import hold_folder
from recsys.serve.config_pbtxt import CONFIG_FILE, check_name

LOCK_FILE = ".deploy.lock"
LARGEST_VERSION = (1 << 63) - 1
"""Triton parses the leading digits of a folder into 64 bits; a larger number makes it exit."""
CONFIGS = "configs"
"""Folder of a model that holds its configurations for other devices."""
Stamp = frozenset[tuple[str, int, int, int]]
"""Path, inode, size and time of each file of a model, and path and inode of each folder."""
_STAGED_PREFIX = "new."
"""Prefix of a staged model's folder; Triton would take a leading digit for a version."""


class RepositoryError(UserError):
    """A repository cannot take a version, and is left unchanged."""


class DeploymentUnderWay(RepositoryError):  # noqa: N818 (a state, not a fault)
    """Another process is adding a version."""


class ModelRepository:
    """A folder of models and their versions."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._is_locked = self._is_staging = False

    def require_models(self, *, later: bool) -> None:
        """Refuses a folder that is not a repository.

        Triton would take each folder in it for a model. With `later`, a model may be added later.

        Raises:
            RepositoryError: says what the folder is and what to do.
        """
        if self.models():
            return
        if (self.root / CONFIG_FILE).is_file():
            raise RepositoryError(
                f"`repository`: {self.root} is the folder of one model; give the folder that holds "
                f"it, {self.root.absolute().parent}",
                setting="repository",
            )
        from recsys.train.checkpoint import CheckpointError, read_checkpoint  # imports torch

        try:
            checkpoint = read_checkpoint(self.root)
        except CheckpointError:
            checkpoint = None
        if checkpoint is not None:
            kind = "checkpoint" if checkpoint.path == self.root else "training run"
            raise RepositoryError(
                f"`repository`: {self.root} is the folder of a {kind}, not of deployed models; "
                f"deploy it first with recsys-recipes deploy --checkpoint {self.root} --repository "
                "FOLDER, then serve that FOLDER",
                setting="repository",
            )
        if not later and not any(path.is_dir() for path in self.root.glob("[!.]*")):
            raise RepositoryError(
                f"`repository`: {self.root} holds no models; recsys-recipes deploy --checkpoint "
                f"CHECKPOINT --repository {self.root} adds one, and `poll_secs` waits for it",
                settings=("repository", "poll_secs"),
            )

    def config_file(self, name: str) -> Path:
        """Returns the path of a model's config.pbtxt."""
        return self.root / name / CONFIG_FILE

    def models(self) -> list[str]:
        """Returns the names of the models."""
        return sorted(file.parent.name for file in self.root.glob(f"[!.]*/{CONFIG_FILE}"))

    def stamps(self) -> dict[str, "Stamp"]:
        """Returns a stamp of each folder that Triton takes for a model.

        A stamp changes when a file of the model changes.

        Raises:
            OSError: the repository cannot be listed.
        """
        with os.scandir(self.root) as entries:
            names = sorted(e.name for e in entries if e.is_dir() and e.name[:1] != ".")
        return {name: _stamp(self.root / name) for name in names}

    def versions(self, name: str) -> list[int]:
        """Returns a model's versions, ascending; empty if there is no such model."""
        folder = self.root / name
        if not folder.is_dir():
            return []
        return sorted(int(p.name) for p in folder.iterdir() if p.is_dir() and p.name.isdecimal())

    @contextlib.contextmanager
    def staged_version(self, name: str, version: int | None) -> Iterator["StagedVersion"]:
        """Creates a folder that `install` turns into a version.

        Its number defaults to the next one. Only one deployment at a time writes to a repository.
        Without `install`, the files are removed. The next deployment removes those of a killed one.

        Raises:
            RepositoryError: the version exists, another deployment is under way, or the folder
                cannot be written.
        """
        check_name(name)
        with self._changed():
            self._clear_staging()
            existing = self.versions(name)
            number = max(existing, default=0) + 1 if version is None else version
            if not 1 <= number <= LARGEST_VERSION:
                next_one = (
                    "" if version is not None else ", the one after the latest; name a free one"
                )
                raise RepositoryError(
                    f"`version` must be between 1 and {LARGEST_VERSION}, got {number}{next_one}",
                    setting="version",
                )
            if number in existing:
                raise RepositoryError(
                    f"`version` {number}: {self.root / name} already has it, and a version is "
                    "never replaced; leave the flag out to add the next one",
                    setting="version",
                )
            staged = StagedVersion(self, name, number)
            try:
                staged.folder.mkdir(parents=True)
                yield staged
            except Exception as error:  # each format's writer has errors of its own
                reason = str(error)
                if "No space left" in reason or "quota exceeded" in reason:
                    raise RepositoryError(
                        f"{self.root}: the disk is full ({reason}); nothing was deployed"
                    ) from error
                if "os error" in reason:  # of safetensors
                    raise RepositoryError(
                        f"`repository` {self.root} cannot be written: {reason}; nothing was "
                        "deployed",
                        setting="repository",
                    ) from error
                raise
            finally:
                self._clear_staging()

    def change_configs(self, name: str, change: Callable[[Path], str]) -> None:
        """Replaces each configuration of a model by `change` of its file.

        Raises:
            RepositoryError: a deployment is under way, or the folder cannot be written.
        """
        with self._changed():
            model, staged = self.root / name, self.staging() / f"{_STAGED_PREFIX}{name}"
            self._clear_staging()
            try:
                others = {file.stem: change(file) for file in model.glob(f"{CONFIGS}/*.pbtxt")}
                staged.mkdir(parents=True)
                _write_configs(staged, change(model / CONFIG_FILE), others)
                sync_tree(staged)
                _move_configs(staged, model)
            finally:
                self._clear_staging()

    def remove_leftovers(self) -> None:
        """Removes files of a killed deployment, unless one is under way.

        Raises:
            RepositoryError: the folder cannot be written.
        """
        with contextlib.suppress(DeploymentUnderWay), self._changed():
            self._clear_staging()

    def staging(self) -> Path:
        """Returns the folder of unfinished versions, on the repository's file system."""
        root = self.root.absolute()
        if root.parent.stat().st_dev == root.stat().st_dev and os.access(root.parent, os.W_OK):
            return root.with_name(f".{root.name}.staging")
        # The repository is a mount point of its own; no server loads a folder with such a name.
        return root / ".staging"

    def _clear_staging(self) -> None:
        if self.staging().exists():
            shutil.rmtree(self.staging())

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keeps other processes from changing the repository; blocks may be nested.

        Hold this lock while reading a file of the repository from which you derive another.

        Raises:
            RepositoryError: another process is changing it, or the folder cannot be written.
        """
        if self._is_locked:
            yield
            return
        try:
            held = hold_folder(self.root / LOCK_FILE)
        except BlockingIOError as error:
            raise self._under_way() from error
        except OSError as error:
            raise RepositoryError(
                f"`repository` {self.root} cannot be written: {error}", setting="repository"
            ) from error
        self._is_locked = True
        try:
            yield
        finally:
            self._is_locked = False
            held.release()

    @contextlib.contextmanager
    def _changed(self) -> Iterator[None]:
        """Locks the repository for the one change that may use its staging folder."""
        with self.locked():
            if self._is_staging:
                raise self._under_way()
            self._is_staging = True
            try:
                yield
            finally:
                self._is_staging = False

    def _under_way(self) -> DeploymentUnderWay:
        return DeploymentUnderWay(
            f"{self.root}: another deployment is under way; wait until it has ended"
        )


class StagedVersion:
    """A version that no server sees yet.

    Attributes:
        folder: folder for the files of the version.
    """

    def __init__(self, repository: ModelRepository, name: str, version: int) -> None:
        self._model = repository.root / name
        self._staged_model = repository.staging() / f"{_STAGED_PREFIX}{name}"
        self.version = version
        self.folder = self._staged_model / str(version)

    def require_space(self, size: int) -> None:
        """Refuses to write more than the disk has space for."""
        # TorchScript's writer kills the process when a disk is full.
        free = shutil.disk_usage(self.folder).free
        if size > free:
            raise RepositoryError(
                f"{self._model.parent}: the disk is full (version {self.version} takes more than "
                f"{size:,} bytes, {free:,} are free); nothing was deployed"
            )

    def install(self, config: str, others: Mapping[str, str], *, served: bool = True) -> Path:
        """Makes the version visible to servers by renaming it; returns its folder.

        Args:
            config: text of config.pbtxt.
            others: name of another device -> text of its configuration.
            served: whether the configuration serves this version.
        """
        for source in self.folder.rglob("*.py"):
            # Python would write its cache next to the file when a server loads it. A polling server
            # would then see a change and load the version again.
            py_compile.compile(
                str(source),
                doraise=True,
                invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
            )
        installed = self._model / str(self.version)
        _write_configs(self._staged_model, config, others)
        if not self._model.exists():
            durable_rename(self._staged_model, self._model)
            sync(self._model.parent.absolute().parent)  # the repository may be new, too
        elif served:
            # Installed before the version, the new configuration could serve another one meanwhile,
            # such as the version from which the model was rolled back.
            durable_rename(self.folder, installed)
            _move_configs(self._staged_model, self._model)
        else:
            _move_configs(self._staged_model, self._model)
            durable_rename(self.folder, installed)
        return installed


def _stamp(folder: Path) -> Stamp:
    found = set()
    for parent, folders, files in os.walk(folder, followlinks=True):
        folders[:] = [name for name in folders if name != "__pycache__"]  # servers write it
        for name in (*folders, *files):
            path = Path(parent, name)
            with contextlib.suppress(OSError):  # the file may vanish, or be a dangling link
                state = path.stat()
                size, changed = (state.st_size, state.st_mtime_ns) if name in files else (0, 0)
                found.add((str(path.relative_to(folder)), state.st_ino, size, changed))
    return frozenset(found)


def _write_configs(folder: Path, config: str, others: Mapping[str, str]) -> None:
    (folder / CONFIG_FILE).write_text(config)
    for name, text in others.items():
        (folder / CONFIGS).mkdir(exist_ok=True)
        (folder / CONFIGS / f"{name}.pbtxt").write_text(text)


def _move_configs(staged: Path, model: Path) -> None:
    """Replaces the configurations of a model whose text differs."""
    for source in (staged / CONFIG_FILE, *staged.glob(f"{CONFIGS}/*.pbtxt")):
        target = model / source.relative_to(staged)
        # A polling server reloads a model when one of its files is newer.
        if not target.is_file() or target.read_text() != source.read_text():
            target.parent.mkdir(exist_ok=True)
            durable_rename(source, target)
