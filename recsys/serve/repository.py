# SPDX-License-Identifier: Apache-2.0
"""A model repository of Triton; versions are added by renaming.

<repository>/<name>/config.pbtxt   of all versions
                    configs/       the same for another device, for --model-config-name
                    <version>/     1, 2, ...: never changed once it is there
"""

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from recsys.errors import UserError
from recsys.serve.config_pbtxt import CONFIG_FILE, check_name

LOCK_FILE = ".deploy.lock"


class RepositoryError(UserError):
    """A repository cannot take a version and is left unchanged."""


class ModelRepository:
    """The models below a folder.

    Args:
        root: the folder; made when the first version is staged.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def config_file(self, name: str) -> Path:
        """Returns where the configuration of a model lies."""
        return self.root / name / CONFIG_FILE

    def versions(self, name: str) -> list[int]:
        """Returns a model's versions, ascending; empty without such a model."""
        folder = self.root / name
        if not folder.is_dir():
            return []
        return sorted(int(p.name) for p in folder.iterdir() if p.is_dir() and p.name.isdecimal())

    @contextlib.contextmanager
    def staged_version(self, name: str, version: int | None) -> Iterator["StagedVersion"]:
        """Gives a folder to fill, a version once `install` is called.

        One deployment writes to a repository at a time. Whatever ends this one before, its files
        are removed; those of a killed one are removed by the next.

        Args:
            name: of the model.
            version: its number; None takes the one after the latest.

        Raises:
            RepositoryError: the version exists, another deployment is under way, or the folder
                cannot be written.
        """
        check_name(name)
        with self._locked():
            existing = self.versions(name)
            number = max(existing, default=0) + 1 if version is None else version
            if number < 1:
                raise RepositoryError(f"`version` must be 1 or more, got {number}")
            if number in existing:
                raise RepositoryError(
                    f"`version` {number}: {self.root / name} has it already, and a version is "
                    "never replaced; leave the flag out to add the next one"
                )
            staged = StagedVersion(self, name, number)
            try:
                staged.folder.mkdir(parents=True)
                yield staged
            finally:
                staged.discard()

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            lock = (self.root / LOCK_FILE).open("w")
        except OSError as error:
            raise RepositoryError(f"`repository` {self.root} cannot be written: {error}") from error
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise RepositoryError(
                    f"{self.root}: another deployment is under way; wait until it has ended"
                ) from error
            yield


class StagedVersion:
    """A version that no server sees yet.

    Args:
        repository: that it will belong to.
        name: of the model.
        version: its number.

    Attributes:
        folder: to fill.
        version: as given.
    """

    def __init__(self, repository: ModelRepository, name: str, version: int) -> None:
        self._repository = repository
        self._model = repository.root / name
        self.version = version
        # A server takes every folder of the repository for a model, so a new model grows beside
        # the repository; in the folder of a model it looks at numbers alone.
        self._is_new = not self._model.exists()
        self._aside = _beside(repository.root.absolute(), name)
        self.folder = self._aside / str(version) if self._is_new else self._model / f"{version}.tmp"
        for left_over in (self._aside, *self._model.glob("*.tmp")):
            _remove(left_over)

    def install(self, config: str, others: Mapping[str, str]) -> Path:
        """Makes the version visible to servers by renaming it.

        Args:
            config: text of config.pbtxt.
            others: name -> text of the configurations for other devices.

        Returns:
            The folder of the version.
        """
        if self._is_new:
            _write_configs(self._aside, config, others)
            _sync(self._aside)
            self._aside.rename(self._model)
        else:
            _sync(self.folder)
            # The old configuration serves the new version too: its tensors were compared.
            self.folder.rename(self._model / str(self.version))
            _write_configs(self._model, config, others)
        return self._model / str(self.version)

    def discard(self) -> None:
        """Removes what was not installed."""
        for path in (self._aside, self.folder):
            _remove(path)


def _beside(root: Path, name: str) -> Path:
    """Returns a staging folder on the file system of the repository."""
    parent = root.parent
    if parent.stat().st_dev == root.stat().st_dev and os.access(parent, os.W_OK):
        return root.with_name(f".{root.name}.{name}.tmp")
    # A mounted repository has nothing beside it. It has no configuration before it is complete.
    return root / f".{name}.tmp"


def _write_configs(model: Path, config: str, others: Mapping[str, str]) -> None:
    _replace(model / CONFIG_FILE, config)
    for name, text in others.items():
        (model / "configs").mkdir(exist_ok=True)
        _replace(model / "configs" / f"{name}.pbtxt", text)


def _replace(path: Path, text: str) -> None:
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(text)
    temporary.replace(path)


def _sync(folder: Path) -> None:
    """Syncs files to disk, so that no rename survives without them."""
    for path in folder.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    elif path.exists():
        path.unlink()
