# SPDX-License-Identifier: Apache-2.0
"""Work state on disk: units that exist whole or not at all, and the one rename at the end."""

import contextlib
import ctypes
import fcntl
import json
import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import xxhash

from preproc.files.errors import PreprocError
from recsys.data.feature_spec import SPEC_FILE
from recsys.data.manifest import MANIFEST_FILE

_TEMPORARY = ".tmp"
_ATTEMPT = "attempt-"
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2


def settings_key(settings: object) -> str:
    """Returns a short name for settings: equal settings, equal name."""
    text = json.dumps(settings, sort_keys=True)
    return xxhash.xxh3_128(text.encode()).hexdigest()[:16]


def boot_id() -> str:
    """Returns what changes when the machine starts anew ("" where it cannot be known)."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


@contextlib.contextmanager
def atomic_file(path: Path) -> Iterator[int]:
    """Yields a descriptor; the file has its name only if the body ends well, and then durably."""
    temporary = path.with_name(path.name + _TEMPORARY)
    fd = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        yield fd
        os.fsync(fd)
    except BaseException:
        temporary.unlink()
        raise
    finally:
        os.close(fd)
    temporary.replace(path)


def write_record(path: Path, record: dict[str, Any]) -> None:
    """Writes the JSON record that marks a unit as done."""
    with atomic_file(path) as fd:
        os.write(fd, json.dumps(record).encode())


def read_record(path: Path) -> dict[str, Any] | None:
    """Returns the record of a unit, None if it is not done."""
    try:
        record = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) else None


@contextlib.contextmanager
def attempt_folder(folder: Path) -> Iterator[Path]:
    """Yields a folder of this attempt alone: a lost executor may still be at the same unit."""
    private = Path(tempfile.mkdtemp(prefix=_ATTEMPT, dir=folder))
    try:
        yield private
    finally:
        shutil.rmtree(private, ignore_errors=True)


def remove_attempts(folder: Path) -> None:
    """Removes what killed attempts left in a folder."""
    for left in folder.glob(_ATTEMPT + "*"):
        shutil.rmtree(left, ignore_errors=True)


def sync_tree(root: Path) -> None:
    """Makes every file and folder below `root` durable."""
    for path in [root, *root.rglob("*")]:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


class Workspace:
    """The folders of one run, locked against a second run.

    Args:
        output: the dataset folder to be made.
        work_dir: where units are kept; None is next to the output.

    Attributes:
        root: units of the stages whose results do not depend on the output's place.
        staging: beside the output, on its file system, so that a rename finishes the dataset.
    """

    def __init__(self, output: Path, work_dir: Path | None) -> None:
        self.output = output
        self.root = work_dir or output.with_name(output.name + ".work")
        self.staging = output.with_name(output.name + ".staging")
        self._keep_root = work_dir is not None

    @contextlib.contextmanager
    def locked(self, *, resumable: bool = True) -> Iterator["Workspace"]:
        """Makes the folders and holds their lock.

        Args:
            resumable: leave the folders to a later run where this one fails or is interrupted;
                otherwise nothing of them stays.

        Raises:
            PreprocError: they cannot be made, or another run works in them.
        """
        held = False
        with contextlib.ExitStack() as stack:
            # Both: two runs may share a work folder, or an output with two work folders.
            try:
                with _interrupt_waits():  # until both folders are this run's, to clear or to keep
                    for folder in (self.root, self.staging):
                        stack.enter_context(_folder_lock(folder))
                    held = True
                yield self
            except BaseException:
                if held and not resumable and self.staging.is_dir():
                    self.clear()
                raise

    def unit_dir(self, stage: str, key: str) -> Path:
        """Returns (and makes) the folder for the units of a stage under some settings."""
        folder = self.root / stage / key
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def staging_dir(self, key: str) -> Path:
        """Returns the staging folder for some settings; what others left behind is removed."""
        for other in self.staging.iterdir():
            if other.is_dir() and other.name != key:
                shutil.rmtree(other)
        folder = self.staging / key
        folder.mkdir(exist_ok=True)
        return folder

    def publish(self, dataset: Path) -> None:
        """Renames a finished dataset to the output; an earlier one goes only now."""
        sync_tree(dataset)
        self.output.parent.mkdir(parents=True, exist_ok=True)
        if self.output.is_dir() and any(self.output.iterdir()):
            replaced = self.staging / "replaced"
            if _exchange(dataset, self.output):
                dataset.rename(replaced)
            else:
                self.output.rename(replaced)
                dataset.rename(self.output)
        else:
            dataset.rename(self.output)
        parent = os.open(self.output.parent, os.O_RDONLY | os.O_CLOEXEC)
        os.fsync(parent)
        os.close(parent)
        self.clear()

    def clear(self) -> None:
        """Removes the staging folder, and the work folder unless the user asked for it."""
        shutil.rmtree(self.staging)
        if not self._keep_root:
            shutil.rmtree(self.root)

    def used_bytes(self) -> int:
        """Returns the disk space that an earlier, interrupted run already took."""
        folders = [f for f in (self.root, self.staging) if f.is_dir()]
        return sum(p.stat().st_blocks * 512 for f in folders for p in f.rglob("*") if p.is_file())


@contextlib.contextmanager
def _interrupt_waits() -> Iterator[None]:
    """Holds Ctrl-C back; it is raised at the end.

    The handler waits, not the signal: that could reach another thread, and Python would raise.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # Ctrl-C is raised in the main thread alone
        return
    came: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _frame: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if came:
        signal.raise_signal(signal.SIGINT)


@contextlib.contextmanager
def _folder_lock(folder: Path) -> Iterator[None]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        fd = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise PreprocError(
            f"{folder}: cannot be made or written ({error.strerror}); choose another "
            "folder, or change its permissions"
        ) from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise PreprocError(
            f"{folder}: another run is working here; wait for it, or choose another folder"
        ) from error
    else:
        yield
    finally:
        os.close(fd)


def _exchange(first: Path, second: Path) -> bool:
    """Swaps two folders in one step; returns False where the system cannot."""
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return False
    names = (ctypes.c_char_p(os.fsencode(first)), ctypes.c_char_p(os.fsencode(second)))
    return bool(
        renameat2(_AT_FDCWD, names[0], _AT_FDCWD, names[1], ctypes.c_uint(_RENAME_EXCHANGE)) == 0
    )


def link_files(source: Path, target: Path, but: Collection[str]) -> None:
    """Puts the files below `source` at the same places below `target`.

    Bytes are not copied where the file system has hard links; what is there already is replaced.

    Args:
        source: folder.
        target: folder, made if it is not there.
        but: names of folders and files, at any depth, that are left out.
    """
    target.mkdir(parents=True, exist_ok=True)
    for path in source.rglob("*"):
        name = path.relative_to(source)
        if not path.is_file() or any(part in but for part in name.parts):
            continue
        place = target / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.unlink(missing_ok=True)
        try:
            os.link(path, place)
        except OSError:
            shutil.copyfile(path, place)


def check_output(
    output_path: Path, input_path: Path, work_dir: Path | None, *, overwrite: bool
) -> None:
    """Refuses an output that must not be written.

    Args:
        output_path: the dataset folder to make.
        input_path: the raw file or folder.
        work_dir: folder for work state, if the user named one.
        overwrite: a dataset that is there may be replaced.

    Raises:
        PreprocError: writing would destroy something, or mix with the input.
    """
    output, source = output_path.resolve(), input_path.resolve()
    if output.exists() and not output.is_dir():
        raise PreprocError(f"`output` {output_path}: is a file; name a folder that does not exist")
    folders = {"`output`": output}
    if work_dir is not None:
        folders["`work_dir`"] = work_dir.resolve()
    for flag, folder in folders.items():
        if folder == source or source in folder.parents:
            raise PreprocError(f"{flag} {folder}: lies inside `input` {source}; choose another")
    if output in source.parents:
        raise PreprocError(f"`output` {output}: contains `input` {source}; choose another")
    work = folders.get("`work_dir`")
    if work is not None and (work == output or output in work.parents):
        raise PreprocError(f"`work_dir` {work}: lies inside `output`; choose another")
    if not output.is_dir() or not any(output.iterdir()):
        return
    if not overwrite:
        raise PreprocError(
            f"`output` {output_path}: already exists; add `overwrite` to replace it when the new "
            "dataset is complete, or choose another folder"
        )
    if not any((output / name).is_file() for name in (MANIFEST_FILE, SPEC_FILE)):
        raise PreprocError(
            f"`output` {output_path}: is not a dataset (no {MANIFEST_FILE}, no {SPEC_FILE}), so "
            "`overwrite` will not remove it; choose another folder"
        )


def existing_folder(folder: Path) -> Path:
    """Returns the folder itself or the nearest one above it that exists."""
    folder = folder.resolve()
    while not folder.exists():
        folder = folder.parent
    return folder
