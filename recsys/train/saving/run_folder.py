# SPDX-License-Identifier: Apache-2.0
"""The folder of a run: its lock, and its latest and best checkpoint."""

import contextlib
import fcntl
import json
import logging
import os
import shutil
import socket
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from recsys.errors import UserError
from recsys.files.durable import durable_rename, sync
from recsys.files.held import HeldPath, hold_folder
from recsys.train.checkpoint import (
    LOCK_FILE,
    MANIFEST_FILE,
    NEXT_POINTER_FILE,
    POINTER_FILE,
    CheckpointError,
    RowShard,
    named_checkpoint,
    read_pointers,
)
from recsys.train.processes import ALONE, Processes
from recsys.train.saving.write import UNFINISHED, replace_folder, write_checkpoint

logger = logging.getLogger(__name__)

_TOKEN = ".ranks_"
_STEPS = "step_" + "[0-9]" * 9


def check_writable(path: Path, setting: str) -> None:
    """Refuses a folder in which nothing can be written, by trying to write.

    Args:
        path: folder, which need not exist.
        setting: setting that names the folder.

    Raises:
        UserError: the folder cannot be written.
    """
    folders = (path.absolute(), *path.absolute().parents)
    parent = next(p for p in folders if p.exists() or p.is_symlink())
    if not parent.exists():
        raise UserError(
            f"`{setting}`: {parent} is a link to {parent.readlink()}, which does not exist; create "
            "that folder, or name another",
            setting=setting,
        )
    try:
        str(path).encode()
    except UnicodeEncodeError as error:
        raise UserError(
            f"`{setting}`: {path} is not UTF-8, which safetensors needs; name another folder",
            setting=setting,
        ) from error
    try:
        with tempfile.TemporaryFile(dir=parent):
            pass
    except OSError as error:
        raise UserError(
            f"`{setting}`: {path} cannot be written ({parent}: {error.strerror}); name another "
            "folder",
            setting=setting,
        ) from error


class CheckpointFolder:
    """The latest and the best checkpoint of a run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def latest(self) -> Path | None:
        """Returns the folder of the latest checkpoint, or None."""
        return named_checkpoint(self.folder, "latest")

    def best(self) -> Path | None:
        """Returns the folder of the checkpoint with the best evaluation, or None."""
        return named_checkpoint(self.folder, "best")

    def check_unused(self, setting: str, *, can_resume: bool) -> None:
        """Refuses a folder in which an earlier run saved.

        Args:
            setting: setting that names the folder.
            can_resume: whether the setting `resume` can continue such a run.

        Raises:
            UserError: names the setting, the run and how to continue it.
        """
        if self.latest() is not None:
            advice = "add `resume` to continue it, or name" if can_resume else "name"
            raise UserError(
                f"`{setting}`: {self.folder} already holds a run ({self.latest()}); {advice} "
                "another folder",
                settings=(setting, "resume") if can_resume else (setting,),
            )

    def check_shared(self, setting: str, processes: Processes) -> None:
        """Refuses a folder that is not the same for all processes.

        Every process must call it while the first one holds the folder: each creates a file there.

        Raises:
            UserError: names a process that cannot write there.
        """
        if processes.world_size == 1:
            return
        folder, token = self.folder.absolute(), f"{_TOKEN}{uuid.uuid4().hex}"
        if processes.is_first:
            with contextlib.suppress(OSError):  # then it cannot create a file in it either
                (folder / token).mkdir()
        first, token = processes.gather_values((folder, token))[0]
        failure = ""
        for parent in (*reversed(folder.parents), folder):
            with contextlib.suppress(OSError):
                os.scandir(parent).close()  # NFS may have cached that the folder does not exist
        try:
            (folder / token / str(processes.rank)).touch()
        except OSError as error:
            here = f"rank {processes.rank} on {socket.gethostname()}"
            failure = f"{here} cannot write in it as {folder} ({error.strerror})"
        failures = [failure for failure in processes.gather_values(failure) if failure]
        if processes.is_first:
            shutil.rmtree(folder / token, ignore_errors=True)
        processes.barrier()  # before ranks look for other files in the folder
        if failures:
            raise UserError(
                f"`{setting}`: all ranks save in the folder of rank 0 ({first}), but "
                f"{failures[0]}; name a folder on a file system that all machines share",
                setting=setting,
            )

    @contextlib.contextmanager
    def held(self, setting: str) -> Iterator[None]:
        """Locks out other runs, and removes what killed runs left behind.

        Readers need no lock: checkpoints appear and change by renaming.

        Raises:
            UserError: another run saves in the folder; names its process.
        """
        is_new = not self.folder.exists()
        held = self._lock(setting)
        try:
            self._clean()
            yield
        finally:
            (self.folder / LOCK_FILE).unlink(missing_ok=True)
            held.release()
            if is_new:
                with contextlib.suppress(OSError):  # a checkpoint was saved
                    self.folder.rmdir()

    def _lock(self, setting: str) -> HeldPath:
        file = self.folder / LOCK_FILE
        try:
            held = hold_folder(file)
        except BlockingIOError:
            holder = ""
            with contextlib.suppress(OSError):  # the run has just ended
                holder = file.read_text(errors="replace")[:200]
            raise UserError(
                f"`{setting}`: another run saves in {self.folder} ({holder or 'another process'}); "
                "wait for its end, or name another folder",
                setting=setting,
            ) from None
        with contextlib.suppress(OSError):  # the disk may be full
            os.ftruncate(held.descriptor, 0)
            os.write(held.descriptor, f"process {os.getpid()} on {socket.gethostname()}".encode())
        return held

    def _clean(self) -> None:
        """Removes unfinished checkpoints, and completes one that was being installed."""
        for old in self.folder.glob(_STEPS + ".old"):
            if old.with_suffix("").exists():
                shutil.rmtree(old, ignore_errors=True)
            else:
                old.rename(old.with_suffix(""))
        for unfinished in (*self.folder.glob(_STEPS + UNFINISHED), *self.folder.glob(_TOKEN + "*")):
            shutil.rmtree(unfinished, ignore_errors=True)
        pointer = self.folder / NEXT_POINTER_FILE
        with contextlib.suppress(OSError, ValueError, AttributeError, TypeError):
            names = json.loads(pointer.read_text()).values()
            if all((self.folder / name / MANIFEST_FILE).is_file() for name in names):
                durable_rename(pointer, self.folder / POINTER_FILE)
        pointer.unlink(missing_ok=True)

    def save(
        self,
        step: int,
        groups: Mapping[str, Mapping[str, Tensor]],
        state: Mapping[str, Any],
        config: Mapping[str, Any],
        is_best: bool,
        *,
        shards: Mapping[str, RowShard] | None = None,
        processes: Processes = ALONE,
        add: Callable[[Path], None] = lambda _: None,
    ) -> Path:
        """Writes the checkpoint of a step, and returns its folder; see `write_checkpoint`.

        `add` may write further files to the folder before it is installed.
        """
        path = self.folder / f"step_{step:09d}"

        def install(new: Path, path: Path) -> None:
            add(new)
            self._install(new, path, is_best=is_best)

        write_checkpoint(
            path, groups, state, config, shards=shards, processes=processes, install=install
        )
        return path

    def _install(self, new: Path, path: Path, is_best: bool) -> None:
        """Makes a finished folder the latest checkpoint, and removes obsolete ones."""
        pointers: dict[str, str] = {}
        with contextlib.suppress(CheckpointError):  # damaged or removed during the run
            pointers = read_pointers(self.folder)
        was_known = bool(pointers)
        pointers["latest"] = path.name
        if is_best:
            pointers["best"] = path.name
        # Written before the folder gets its name, while there is still room for it. After a kill,
        # the next run then finds which checkpoint is the latest.
        pointer = self.folder / NEXT_POINTER_FILE
        try:
            pointer.write_text(json.dumps(pointers) + "\n")
            sync(pointer)
            replace_folder(new, path)
            durable_rename(pointer, self.folder / POINTER_FILE)
            sync(self.folder.absolute().parent)  # the folder of the run may be new, too
        finally:
            pointer.unlink(missing_ok=True)
        if was_known:
            self.remove_obsolete()

    def remove_obsolete(self) -> None:
        """Removes checkpoints before the latest one, except the best.

        This includes checkpoints that a killed run had removed partly.
        """
        names = read_pointers(self.folder)
        for other in self.folder.glob(_STEPS):
            if other.name < names.get("latest", "") and other.name not in names.values():
                _remove_unread(other)


def _remove_unread(checkpoint: Path) -> None:
    """Removes a checkpoint unless it is being read; in that case a later save removes it."""
    unfinished = checkpoint.with_name(checkpoint.name + UNFINISHED)
    with contextlib.suppress(OSError):
        held = HeldPath(checkpoint, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(unfinished, ignore_errors=True)
        checkpoint.rename(unfinished)  # after a kill the next run sees that it is incomplete
        shutil.rmtree(unfinished, ignore_errors=True)
        held.release()


def check_new(folder: Path, setting: str, *, can_resume: bool) -> None:
    """Refuses a folder that holds a run, or in which nothing can be written.

    Args:
        folder: folder of a run to begin.
        setting: setting that names the folder.
        can_resume: the setting `resume` continues such a run.

    Raises:
        UserError: see `check_writable` and `CheckpointFolder.check_unused`.
    """
    check_writable(folder, setting)
    CheckpointFolder(folder).check_unused(setting, can_resume=can_resume)
