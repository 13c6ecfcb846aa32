# SPDX-License-Identifier: Apache-2.0
"""Disk space: a run is refused if it is too small, and a full disk is explained."""

import contextlib
import dataclasses
import errno
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from preproc.files.errors import KernelError, PreprocError
from recsys.errors import UserError
from recsys.sizes import format_bytes

_FULL = (errno.ENOSPC, errno.EDQUOT)


@dataclasses.dataclass(frozen=True, slots=True)
class DiskNeeds:
    """Estimated bytes that a run writes.

    Attributes:
        bytes_of: bytes by folder; the folders need not exist yet.
        rows: estimated rows of the run.
        remedy: what to do other than make room, for messages.
    """

    bytes_of: Mapping[Path, float]
    rows: float
    remedy: str

    def check(self, reusable: Mapping[Path, int] = {}) -> None:
        """Refuses a run that would fill a disk.

        Args:
            reusable: bytes, by folder, that an earlier, interrupted run has left.

        Raises:
            PreprocError: the estimated need exceeds the free space.
        """
        by_device: dict[int, list[tuple[Path, float, int]]] = {}
        for path, need in self.bytes_of.items():
            folder = existing_folder(path)
            by_device.setdefault(folder.stat().st_dev, []).append(
                (folder, need, reusable.get(path, 0))
            )
        for on_device in by_device.values():
            folder, need = on_device[0][0], sum(need for _, need, _ in on_device)
            free = shutil.disk_usage(folder).free + sum(reused for *_, reused in on_device)
            if need > free:
                raise PreprocError(
                    f"{folder}: {self.rows:,.0f} rows need about {format_bytes(need)}, but only "
                    f"{format_bytes(free)} are free; make room, {self.remedy}"
                )

    @contextlib.contextmanager
    def explained(self, end: str) -> Iterator[None]:
        """Explains the error of a full disk; `end` ends the message.

        Raises:
            PreprocError: a disk is full.
        """
        try:
            yield
        except (OSError, KernelError, UserError) as error:
            if not is_full(error):
                raise
            folders = sorted(map(existing_folder, self.bytes_of), key=_free)
            need = sum(self.bytes_of.values())
            raise PreprocError(
                f"{folders[0]}: the disk is full ({format_bytes(_free(folders[0]))} free); the run "
                f"needs about {format_bytes(need)} in all, estimated from its first rows, or more. "
                f"Make room, {self.remedy}; {end}"
            ) from error


def is_full(error: Exception) -> bool:
    """Returns True for the error of a full disk, even if it comes from Java."""
    return getattr(error, "errno", None) in _FULL or any(
        os.strerror(number) in str(error) for number in _FULL
    )


def _free(folder: Path) -> int:
    return shutil.disk_usage(folder).free


def existing_folder(folder: Path) -> Path:
    """Returns the folder itself, or its nearest parent that exists."""
    folder = folder.resolve()
    while not folder.exists():
        folder = folder.parent
    return folder
