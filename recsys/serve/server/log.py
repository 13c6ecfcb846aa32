# SPDX-License-Identifier: Apache-2.0
"""Log of a server: its size and what it says about failures."""

import re
import shutil
from pathlib import Path
from typing import BinaryIO

_REASON_LINES = 12
_ERROR_LINE = re.compile(r"E\d{4} |error: ")
_NO_GPU = re.compile("CudaDriverHelper|NVML|DCGM")
"""Messages of the server on every machine without a GPU."""
_LOADED = re.compile(r"successfully loaded '(.+?)'")


def begin_log(log_file: Path) -> BinaryIO:
    """Opens a new log; the one before is kept as FILE.1."""
    if log_file.exists():
        log_file.replace(_earlier(log_file))
    return log_file.open("ab")  # its writer goes on at the end when it is cut


def limit_log(log_file: Path, most_bytes: int) -> None:
    """Moves a log that is too large to FILE.1, under its writer."""
    if log_file.stat().st_size > most_bytes:
        shutil.copyfile(log_file, _earlier(log_file))
        with log_file.open("r+b") as log:
            log.truncate(0)


def _earlier(log_file: Path) -> Path:
    return log_file.with_name(log_file.name + ".1")


def loaded_models(log_file: Path) -> set[str]:
    """Returns the models that were loaded, before the server answers."""
    return set(_LOADED.findall(log_file.read_text(errors="replace")))


def model_error(log_file: Path, model: str) -> str:
    """Returns the last error that names a model."""
    errors = [line for line in log_file.read_text(errors="replace").splitlines() if line[:1] == "E"]
    named = [line.partition("] ")[2].strip('"') for line in errors if f"'{model}'" in line]
    return named[-1] if named else f"the log {log_file} does not say why"


def failure_reason(log_file: Path) -> str:
    """Returns the log lines that explain a failure."""
    lines = log_file.read_text(errors="replace").splitlines()
    errors = [line for line in lines if _ERROR_LINE.match(line)]
    failed = [line for line in errors if "failed to load" in line]
    relevant = failed or [line for line in errors if not _NO_GPU.search(line)] or lines[-3:]
    messages = (line.partition("] ")[2].strip('"') or line for line in relevant)
    # The log writes a line break inside a message as backslash and n.
    shown = [row for text in messages for row in text.replace("\\n", "\n").splitlines() if row]
    return "\n  ".join([*shown[-_REASON_LINES:], f"(the whole log is {log_file})"])
