# SPDX-License-Identifier: Apache-2.0
"""Writes checkpoints that are complete or absent.

Processes that train together write to one folder on a shared file system.
"""

import dataclasses
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor

from recsys.data.manifest import file_checksum
from recsys.files.durable import durable_rename, sync
from recsys.files.json_text import signed
from recsys.train.checkpoint import (
    FORMAT,
    FORMAT_VERSION,
    MANIFEST_FILE,
    CheckpointError,
    RowShard,
)
from recsys.train.processes import ALONE, Processes
from recsys.train.saving.safetensors_file import write_safetensors

T = TypeVar("T")

UNFINISHED = ".tmp"
"""Suffix of the folder of a checkpoint that is being written or removed."""


def write_checkpoint(
    path: Path,
    groups: Mapping[str, Mapping[str, Tensor]],
    state: Mapping[str, Any],
    config: Mapping[str, Any],
    *,
    shards: Mapping[str, RowShard] | None = None,
    processes: Processes = ALONE,
    install: Callable[[Path, Path], None] | None = None,
) -> None:
    """Writes a checkpoint, which is complete once its folder appears.

    Every process must call it.

    Args:
        path: folder of the checkpoint; an earlier one is replaced.
        groups: group -> name -> tensor on any device, for the groups or shards that this process
            writes; each becomes a file.
        state: plain JSON values; those of the first process are written.
        shards: sharded group -> rows that this process writes.
        install: renames the finished folder to `path`, on the first process; None replaces `path`.

    Raises:
        CheckpointError: it cannot be written, for example on a full disk; nothing is left of it.
    """
    temporary = path.with_name(path.name + UNFINISHED)
    num_bytes = sum(t.nbytes for tensors in groups.values() for t in tensors.values())
    saving = Saving(path, temporary, processes, num_bytes)
    saving.all_write(saving.make_folder)

    def write_groups() -> dict[str, dict[str, Any]]:
        return {
            file.name: entry
            for group, tensors in groups.items()
            for file, entry in [_write_group(temporary, group, tensors, (shards or {}).get(group))]
        }

    files: dict[str, dict[str, Any]] = {}
    for written in saving.all_write(write_groups):
        files |= written

    def complete() -> None:
        if processes.is_first:
            manifest = {
                "format": FORMAT,
                "format_version": FORMAT_VERSION,
                "state": dict(state),
                "config": dict(config),
                "files": files,
            }
            (temporary / MANIFEST_FILE).write_text(signed(manifest))
            (install or replace_folder)(temporary, path)

    saving.all_write(complete)


def _write_group(
    folder: Path, group: str, tensors: Mapping[str, Tensor], row_shard: RowShard | None
) -> tuple[Path, dict[str, Any]]:
    """Writes a group or shard; returns its file name and entry of the manifest."""
    suffix = "" if row_shard is None else f".{row_shard.first}_of_{row_shard.step}"
    file = folder / f"{group}{suffix}.safetensors"
    write_safetensors(tensors, file)
    sync(file)  # on a shared file system, only the process that wrote it can sync it
    entry = {"bytes": file.stat().st_size, "xxh3_128": file_checksum(file)}
    if row_shard is not None:
        entry["part"] = dataclasses.asdict(row_shard)
    return file, entry


@dataclasses.dataclass(frozen=True, slots=True)
class Saving:
    """Writes a checkpoint so that all processes succeed or all fail.

    Attributes:
        path: folder of the checkpoint, for messages.
        temporary: folder to write to; it is removed if a process fails.
        num_bytes: bytes that this process writes.
    """

    path: Path
    temporary: Path
    processes: Processes
    num_bytes: int

    def make_folder(self) -> None:
        """Creates an empty temporary folder, on the first process."""
        if self.processes.is_first:
            shutil.rmtree(self.temporary, ignore_errors=True)
            self.temporary.mkdir(parents=True)

    def all_write(self, write: Callable[[], T]) -> list[T]:
        """Calls a writing function on every process; returns the results by rank.

        Raises:
            CheckpointError: it failed on a process; names the space that is needed and free.
        """
        value, failure = None, ""
        try:
            value = write()
        except OSError as error:
            failure = str(error).partition("\n")[0] or type(error).__name__
        outcomes = self.processes.gather_values((value, failure, self.num_bytes))
        failures = [failure for _, failure, _ in outcomes if failure]
        if not failures:
            return [value for value, _, _ in outcomes]  # type: ignore[misc]
        if self.processes.is_first:
            shutil.rmtree(self.temporary, ignore_errors=True)
        folder = next(p for p in self.temporary.absolute().parents if p.is_dir())
        needed, free = sum(size for _, _, size in outcomes), shutil.disk_usage(folder).free
        why = "the disk is full" if free < needed + _MARGIN else "not written"
        raise CheckpointError(
            f"{self.path}: {why} ({failures[0]}); a checkpoint takes {needed:,} bytes and {free:,} "
            "are free there. Nothing of it is left, and earlier ones are unchanged: free some "
            "space and continue from them, or save elsewhere",
            path=self.path,
        )


_MARGIN = 1 << 20
"""Space for the manifest, and for what file systems round up to."""


def replace_folder(new: Path, path: Path) -> None:
    """Replaces a folder with a complete one by renaming."""
    old = path.with_name(path.name + ".old")
    shutil.rmtree(old, ignore_errors=True)
    if path.exists():
        path.rename(old)
    durable_rename(new, path)
    shutil.rmtree(old, ignore_errors=True)
