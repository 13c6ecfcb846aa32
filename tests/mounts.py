# SPDX-License-Identifier: Apache-2.0
"""Real mount points of a test: a small file system, and a folder mounted once more."""

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.tools import require


@contextlib.contextmanager
def mounted(folder: Path, *options: str) -> Iterator[Path]:
    """Mounts something on a folder; skips where that takes more rights."""
    folder.mkdir(exist_ok=True)
    command = ["mount", *options, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    require("right to mount", done.returncode == 0)
    try:
        yield folder
    finally:
        # lazy: a task of Spark that failed may close its files after the command has ended
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def tmpfs(folder: Path, size: str, *options: str) -> contextlib.AbstractContextManager[Path]:
    """Mounts an empty file system of some bytes, such as `4m`."""
    return mounted(folder, "-t", "tmpfs", "-o", ",".join((f"size={size}", *options)), "tmpfs")
