# SPDX-License-Identifier: Apache-2.0
"""Log of a server: its size and what it says about failures."""

import os
import re
import shutil
import time
from pathlib import Path

_REASON_LINES = 12
_ERROR_LINE = re.compile(r"E\d{4} |error: ")
_NO_GPU = re.compile("CudaDriverHelper|NVML|DCGM")
"""Messages of the server on every machine without a GPU."""
_LOADED = re.compile(r"successfully loaded '(.+?)'")
_REFUSED = re.compile(r"^E.*\"(Poll failed for model directory '(.+?)'.*)\"$", re.MULTILINE)
"""Line that a polling server repeats at each poll."""
_USAGE = re.compile(r"^Usage: .*^\t[^\n]*\n", re.MULTILINE | re.DOTALL)
"""Printed before or after the argument that is refused."""


class ServerLog:
    """A new log; the one before is kept as FILE.1.

    It is kept open, and so read and cut where logrotate or a cleaner took its file away.

    Attributes:
        file: its path.
        writer: descriptor for its writer, who goes on at the end when the log is cut.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        file.parent.mkdir(parents=True, exist_ok=True)
        if file.exists():
            file.replace(self._earlier)
        self._opened = file.open("a+b")
        self.writer = self._opened.fileno()
        self._read = 0
        self._refused: dict[str, tuple[str, float]] = {}

    @property
    def _earlier(self) -> Path:
        return self.file.with_name(self.file.name + ".1")

    def close(self) -> None:
        """Closes the log, which can still be read by its path."""
        self._opened.close()

    def is_in_place(self) -> bool:
        """Tells if the path still names what the server writes to."""
        return self.file.exists() and os.path.samestat(self.file.stat(), os.fstat(self.writer))

    def limit(self, most_bytes: int) -> None:
        """Moves a log that is too large to FILE.1, under its writer."""
        if os.fstat(self.writer).st_size > most_bytes:
            self._opened.seek(0)
            with self._earlier.open("wb") as earlier:
                shutil.copyfileobj(self._opened, earlier)
            self._opened.truncate(0)
            self._read = 0

    def text(self, start: int = 0) -> str:
        """Returns the log from a byte on."""
        size = os.fstat(self.writer).st_size
        return os.pread(self.writer, max(size - start, 0), start).decode(errors="replace")

    def refused_models(self, newest_s: float) -> dict[str, str]:
        """Returns models whose folder was refused within some seconds, with the reason."""
        now = time.monotonic()
        new = self.text(self._read)
        self._read += new.rfind("\n") + 1
        self._refused |= {model: (reason, now) for reason, model in _REFUSED.findall(new)}
        return {model: why for model, (why, at) in self._refused.items() if now - at < newest_s}

    def loaded_models(self) -> set[str]:
        """Returns the models that were loaded, before the server answers."""
        return set(_LOADED.findall(self.text()))

    def model_error(self, model: str) -> str:
        """Returns the last error that names a model."""
        errors = [line for line in self.text().splitlines() if line[:1] == "E"]
        named = [line.partition("] ")[2].strip('"') for line in errors if f"'{model}'" in line]
        return named[-1] if named else f"the log {self.file} does not say why"

    def failure_reason(self) -> str:
        """Returns the log lines that explain a failure."""
        text, usages = _USAGE.subn("", self.text())
        lines = [line for line in text.splitlines() if line.strip()]
        if usages:
            named = (line.rpartition("tritonserver: ")[2] for line in lines)
            return f"it refuses an argument after --: {' '.join(named)}"
        errors = [line for line in lines if _ERROR_LINE.match(line)]
        failed = [line for line in errors if "failed to load" in line]
        relevant = failed or [line for line in errors if not _NO_GPU.search(line)] or lines[-3:]
        messages = (line.partition("] ")[2].strip('"') or line for line in relevant)
        # The log writes a line break inside a message as backslash and n.
        shown = [row for text in messages for row in text.replace("\\n", "\n").splitlines() if row]
        return "\n  ".join([*shown[-_REASON_LINES:], f"(the whole log is {self.file})"])
