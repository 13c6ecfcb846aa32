# SPDX-License-Identifier: Apache-2.0
"""Work folder of a run: resumable units, staging, and the final rename.

A file or unit has its name only when it is complete.
"""

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
    """Returns a checksum of settings, to name folders that depend on them."""
    text = json.dumps(settings, sort_keys=True)
    return xxhash.xxh3_128(text.encode()).hexdigest()[:16]


def boot_id() -> str:
    """Returns an id of the machine's current boot, "" if unknown."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


@contextlib.contextmanager
def atomic_file(path: Path) -> Iterator[int]:
    """Opens a file that gets its name if the body succeeds."""
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
    """Reads the record of a unit, None if it is not done."""
    try:
        record = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) else None


@contextlib.contextmanager
def attempt_folder(folder: Path) -> Iterator[Path]:
    """Makes a folder for one attempt at a unit.

    An executor that was given up may still be writing the same unit.
    """
    private = Path(tempfile.mkdtemp(prefix=_ATTEMPT, dir=folder))
    try:
        yield private
    finally:
        shutil.rmtree(private, ignore_errors=True)


def remove_attempts(folder: Path) -> None:
    """Removes the folders of attempts that were killed."""
    for attempt in folder.glob(_ATTEMPT + "*"):
        shutil.rmtree(attempt, ignore_errors=True)


def sync_tree(root: Path) -> None:
    """Syncs every file and folder below `root` to disk."""
    for path in [root, *root.rglob("*")]:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


class Workspace:
    """The work folders of a run, locked against a second run.

    Args:
        output: dataset folder to make.
        work_dir: folder for units; None is `<output>.work`.

    Attributes:
        root: folder of the units that any output can reuse.
        staging: folder on the file system of the output, so that a rename finishes the dataset.
    """

    def __init__(self, output: Path, work_dir: Path | None) -> None:
        self.output = output
        self.root = work_dir or output.with_name(output.name + ".work")
        self.staging = output.with_name(output.name + ".staging")
        self._keep_root = work_dir is not None

    @contextlib.contextmanager
    def locked(self, *, resumable: bool = True) -> Iterator["Workspace"]:
        """Makes the folders and locks them.

        Args:
            resumable: keep the folders for a later run if this one fails or is interrupted.

        Raises:
            PreprocError: they cannot be made, or another run has locked them.
        """
        held = False
        with contextlib.ExitStack() as stack:
            # Both: two runs may have one work folder, or one output with two work folders.
            try:
                with _delayed_interrupt():  # until both are locked, to be cleared or kept
                    for folder in (self.root, self.staging):
                        stack.enter_context(_folder_lock(folder))
                    held = True
                yield self
            except BaseException:
                if held and not resumable and self.staging.is_dir():
                    self.clear()
                raise

    def unit_dir(self, stage: str, key: str) -> Path:
        """Makes the folder for a stage's units; `key` names its settings."""
        folder = self.root / stage / key
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def staging_dir(self, key: str) -> Path:
        """Makes the staging folder of some settings and removes those of others."""
        for other in self.staging.iterdir():
            if other.is_dir() and other.name != key:
                shutil.rmtree(other)
        folder = self.staging / key
        folder.mkdir(exist_ok=True)
        return folder

    def publish(self, dataset: Path) -> None:
        """Renames a finished dataset to the output, replacing an earlier one."""
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
        """Removes staging and, unless the user named it, the work folder."""
        shutil.rmtree(self.staging)
        if not self._keep_root:
            shutil.rmtree(self.root)

    def used_bytes(self) -> int:
        """Returns the bytes on disk of an earlier, interrupted run."""
        folders = [f for f in (self.root, self.staging) if f.is_dir()]
        return sum(p.stat().st_blocks * 512 for f in folders for p in f.rglob("*") if p.is_file())


@contextlib.contextmanager
def _delayed_interrupt() -> Iterator[None]:
    """Delays Ctrl-C to the end of the block.

    A handler does it: a blocked signal could reach another thread, and Python would raise.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # Ctrl-C is raised in the main thread alone
        return
    received: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _frame: received.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if received:
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
    """Swaps two folders atomically; returns False if the system cannot."""
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return False
    names = (ctypes.c_char_p(os.fsencode(first)), ctypes.c_char_p(os.fsencode(second)))
    return bool(
        renameat2(_AT_FDCWD, names[0], _AT_FDCWD, names[1], ctypes.c_uint(_RENAME_EXCHANGE)) == 0
    )


def link_files(source: Path, target: Path, but: Collection[str]) -> None:
    """Hard-links the files below `source` into `target`, with their relative paths.

    Files are copied if the file system has no hard links, and replace those of the same name.

    Args:
        source: folder to read.
        target: folder to write; made if missing.
        but: names of folders and files, at any depth, that are left out.
    """
    target.mkdir(parents=True, exist_ok=True)
    for path in source.rglob("*"):
        name = path.relative_to(source)
        if not path.is_file() or not set(name.parts).isdisjoint(but):
            continue
        link = target / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.unlink(missing_ok=True)
        try:
            os.link(path, link)
        except OSError:
            shutil.copyfile(path, link)


def check_output(
    output_path: Path, input_path: Path, work_dir: Path | None, *, overwrite: bool
) -> None:
    """Refuses an output that would destroy files or mix with the input.

    Args:
        output_path: dataset folder to make.
        input_path: raw file or folder.
        work_dir: work folder, if the user named one.
        overwrite: allow to replace an existing dataset.

    Raises:
        PreprocError: the output is refused.
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
    """Returns the nearest existing folder: itself or one above."""
    folder = folder.resolve()
    while not folder.exists():
        folder = folder.parent
    return folder
