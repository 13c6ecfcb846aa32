# SPDX-License-Identifier: Apache-2.0
"""Work folder of a run: resumable units, staging, and the final rename.

A file or unit gets its final name only once it is complete.
"""

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import IO, Any

import xxhash

from preproc.files import output as dataset_output
from preproc.files.errors import PreprocError
from recsys.data.feature_spec import SPEC_FILE
from recsys.data.manifest import MANIFEST_FILE, file_checksum
from recsys.errors import show_names
from recsys.files.durable import sync_tree
from recsys.files.held import hold_folder
from recsys.interruption import interrupted_after

_TEMPORARY = ".tmp"
_ATTEMPT = "attempt-"
_LOCK = "lock"
_PUBLISHED = "published"
"""Checksum of the manifest that a run is about to publish."""


def settings_key(settings: object) -> str:
    """Returns a checksum of settings, to name folders that depend on them."""
    text = json.dumps(settings, sort_keys=True)
    return xxhash.xxh3_128(text.encode()).hexdigest()[:16]


@contextlib.contextmanager
def atomic_file(path: Path, mode: str = "wb", **options: Any) -> Iterator[IO[Any]]:
    """Opens a temporary file that is renamed to `path` if the body succeeds."""
    temporary = path.with_name(path.name + _TEMPORARY)
    try:
        with temporary.open(mode, **options) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    temporary.replace(path)


def write_record(path: Path, record: dict[str, Any]) -> None:
    """Writes the JSON record that marks a unit as done."""
    with atomic_file(path, "w") as file:
        json.dump(record, file)


def read_record(path: Path) -> dict[str, Any] | None:
    """Reads the record of a unit; None if the unit is not done."""
    try:
        record = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) else None


@contextlib.contextmanager
def marked_files(records: Iterable[Path]) -> Iterator[contextlib.ExitStack]:
    """Closes files at the end; if that fails, marks their units as not done.

    `records` are the records of the units written to these files; they are read only at the end.
    """
    files = contextlib.ExitStack()
    try:
        yield files
    finally:
        try:
            files.close()
        except OSError:
            for record in records:
                record.unlink(missing_ok=True)
            raise


@contextlib.contextmanager
def attempt_folder(folder: Path) -> Iterator[Path]:
    """Makes a folder for one attempt at a unit.

    Attempts need separate folders: a lost executor may still be writing the same unit.
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


class Workspace:
    """The work folders of a run, locked against a second run.

    Args:
        output: dataset folder to make.
        work_dir: folder for units; None makes one next to or inside the output.

    Attributes:
        root: folder of the units, which any output can reuse.
        staging: folder on the output's file system, so that a rename finishes the dataset.
    """

    def __init__(self, output: Path, work_dir: Path | None) -> None:
        self.output = dataset_output.real_path("output", output)
        root, self.staging = dataset_output.work_folders(self.output)
        if work_dir is not None:
            root = dataset_output.real_path("work_dir", work_dir)
        self.root = root
        # Staging last: it says that the dataset was published, see `publish`.
        self._own_folders = [self.staging] if work_dir is not None else [root, self.staging]

    @contextlib.contextmanager
    def locked(self, *, resumable: bool = True) -> Iterator["Workspace"]:
        """Makes the folders and locks them; keeps them if resumable.

        Raises:
            PreprocError: they cannot be made, or another run has locked them.
        """
        held = False
        with contextlib.ExitStack() as stack:
            # Lock both: two runs may share a work folder, or share an output but no work folder.
            try:
                with interrupted_after():  # delayed until both locks are held
                    for folder in (self.root, self.staging):
                        stack.enter_context(_folder_lock(folder))
                    held = True
                    if not resumable:
                        self._empty()  # a killed run may have left something
                yield self
            except BaseException:
                is_kept = (resumable and self._has_work()) or dataset_output.is_set_aside(
                    self.staging
                )
                if held and not is_kept and self.staging.is_dir():
                    self.clear()
                raise

    def unit_dir(self, stage: str, key: str) -> Path:
        """Makes the folder for a stage's units; `key` identifies its settings."""
        folder = self.root / stage / key
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def staging_dir(self, key: str) -> Path:
        """Makes the staging folder for a key of settings; removes those of other keys."""
        for other in self.staging.iterdir():
            if other.is_dir() and other.name != key:
                shutil.rmtree(other)
        folder = self.staging / key
        folder.mkdir(exist_ok=True)
        return folder

    def publish(self, dataset: Path, note: Callable[[str], None]) -> None:
        """Makes a finished dataset the output, replacing an earlier one.

        `note` is called with the names of other files in the output, which are kept.
        """
        sync_tree(dataset)
        with interrupted_after():
            # So that the next run knows whether the folders of a run that is killed are done with.
            (self.staging / _PUBLISHED).write_text(file_checksum(dataset / MANIFEST_FILE))
            others = dataset_output.replace_dataset(dataset, self.output, self.staging)
            self.clear()
        if others:
            note(
                f"{self.output}: kept {len(others)} file(s) that are not part of the dataset: "
                + show_names(others)
            )

    def finish_publishing(self) -> None:
        """Completes what an earlier run left if it was killed while publishing or after it."""
        if dataset_output.is_set_aside(self.staging):
            with self.locked():
                dataset_output.fill(self.output, self.staging)
                self.clear()
        elif self._is_published():
            with self.locked():
                self.clear()

    def _is_published(self) -> bool:
        """Returns whether the output is the dataset of the run that made the folders."""
        try:
            expected = (self.staging / _PUBLISHED).read_text()
            return expected == file_checksum(self.output / MANIFEST_FILE)
        except FileNotFoundError:
            return self.staging.is_dir() and not self._has_work()

    def check_own(self) -> None:
        """Refuses work folders that exist but were not made by a run.

        Raises:
            PreprocError: the run would remove such a folder, or a name is too long.
        """
        for folder in self._own_folders:
            try:
                is_own = (
                    (folder / _LOCK).is_file() or not folder.is_dir() or not any(folder.iterdir())
                )
            except OSError as error:
                raise PreprocError(
                    f"`output` {self.output}: cannot make {folder.name} next to it "
                    f"({error.strerror}); choose another name",
                    setting="output",
                ) from error
            if not is_own:
                raise PreprocError(
                    f"{folder}: `output` {self.output} needs this name for its work folder, but it "
                    "was not made by a run; move it away, or choose another `output`",
                    setting="output",
                )

    def _has_work(self) -> bool:
        folders = [folder for folder in (self.root, self.staging) if folder.is_dir()]
        return any(path.name != _LOCK for folder in folders for path in folder.iterdir())

    def _empty(self) -> None:
        for folder in (self.root, self.staging):
            for path in folder.iterdir():
                if path.is_dir():
                    shutil.rmtree(path)

    def clear(self) -> None:
        """Removes staging and, unless the user named it, the work folder.

        The locks are removed last, because they show a later run that the folders are its own.
        """
        for folder in self._own_folders:
            for path in folder.iterdir():
                if path.is_dir():
                    shutil.rmtree(path)
                elif path.name not in (_LOCK, _PUBLISHED):
                    path.unlink()
            (folder / _PUBLISHED).unlink(missing_ok=True)
            shutil.rmtree(folder)

    def used_bytes(self) -> dict[Path, int]:
        """Returns the bytes in each folder of an earlier, interrupted run."""
        return {
            folder: sum(p.stat().st_blocks * 512 for p in folder.rglob("*") if p.is_file())
            for folder in (self.root, self.staging)
        }


@contextlib.contextmanager
def _folder_lock(folder: Path) -> Iterator[None]:
    try:
        held = hold_folder(folder / _LOCK)
    except BlockingIOError as error:
        raise PreprocError(
            f"{folder}: another run is using this folder; wait for it, or choose another folder"
        ) from error
    except OSError as error:
        raise PreprocError(
            f"{folder}: cannot be made or written ({error.strerror}); choose another "
            "folder, or change its permissions"
        ) from error
    try:
        yield
    finally:
        held.release()


def link_files(source: Path, target: Path, but: Collection[str]) -> None:
    """Hard-links the files below `source` into `target`, with their relative paths.

    Files are copied if the file system has no hard links. They replace files of the same name.
    Folders and files with a name in `but` are left out at any depth.
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
    """Refuses an output that would destroy files or overlap with the input.

    Raises:
        PreprocError: the output is refused.
    """
    output = dataset_output.real_path("output", output_path)
    source = dataset_output.real_path("input", input_path)
    workspace = Workspace(output_path, work_dir)
    workspace.check_own()
    if output.exists() and not output.is_dir():
        raise PreprocError(
            f"`output` {output_path}: is a file; name a new folder",
            setting="output",
        )
    folders = {"output": output}
    if work_dir is not None:
        folders["work_dir"] = dataset_output.real_path("work_dir", work_dir)
    for name, folder in folders.items():
        if folder == source or source in folder.parents:
            raise PreprocError(
                f"`{name}` {folder}: lies inside `input` {source}; choose another",
                settings=(name, "input"),
            )
    if output in source.parents:
        raise PreprocError(
            f"`output` {output}: contains `input` {source}; choose another",
            settings=("output", "input"),
        )
    work = folders.get("work_dir")
    for folder in (output, workspace.staging):
        if work is not None and (work == folder or folder in work.parents):
            where = "`output`" if folder == output else folder
            raise PreprocError(
                f"`work_dir` {work}: lies inside {where}; choose another", setting="work_dir"
            )
    if output.is_dir():
        workspace.finish_publishing()
        _check_contents(output_path, overwrite=overwrite)


def _check_contents(output: Path, *, overwrite: bool) -> None:
    """Refuses a folder whose contents must not or cannot be replaced."""
    present = dataset_output.entries(output)
    if not os.access(output, os.W_OK | os.X_OK):
        raise PreprocError(
            f"`output` {output}: cannot be written; change its permissions, or choose another "
            "folder",
            setting="output",
        )
    if not present:
        return
    if not overwrite:
        raise PreprocError(
            f"`output` {output}: already exists; add `overwrite` to replace it when the new "
            "dataset is complete, or choose another folder",
            settings=("output", "overwrite"),
        )
    if not any((output / name).is_file() for name in (MANIFEST_FILE, SPEC_FILE)):
        raise PreprocError(
            f"`output` {output}: is not a dataset (no {MANIFEST_FILE}, no {SPEC_FILE}), so "
            "`overwrite` will not remove it; choose another folder",
            settings=("output", "overwrite"),
        )
    blocked = [p.name for p in present if p.name in dataset_output.FOLDERS and not p.is_dir()]
    if blocked:
        raise PreprocError(
            f"`output` {output}: {blocked[0]} is a file, but the dataset needs a folder there; "
            "move it away, or choose another folder",
            setting="output",
        )
