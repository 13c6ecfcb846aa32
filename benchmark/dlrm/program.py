# SPDX-License-Identifier: Apache-2.0
"""Runs DLRM's program in a process and reads its log."""

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from recsys.train.run_log import read_run_log


def final_record(log: Path) -> dict[str, Any]:
    """Returns the metrics in the last line of a run's log."""
    metrics: dict[str, Any] = read_run_log(log)[-1]["data"]
    return metrics


def run_dlrm(*arguments: str) -> dict[str, Any]:
    """Runs dlrm.scripts.main in a process; returns its last record.

    Raises:
        RuntimeError: the program failed; the message ends with its error output.
    """
    with tempfile.TemporaryDirectory() as temporary:
        log = Path(temporary) / "log.json"
        command = [sys.executable, "-m", "dlrm.scripts.main", *arguments, f"--log_path={log}"]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
        return final_record(log)
