# SPDX-License-Identifier: Apache-2.0
"""The log of a run: lines `DLLL {json}`, like NVIDIA's dllogger."""

import json
import logging
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)


class RunLog:
    """Appends records to a run's log; opens it per line.

    Args:
        path: log file; None logs nothing. An earlier file is kept as `<path>.old` unless `append`.
        append: continue the file of a resumed run.
    """

    def __init__(self, path: Path | None, append: bool = False) -> None:
        self._start = time.time()
        self._path = path
        if path is not None and not append:
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.is_file() and path.stat().st_size:
                old = path.with_name(path.name + ".old")
                path.replace(old)
                logger.info("%s of an earlier run is kept as %s", path, old)
            path.write_text("")

    def parameters(self, config: Mapping[str, Any]) -> None:
        """Records every setting of the run."""
        self._write("PARAMETER", config)

    def record(self, step: tuple[int, ...], data: Mapping[str, Any]) -> None:
        """Records values of a step (epoch, step) or of the run ()."""
        self._write(list(step), data)

    def _write(self, step: object, data: Mapping[str, Any]) -> None:
        if self._path is None:
            return
        now = time.time()
        entry = {
            "timestamp": f"{now * 1000:.0f}",
            "elapsedtime": f"{now - self._start:.6f}",
            "datetime": time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(now)),
            "type": "LOG",
            "step": step,
            "data": {k: _json_safe(v) for k, v in data.items()},
        }
        with self._path.open("a") as file:
            file.write(f"DLLL {json.dumps(entry)}\n")


def _json_safe(value: object) -> object:
    """Replaces nan and infinities, which JSON lacks, with null."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
