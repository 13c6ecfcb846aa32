# SPDX-License-Identifier: Apache-2.0
"""Reads checkpoints: folders of safetensors files with a manifest.

<folder>/step_000001000/manifest.json        format, state, config, size and checksum of files
                        <group>.safetensors  named tensors
                        <group>.F_of_N.safetensors  every Nth row of them, from row F on
<folder>/latest.json                         names of the latest and the best step

Processes that train together write their files to one folder on a shared file system. Shards of a
group are joined when they are read, so any number of processes can load a checkpoint.
"""

import dataclasses
import fcntl
import json
import re
import time
import typing
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from cuda_ext import ops
from recsys.data.manifest import FORMAT as DATASET_FORMAT
from recsys.data.manifest import file_checksum
from recsys.errors import UserError, show_names
from recsys.files.held import HeldPath
from recsys.files.json_text import is_intact, parse_json
from recsys.interruption import interrupted_after
from recsys.settings import checked, section_from_dict
from recsys.train.divergence import find_nonfinite

T = TypeVar("T")

FORMAT = "recsys-recipes checkpoint"
FORMAT_VERSION = 1
MODEL = "model"
"""Key in the state that holds the name of the model."""
MANIFEST_FILE = "manifest.json"
POINTER_FILE = "latest.json"
NEXT_POINTER_FILE = POINTER_FILE + ".tmp"
"""File that exists in the folder of a run while a checkpoint is installed."""
LOCK_FILE = ".run.lock"
"""File that the run that saves in a folder locks."""

_STEP_FOLDER = re.compile(r"step_\d{9}")


class CheckpointError(UserError):
    """A checkpoint is missing, damaged, or does not fit the model."""


@dataclasses.dataclass(frozen=True, slots=True)
class Checkpoint:
    """An opened checkpoint; its tensors are read later.

    Attributes:
        path: folder of the checkpoint.
        state: position of the loop and other plain values.
        config: every setting of the run that saved it.
        files: file name -> {"bytes", "xxh3_128"}.
        held: lock that keeps the saving run from removing it, until released or collected.
    """

    path: Path
    state: dict[str, Any]
    config: dict[str, Any]
    files: dict[str, dict[str, Any]]
    held: HeldPath | None = dataclasses.field(default=None, repr=False, compare=False)

    def tensors(self, group: str) -> dict[str, Tensor]:
        """Reads the tensors of a group into memory.

        Raises:
            CheckpointError: the group is missing, or a file is damaged.
        """
        names = self._files_of(group)
        return self._join(names) if "part" in self.files[names[0]] else self._read(names[0])

    def file_of(self, group: str, name: str) -> Path:  # noqa: ARG002  (all of a group's)
        """Returns the file that holds a tensor of a group, or one of its shards."""
        return self.path / self._files_of(group)[0]

    def _files_of(self, group: str) -> list[str]:
        """Returns the name of a group's file, or the names of its shards."""
        names = [name for name in self.files if _group_of(name) == group]
        if not names:
            raise CheckpointError(
                f"{self.path}: holds no tensors {group!r}, only "
                f"{', '.join(sorted(self.files)) or 'none'}",
                path=self.path,
            )
        if len(names) > 1 and not all("part" in self.files[name] for name in names):
            raise CheckpointError(
                f"{self.path / MANIFEST_FILE}: {group} has {' and '.join(names)}, but not all of "
                "them are shards; use another checkpoint",
                path=self.path / MANIFEST_FILE,
            )
        return names

    def _join(self, names: Sequence[str]) -> dict[str, Tensor]:
        """Reads the shards of a group and joins their rows."""
        tensors: dict[str, Tensor] = {}
        for name in names:
            row_shard = RowShard(**self.files[name]["part"])
            for key, tensor in self._read(name).items():
                if key not in tensors:
                    tensors[key] = tensor.new_empty((row_shard.rows, *tensor.shape[1:]))
                tensors[key][row_shard.first :: row_shard.step] = tensor
        steps = {self.files[name]["part"]["step"] for name in names}
        if steps != {len(names)}:
            raise CheckpointError(
                f"{self.path}: has {len(names)} parts of {_group_of(names[0])}, but needs "
                f"{' or '.join(map(str, sorted(steps)))}; files are missing, use another "
                "checkpoint",
                path=self.path,
            )
        return tensors

    def _existing(self, name: str) -> Path:
        file = self.path / name
        if not _has_size(file, self.files[name]):
            raise CheckpointError(
                f"{file}: missing or cut short; use an earlier checkpoint", path=file
            )
        return file

    def _read(self, name: str) -> dict[str, Tensor]:
        file = self._existing(name)
        if file_checksum(file) != self.files[name]["xxh3_128"]:
            raise CheckpointError(
                f"{file}: its checksum differs from {MANIFEST_FILE}; the file is damaged, use an "
                "earlier checkpoint",
                path=file,
            )
        try:
            with interrupted_after():  # otherwise Ctrl-C shows as an error of safetensors
                return safetensors.torch.load_file(file)
        except safetensors.SafetensorError as error:
            raise CheckpointError(f"{file}: {error}", path=file) from error

    def shape_of(self, group: str, name: str) -> tuple[int, ...]:
        """Returns the shape of a tensor without reading it.

        Raises:
            CheckpointError: the tensor is missing, or its file is damaged.
        """
        file_name = self._files_of(group)[0]
        file = self._existing(file_name)
        try:
            with safetensors.safe_open(file, framework="pt") as opened:
                shape = tuple(opened.get_slice(name).get_shape())
            row_shard = self.files[file_name].get("part")
            return shape if row_shard is None else (row_shard["rows"], *shape[1:])
        except (safetensors.SafetensorError, OSError) as error:
            raise CheckpointError(f"{file}: {name}: {error}", path=file) from error

    def tensors_like(
        self,
        group: str,
        expected: Mapping[str, Tensor],
        left_out: Callable[[str], bool] = lambda _: False,
    ) -> dict[str, Tensor]:
        """Reads tensors of a group, and checks their shapes and dtypes.

        Args:
            group: name of the group.
            expected: name -> tensor of the expected shape and dtype, possibly on device `meta`.
            left_out: returns whether the group may hold a further tensor of that name.

        Raises:
            CheckpointError: the group or a tensor is missing or damaged, a shape or dtype differs,
                the group holds other tensors, or a value is NaN or infinite.
        """
        stored = self.tensors(group)
        others = sorted(name for name in stored if name not in expected and not left_out(name))
        if others and expected.keys() <= stored.keys():
            raise CheckpointError(
                f"{self.file_of(group, others[0])}: holds tensors that the model does not have: "
                f"{show_names(others)}; the model flags differ from those of the checkpoint: leave "
                "them out"
            )
        for name, like in expected.items():
            if name not in stored:
                raise CheckpointError(
                    f"{self.file_of(group, name)}: has no tensor {name!r}; another kind of model "
                    "or optimizer made it"
                )
            found, wanted = describe_tensor(stored[name]), describe_tensor(like)
            if found != wanted:
                raise CheckpointError(
                    f"{self.file_of(group, name)}: {name}: the checkpoint has {found}, but the "
                    f"model {wanted}; the model flags or the dataset differ from those of the "
                    "checkpoint, or other software changed the file"
                )
        tensors = {name: stored[name] for name in expected}
        bad = find_nonfinite(tensors)
        if bad is not None:
            raise CheckpointError(
                f"{self.file_of(group, bad)}: {bad}: has values that are NaN or infinite, as after "
                "a training that diverged; use an earlier checkpoint"
            )
        return tensors

    @torch.no_grad()
    def copy_into(
        self,
        group: str,
        tensors: Mapping[str, Tensor],
        row_shard: "RowShard | None" = None,
        left_out: Callable[[str], bool] = lambda _: False,
    ) -> None:
        """Copies tensors of a group into given ones.

        Args:
            group: name of the group.
            tensors: name -> tensor to overwrite.
            row_shard: rows of the group to copy; None copies all.
            left_out: see `tensors_like`.

        Raises:
            CheckpointError: see `tensors_like`; nothing has been copied then.
        """
        expected = tensors
        if row_shard is not None:
            expected = {
                name: t.new_empty((row_shard.rows, *t.shape[1:]), device="meta")
                for name, t in tensors.items()
            }
        stored = self.tensors_like(group, expected, left_out)
        rows = slice(None) if row_shard is None else slice(row_shard.first, None, row_shard.step)
        for name, tensor in tensors.items():
            ops.copy_values(tensor, stored[name][rows] if tensor.dim() else stored[name])

    def check_same_settings(self, now: Mapping[str, Any], fixed: Iterable[str]) -> None:
        """Refuses to resume a run with settings that change its result.

        Args:
            now: every setting of the resumed run.
            fixed: names of the settings that must be equal.

        Raises:
            CheckpointError: names the settings that differ.
        """
        differing = {
            name: f"`{name}` (was {was}, now {is_now})"
            for name in fixed
            for was, is_now in [(self.config.get(name), now.get(name))]
            if was != is_now
        }
        if differing:
            raise CheckpointError(
                f"{self.path}: was made with other settings, so the run cannot continue from "
                f"it: {'; '.join(differing.values())}. Repeat the settings, or start anew with "
                "`load_checkpoint_path`",
                settings=(*differing, "load_checkpoint_path"),
                path=self.path,
            )

    def settings(self, section: type) -> dict[str, Any]:
        """Returns the stored settings of a section, as plain values.

        Raises:
            UserError: a value does not have the type of its setting.
        """
        return stored_settings(self.path / MANIFEST_FILE, self.config, section)

    def section(self, section: type[T]) -> T:
        """Returns a section of the config with the values of the training.

        Raises:
            UserError: a value does not have the type of its setting, or is refused.
        """
        return section_from_dict(section, self.settings(section))

    def count(self, name: str, default: int | None = None) -> int:
        """Returns a whole number of the state.

        Raises:
            CheckpointError: it is not a whole number from 0, or it is missing and has no default.
        """
        value = self.state.get(name, default)
        if type(value) is not int or value < 0:
            raise CheckpointError(
                f"{self.path / MANIFEST_FILE}: state {name} must be an integer from 0, got "
                f"{value!r}",
                path=self.path / MANIFEST_FILE,
            )
        return value

    def require_model(self, name: str, title: str) -> None:
        """Refuses a checkpoint of another model.

        Args:
            name: name of the model in its checkpoints.
            title: name of the model in messages.

        Raises:
            CheckpointError: names the model that the checkpoint belongs to.
        """
        found = self.state.get(MODEL)
        if found != name:
            takers = f"; use it with commands for {found}, such as `recsys-recipes test {found}`"
            of = f" but of {found}{takers}" if isinstance(found, str) else ""
            raise CheckpointError(f"{self.path}: not a checkpoint of {title}{of}", path=self.path)

    def groups(self) -> list[str]:
        """Returns the names of all groups."""
        return list(dict.fromkeys(map(_group_of, self.files)))

    def check_groups(self, known: Collection[str]) -> None:
        """Refuses groups that the model does not have.

        Raises:
            CheckpointError: names the file of such a group.
        """
        for name in self.files:
            if (group := _group_of(name)) not in known:
                raise CheckpointError(
                    f"{self.path / name}: the model has no tensors {group!r}, only "
                    f"{show_names(sorted(known))}; the checkpoint belongs to another model, or "
                    "other software changed it",
                    path=self.path / name,
                )


@dataclasses.dataclass(frozen=True, slots=True)
class RowShard:
    """The rows of a group that one process holds.

    Attributes:
        first: number of the first row.
        step: distance between rows, equal to the number of shards.
        rows: number of rows of all shards together.
    """

    first: int
    step: int
    rows: int


def stored_settings(file: Path, config: Mapping[str, Any], section: type) -> dict[str, Any]:
    """Picks the settings of a section from a stored config.

    Args:
        file: file that holds the config, for messages.
        config: name of a setting -> value; names of other sections are ignored.
        section: dataclass of the settings.

    Raises:
        UserError: a value does not have the type of its setting.
    """
    hints = typing.get_type_hints(section)
    return {
        name: checked(f"{file}: {name}", hints[name], value)
        for name, value in config.items()
        if name in hints
    }


def describe_tensor(tensor: Tensor) -> str:
    """Returns dtype and shape of a tensor as text."""
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


def _group_of(file_name: str) -> str:
    return re.sub(r"(\.\d+_of_\d+)?\.safetensors$", "", file_name)


def read_checkpoint(path: Path) -> Checkpoint:
    """Opens a checkpoint, given its own folder or the folder of a run.

    From a run it takes the checkpoint with the best evaluation, or else the latest. If a run that
    is still saving replaces it before it is opened, the next one is taken.

    Raises:
        CheckpointError: there is none, or its manifest is damaged or of a later version.
    """
    if (path / MANIFEST_FILE).is_file():
        return _open(path)
    while True:
        before = _content(path / POINTER_FILE)
        try:
            chosen = named_checkpoint(path, "best") or named_checkpoint(path, "latest")
            if chosen is None:
                raise CheckpointError(
                    f"{path}: no checkpoint here ({MANIFEST_FILE} and {POINTER_FILE} are both "
                    "missing); give the folder that the training run saved in",
                    path=path,
                )
            return _open(chosen)
        except CheckpointError:
            if _content(path / POINTER_FILE) == before and not _is_installing(path):
                raise
            time.sleep(0.01)


def _content(path: Path) -> bytes:
    """Returns the bytes of a file; empty if it cannot be read."""
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _is_installing(run: Path) -> bool:
    """Returns whether a running process is installing a new checkpoint."""
    try:
        if (run / NEXT_POINTER_FILE).exists():
            HeldPath(run / LOCK_FILE, fcntl.LOCK_SH | fcntl.LOCK_NB).release()
    except OSError as error:
        return isinstance(error, BlockingIOError)
    return False


def _open(path: Path) -> Checkpoint:
    try:
        held = HeldPath(path, fcntl.LOCK_SH)
        text = (path / MANIFEST_FILE).read_text()
        manifest = parse_json(text)
    except (ValueError, OSError) as error:
        raise CheckpointError(f"{path / MANIFEST_FILE}: not readable as JSON: {error}") from error
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        is_dataset = isinstance(manifest, dict) and manifest.get("format") == DATASET_FORMAT
        of = (
            "is the manifest of a dataset, not of a checkpoint"
            if is_dataset
            else "not that of a checkpoint"
        )
        raise CheckpointError(
            f"{path / MANIFEST_FILE}: {of}; give the folder that the training run saved in",
            path=path / MANIFEST_FILE,
        )
    if manifest.get("format_version") != FORMAT_VERSION:
        raise CheckpointError(
            f"{path}: format version {manifest.get('format_version')}, but this code reads "
            f"{FORMAT_VERSION}",
            path=path,
        )
    if "checksum" in manifest and not is_intact(text):
        raise CheckpointError(
            f"{path / MANIFEST_FILE}: its checksum differs from its text; the file is damaged, use "
            "another checkpoint",
            path=path / MANIFEST_FILE,
        )
    missing = {"state", "config", "files"} - manifest.keys()
    if missing:
        raise CheckpointError(
            f"{path / MANIFEST_FILE}: keys are missing: {sorted(missing)}",
            path=path / MANIFEST_FILE,
        )
    for key in ("state", "config", "files"):
        if not isinstance(manifest[key], dict):
            raise CheckpointError(
                f"{path / MANIFEST_FILE}: {key} is malformed", path=path / MANIFEST_FILE
            )
    for name, entry in manifest["files"].items():
        if not _describes_file(entry):
            raise CheckpointError(
                f"{path / MANIFEST_FILE}: files, {name} is malformed", path=path / MANIFEST_FILE
            )
    unlisted = {file.name for file in path.glob("*.safetensors")} - manifest["files"].keys()
    if unlisted:
        raise CheckpointError(
            f"{path / min(unlisted)}: {MANIFEST_FILE} does not list it, so it belongs to another "
            "checkpoint; remove it, or use another checkpoint",
            path=path / min(unlisted),
        )
    return Checkpoint(path, manifest["state"], manifest["config"], manifest["files"], held)


def _describes_file(entry: object) -> bool:
    if not isinstance(entry, dict) or not isinstance(entry.get("bytes"), int):
        return False
    names = {field.name for field in dataclasses.fields(RowShard)}
    rows = entry.get("part", {"first": 0, "step": 1, "rows": 0})
    return (
        isinstance(entry.get("xxh3_128"), str)
        and isinstance(rows, dict)
        and rows.keys() == names
        and all(type(number) is int for number in rows.values())
        and 0 <= rows["first"] < rows["step"]
        and rows["rows"] >= 0
    )


def named_checkpoint(run: Path, kind: Literal["latest", "best"]) -> Path | None:
    """Returns the folder of a run's latest or best checkpoint, or None.

    Raises:
        CheckpointError: see `read_pointers`; or the folder is missing.
    """
    name = read_pointers(run).get(kind)
    if name is not None and not (run / name / MANIFEST_FILE).is_file():
        raise CheckpointError(
            f"{run / POINTER_FILE}: {kind} is {name}, but {run / name / MANIFEST_FILE} is missing; "
            + _what_is_left(run)
        )
    return None if name is None else run / name


def latest_config(run: Path) -> tuple[Path, Mapping[str, Any]] | None:
    """Returns the folder of a run's latest checkpoint and its stored settings, or None.

    Raises:
        CheckpointError: see `named_checkpoint` and `read_checkpoint`.
    """
    checkpoint = named_checkpoint(run, "latest")
    return None if checkpoint is None else (checkpoint, read_checkpoint(checkpoint).config)


def read_pointers(run: Path) -> dict[str, str]:
    """Reads the names of a run's latest and best checkpoints; empty if there are none.

    Raises:
        CheckpointError: the file is damaged; or it is missing or empty although step folders exist.
    """
    file = run / POINTER_FILE
    try:
        pointers: dict[str, str] = parse_json(file.read_text())
    except (FileNotFoundError, NotADirectoryError):
        pointers = {}
    except (ValueError, OSError) as error:
        raise CheckpointError(
            f"{file}: not readable as JSON: {error}; {_what_is_left(run)}", path=file
        ) from error
    names = pointers.values() if isinstance(pointers, dict) else (None,)
    if not all(isinstance(name, str) and _STEP_FOLDER.fullmatch(name) for name in names):
        raise CheckpointError(f"{file}: is malformed; {_what_is_left(run)}", path=file)
    if "latest" not in pointers and _step_folders(run):
        fault = "names no latest checkpoint" if file.exists() else "is missing"
        raise CheckpointError(
            f"{file}: {fault}, though {_step_folders(run)[-1].name} exists next to it; "
            + _what_is_left(run)
        )
    return pointers


def _what_is_left(run: Path) -> str:
    """Names a run's newest complete checkpoint, and says how to continue."""
    whole = [folder for folder in _step_folders(run) if _is_whole(folder)]
    if not whole:
        return "no step folder there is complete: start a new run in another folder"
    pointer = json.dumps({"latest": whole[-1].name})
    return (
        f"the newest complete checkpoint is {whole[-1]}: name it, or write {pointer} to "
        f"{run / POINTER_FILE} to continue the run"
    )


def _step_folders(run: Path) -> list[Path]:
    """Returns the folders of checkpoints, oldest first."""
    return sorted(path for path in run.glob("step_*") if _STEP_FOLDER.fullmatch(path.name))


def _is_whole(path: Path) -> bool:
    """Returns whether a checkpoint has all its files, judged by their sizes."""
    if not (path / MANIFEST_FILE).is_file():
        return False
    try:
        files = read_checkpoint(path).files
    except CheckpointError:
        return False
    return all(_has_size(path / name, entry) for name, entry in files.items())


def _has_size(file: Path, entry: Mapping[str, Any]) -> bool:
    return file.is_file() and file.stat().st_size == entry["bytes"]
