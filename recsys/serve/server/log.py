# SPDX-License-Identifier: Apache-2.0
"""Log of a server: bounds its size, and finds the reasons of failures in it."""

import os
import re
import shutil
from pathlib import Path

_REASON_LINES = 12
_ERROR_LINE = re.compile(r"E\d{4} |error: ")
_NO_GPU = re.compile("CudaDriverHelper|NVML|DCGM")
"""Messages that the server prints on every machine without a GPU."""
_LOADED = re.compile(r"successfully loaded '(.+?)'")
_USAGE = re.compile(r"^Usage: .*^\t[^\n]*\n", re.MULTILINE | re.DOTALL)
"""Printed before or after the argument that the server refuses."""


def _for_this_user(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


class ServerLog:
    """A new log file; the previous one is kept as FILE.1.

    It is kept open, so it can be read and cut even if logrotate or a cleaner removed its file.

    Attributes:
        file: path of the log.
        writer: descriptor for the writer, which continues at the end when the log is cut.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        self._earlier = file.with_name(file.name + ".1")
        file.parent.mkdir(parents=True, exist_ok=True)
        if file.exists():
            file.replace(self._earlier)
        self._opened = open(file, "a+b", opener=_for_this_user)  # noqa: SIM115
        self.writer = self._opened.fileno()

    def close(self) -> None:
        """Closes the log; it can still be read by its path."""
        self._opened.close()

    def limit(self, most_bytes: int) -> str:
        """Moves a log that is too large to FILE.1 while it is written; returns any fault."""
        try:
            if os.fstat(self.writer).st_size > most_bytes:
                self._opened.seek(0)
                self._earlier.unlink(missing_ok=True)
                with open(self._earlier, "wb", opener=_for_this_user) as earlier:
                    shutil.copyfileobj(self._opened, earlier)
                self._opened.truncate(0)
        except OSError as error:
            return f"the size of the log cannot be limited: {error}"
        if self.file.exists() and os.path.samestat(self.file.stat(), os.fstat(self.writer)):
            return ""
        return (
            f"{self.file} was moved or deleted: it stays the server's log until the next start "
            "(logrotate: copytruncate)"
        )

    def text(self) -> str:
        """Returns the whole log."""
        size = os.fstat(self.writer).st_size
        return os.pread(self.writer, size, 0).decode(errors="replace")

    def loaded_models(self) -> set[str]:
        """Returns the models that were loaded before the server was ready."""
        return set(_LOADED.findall(self.text()))

    def model_error(self, model: str) -> str:
        """Returns the last error that names a model."""
        errors = [line for line in self.text().splitlines() if line[:1] == "E"]
        named = [line.partition("] ")[2].strip('"') for line in errors if f"'{model}'" in line]
        return named[-1] if named else f"the log {self.file} gives no reason"

    def failure_reason(self) -> str:
        """Returns the log lines that explain a failure."""
        text, usages = _USAGE.subn("", self.text())
        lines = [line for line in text.splitlines() if line.strip()]
        if usages:
            named = (line.rpartition("tritonserver: ")[2] for line in lines)
            return f"it refuses an argument after --: {' '.join(named)}"
        errors = [line for line in lines if _ERROR_LINE.match(line) and not _NO_GPU.search(line)]
        shown = [line.partition("] ")[2].strip('"') or line for line in errors or lines[-3:]]
        return "\n  ".join([*shown[-_REASON_LINES:], f"(the whole log is {self.file})"])
