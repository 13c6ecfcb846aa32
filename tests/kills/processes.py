# SPDX-License-Identifier: Apache-2.0
"""Processes that can be found again with all that they have started, in whichever session."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.harness import REPOSITORY

_MARK = "RECIPES_KILLS"
"""Variable of all processes of a command: its folder."""
PATIENCE_S = 300.0
"""Seconds after which a command hangs, on a busy machine."""
_GONE_S = 60.0
"""Seconds in which the processes of a command must be gone after it."""


class HangsError(Exception):
    """A command does not end, or leaves processes."""


class Command:
    """A command of Python in a process group of its own.

    Args:
        arguments: of Python.
        folder: gets its output, and its temporary files.
        variables: to add to the environment.

    Attributes:
        stderr: file with its errors.
    """

    def __init__(
        self, arguments: Sequence[object], folder: Path, variables: Mapping[str, str] = {}
    ) -> None:
        self._folder = folder
        self.stderr = folder / "stderr"
        temporary = folder / "tmp"
        temporary.mkdir(parents=True, exist_ok=True)
        environment = {
            "OMP_NUM_THREADS": "1",
            "TMPDIR": str(temporary),
            "SPARK_LOCAL_DIRS": str(temporary),
            _MARK: f"{folder}/",
        }
        with (folder / "stdout").open("ab") as stdout, self.stderr.open("wb") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, *map(str, arguments)],
                cwd=REPOSITORY,
                env={**os.environ, **environment, **variables},
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
            )

    def pids(self) -> list[int]:
        """Returns the processes of the command that run."""
        return running(self._folder)

    def kill(self) -> None:
        """Kills all processes of the command, those included that start meanwhile."""
        kill_all(self._folder)

    def wait(self, seconds: float = PATIENCE_S) -> int:
        """Waits until the process and all that it has started have ended; returns its status.

        Raises:
            HangsError: they do not; they are killed.
        """
        try:
            status = self.process.wait(seconds)
            deadline = time.monotonic() + _GONE_S
            while left := self.pids():
                if time.monotonic() > deadline:
                    raise HangsError(f"left over: {', '.join(map(_command_line, left))}")
                time.sleep(0.05)
        except subprocess.TimeoutExpired:
            raise HangsError(f"has not ended after {seconds:.0f} s") from None
        finally:
            self.kill()
        return status


def running(folder: Path) -> list[int]:
    """Returns the processes of the commands of a folder, or of folders below it."""
    mark, found = f"{_MARK}={folder}/".encode(), []
    for file in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):  # it has ended, or is another user's
            if any(each.startswith(mark) for each in file.read_bytes().split(b"\0")):
                found.append(int(file.parent.name))
    return sorted(found)


def kill_all(folder: Path) -> None:
    """Kills the processes of the commands of a folder, or of folders below it."""
    while left := running(folder):
        for pid in left:
            kill(pid)
        time.sleep(0.01)


def kill(pid: int) -> None:
    """Kills a process, if it has not ended."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _command_line(pid: int) -> str:
    with contextlib.suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
        return f"{pid} {words.decode(errors='replace')[:200]}"
    return str(pid)


def whole(arguments: Sequence[object], folder: Path, variables: Mapping[str, str] = {}) -> float:
    """Runs a command to its end; returns the seconds that it took."""
    began = time.monotonic()
    command = Command(arguments, folder, variables)
    if command.wait():
        raise SystemExit(f"{command.stderr.read_text()}\nfailed: {' '.join(map(str, arguments))}")
    return time.monotonic() - began
