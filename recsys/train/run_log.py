# SPDX-License-Identifier: Apache-2.0
"""The log of a run, in dllogger's format, and its progress bar."""

import contextlib
import dataclasses
import errno
import fcntl
import json
import logging
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tqdm import tqdm

from recsys.errors import UserError
from recsys.files.durable import durable_rename, sync
from recsys.files.held import HeldPath
from recsys.train.measure.tensorboard import Events

logger = logging.getLogger(__name__)

_PREFIX = "DLLL "
_PARAMETER = "PARAMETER"


class RunLog:
    """Appends lines `DLLL {json}` to a log, which is opened for each line.

    A log belongs to one run at a time.

    Args:
        path: log file; None writes none. When this run begins, the log of
            another one is renamed to `<path>.old`; a refused run leaves it in place.

    Attributes:
        events: also receives everything that is logged from now on; None for none.
    """

    def __init__(self, path: Path | None) -> None:
        self._start = time.time()
        self._path = self._file = path
        self._kept: list[dict[str, Any]] = []
        self._has_begun = False
        self._held: HeldPath | None = None
        self.events: Events | None = None
        if path is not None:
            require_log(path)

    def begin(self, config: Mapping[str, Any], resumed: "Resumed | None" = None) -> None:
        """Begins the log, once, with every setting of the run.

        Args:
            resumed: run whose log to continue, without the entries after its checkpoint; None
                begins a new log.

        Raises:
            UserError: the log cannot be written.
        """
        if self._has_begun:
            return
        self._has_begun = True
        try:
            if self._path is not None:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                self._begin_file(self._path, config, resumed)
            self._write(_PARAMETER, config)
        except OSError as error:
            raise UserError(
                f"`log_path` {self._path}: {error.strerror}", setting="log_path"
            ) from error

    def _begin_file(self, path: Path, config: Mapping[str, Any], resumed: "Resumed | None") -> None:
        if path.exists() and not path.is_file():
            return
        self._hold(path)
        if resumed is not None and resumed.has_logged(path, config):
            _cut_back(path, resumed.step)
        elif path.stat().st_size:
            old = path.with_name(path.name + ".old")
            durable_rename(path, old)
            logger.info("%s of an earlier run is kept as %s", path, old)
            self._hold(path)

    def _hold(self, path: Path) -> None:
        """Creates or opens a file, and locks it against other runs."""
        self._release()
        try:
            self._held = HeldPath(path, fcntl.LOCK_EX | fcntl.LOCK_NB, os.O_RDWR | os.O_CREAT)
        except BlockingIOError as error:
            raise UserError(
                f"`log_path` {path}: another run is writing it; name another file for this run",
                setting="log_path",
            ) from error
        if self._held.unsupported_reason:
            logger.warning(
                "`log_path` %s cannot be locked: %s", path, self._held.unsupported_reason
            )

    def _release(self) -> None:
        if self._held is not None:
            self._held.release()

    def close(self) -> None:
        """Releases the log for other runs."""
        self._release()
        if self.events is not None:
            self.events.close()

    def record(self, step: tuple[int, ...], data: Mapping[str, Any]) -> None:
        """Records values of a step (epoch, step), or of the run ().

        A full disk ends the log, not the run.
        """
        if self.events is not None:
            self.events.record(step, data)
        try:
            self._write(list(step), data)
            if not step:
                self.sync()
        except OSError as error:
            self._end(error)

    def entries(self) -> list[dict[str, Any]]:
        """Returns the entries so far, each with its `step` and `data`, of the file if there is one.

        Lines of it that were cut or damaged are left out, with a warning.
        """
        return self._kept if self._file is None else read_run_log(self._file)

    def sync(self) -> None:
        """Syncs the log to disk, so that it reaches as far as the checkpoints."""
        if self.events is not None:
            self.events.flush()
        if self._path is not None and self._path.is_file():
            try:
                sync(self._path)
            except OSError as error:
                self._end(error)

    def _end(self, error: OSError) -> None:
        logger.warning("`log_path` %s: %s; nothing more is logged", self._path, error.strerror)
        self._path = None

    def _write(self, step: object, data: Mapping[str, Any]) -> None:
        values = {k: _json_safe(v) for k, v in data.items()}
        if self._file is None:
            self._kept.append({"step": step, "data": values})
        if self._path is None:
            return
        now = time.time()
        entry = {
            "timestamp": f"{now * 1000:.0f}",
            "elapsedtime": f"{now - self._start:.6f}",
            "datetime": time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(now)),
            "type": "LOG",
            "step": step,
            "data": values,
        }
        with self._path.open("a") as file:
            file.write(f"{_PREFIX}{json.dumps(entry)}\n")


@dataclasses.dataclass(frozen=True, slots=True)
class Resumed:
    """A run that is resumed.

    Attributes:
        step: last step that is kept: that of its checkpoint, 0 without one.
        folder_setting: name of the setting that names the run's folder.
    """

    step: int
    folder_setting: str

    def has_logged(self, path: Path, config: Mapping[str, Any]) -> bool:
        """Returns whether a log ends with this run, judged by the run's folder.

        The log may have been moved since, or the log and the folder together.
        """
        entries = (_entry(line) for line in reversed(path.read_bytes().splitlines()))
        last = next((e for e in entries if e is not None and e["step"] == _PARAMETER), None)
        if last is None:
            return False
        names = (self.folder_setting, "log_path")
        (then, its_log), (now, _) = (
            [Path(values.get(name) or "").resolve() for name in names]
            for values in (last["data"], config)
        )
        here = path.resolve().parent
        return then == now or os.path.relpath(then, its_log.parent) == os.path.relpath(now, here)


def _cut_back(path: Path, step: int) -> None:
    """Cuts a log after the entries of a step, and after its last whole line."""
    position = size = 0
    for line in path.read_bytes().splitlines(keepends=True):
        of_step = (_entry(line) or {}).get("step")
        if isinstance(of_step, list) and len(of_step) == 2 and of_step[1] > step:
            break
        position += len(line)
        if line.endswith(b"}\n"):
            size = position
    os.truncate(path, size)


def _entry(line: bytes) -> dict[str, Any] | None:
    """Returns an entry of a log with its `step` and `data`; None for other lines."""
    try:
        entry = json.loads(line.removeprefix(_PREFIX.encode()))
        return dict(entry | {"step": entry["step"], "data": dict(entry["data"])})
    except (ValueError, KeyError, TypeError):
        return None


def read_run_log(path: Path) -> list[dict[str, Any]]:
    """Reads the entries of a log, each with its `step` and `data`.

    Lines that were cut or damaged are left out with a warning.
    """
    entries = []
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        if (entry := _entry(line)) is None:
            logger.warning("%s: line %d is not a record of a run and is left out", path, number)
        else:
            entries.append(entry)
    return entries


@contextlib.contextmanager
def begun_log(path: Path | None, settings: Mapping[str, Any]) -> Iterator[RunLog]:
    """Begins the log of a run with its settings; closes it at the end of the block.

    Raises:
        UserError: the file holds something else or cannot be written.
    """
    with contextlib.closing(RunLog(path)) as log:
        log.begin(settings)
        yield log


def require_log(path: Path) -> None:
    """Refuses a file that holds something else or cannot be written.

    Raises:
        UserError: names the file and the cause.
    """
    require_writable(path, "log_path")
    if path.is_file():
        with path.open("rb") as file:
            first = file.read(len(_PREFIX))
        if first and first != _PREFIX.encode():
            raise UserError(
                f"`log_path` {path} is not the log of a run; name another file", setting="log_path"
            )


def require_writable(path: Path, name: str) -> None:
    """Refuses a file that cannot be written; creates nothing.

    Args:
        name: setting that names the file.

    Raises:
        UserError: names the file and the cause.
    """
    try:
        if path.is_fifo():
            raise UserError(
                f"`{name}` {path} is a named pipe, on which a run would block; name a file",
                setting=name,
            )
        if path.exists():
            with path.open("a") as file:
                file.write("\n" if path.is_char_device() else "")  # so that /dev/full fails
            return
        folder = next(folder for folder in path.absolute().parents if folder.exists())
        code = errno.EACCES if folder.is_dir() else errno.ENOTDIR
        if not os.access(folder, os.W_OK | os.X_OK) or not folder.is_dir():
            raise OSError(code, os.strerror(code))
    except OSError as error:
        raise UserError(
            f"`{name}` {path} cannot be written: {error.strerror}", setting=name
        ) from error


def _json_safe(value: object) -> object:
    """Replaces NaN and infinities, which JSON does not have, with null."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def progress_bar(total: int, done: int, is_first: bool) -> "tqdm[Any]":
    """Returns a progress bar of steps, which is shown only on a terminal.

    Args:
        total: steps of the whole run.
        done: steps of an earlier, interrupted run.
        is_first: whether this process is the one that prints.
    """
    return tqdm(
        total=total,
        initial=done,
        unit="step",
        file=sys.stdout,
        disable=not (is_first and sys.stdout.isatty()),
        dynamic_ncols=True,
    )


def above_bar(print_line: Callable[[str], None]) -> Callable[[str], None]:
    """Returns a function that prints lines above any progress bar."""

    def print_above(line: str) -> None:
        with tqdm.external_write_mode(file=sys.stdout):
            print_line(line)

    return print_above
