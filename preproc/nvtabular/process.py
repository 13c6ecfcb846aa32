# SPDX-License-Identifier: Apache-2.0
"""The process that runs NVTabular in its own environment."""

import contextlib
import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, get_args

from preproc.files.errors import PreprocError
from recsys.installation import command_for
from recsys.sizes import format_bytes

NvtabularDevice = Literal["auto", "cpu", "gpu"]
NVTABULAR_DEVICES: tuple[NvtabularDevice, ...] = get_args(NvtabularDevice)

DEFAULT_PYTHON = Path(__file__).parents[2] / ".venv-nvtabular" / "bin" / "python"
"""The interpreter that `make nvtabular` installs."""

PARENT_BYTES = 640 * 2**20
"""Share of the memory limit for this process: a chunk of text, its columns, output rows."""

LEAST_WORKER_BYTES = 2**30
"""Least memory of the worker: NVTabular's imports take 400 MiB, a group of parts the rest."""

FIRST_ID = 3
"""NVTabular's id of the first value of a vocabulary; 0 is padding, 1 null, 2 unknown."""

_WORKER = Path(__file__).with_name("worker.py")
_LOG_LINES = 12
SAME_DATASET = "the default `engine` makes the same dataset without NVTabular"


class NvtabularProcess:
    """A context manager that starts and ends a worker process.

    Args:
        python: interpreter that has NVTabular; None takes the one of `make nvtabular`.
        device: `auto` (a GPU if cuDF finds one), `cpu` or `gpu`.
        memory_limit: bytes of anonymous memory of both processes together; None for no limit.
        threads: threads of the libraries in the worker.
        log: file for the output of NVTabular.

    Attributes:
        version: NVTabular's version.
        device: the device in use, `cpu` or `gpu`.
    """

    def __init__(
        self, python: Path | None, device: str, memory_limit: int | None, threads: int, log: Path
    ) -> None:
        self._python = python or DEFAULT_PYTHON
        self._wanted_device = device
        self._memory = -1 if memory_limit is None else memory_limit - PARENT_BYTES
        self._threads = threads
        self._log = log
        self._process: subprocess.Popen[str] | None = None
        self.version = self.device = ""

    def __enter__(self) -> "NvtabularProcess":
        """Starts the worker and waits until it has imported NVTabular.

        Raises:
            PreprocError: the interpreter, NVTabular or the device is missing, or the memory limit
                is too small.
        """
        if not os.access(self._python, os.X_OK):
            raise PreprocError(
                f"{self._python}: no Python with NVTabular found; run "
                f"{command_for('nvtabular')} (it needs Python 3.11), or name an interpreter that "
                f"has NVTabular with `nvtabular_python`; {SAME_DATASET}",
                setting="nvtabular_python",
            )
        if self._memory != -1 and self._memory < LEAST_WORKER_BYTES:
            raise PreprocError(
                f"`memory_limit` {format_bytes(self._memory + PARENT_BYTES)} is too small: "
                f"NVTabular needs at least {format_bytes(PARENT_BYTES + LEAST_WORKER_BYTES)}. "
                "Raise `memory_limit`, or use `engine` native",
                settings=("memory_limit", "engine"),
            )
        threads = str(self._threads)
        environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
        environment |= {"OMP_NUM_THREADS": threads, "NUMEXPR_MAX_THREADS": threads}
        try:
            with self._log.open("ab") as log:
                self._process = subprocess.Popen(
                    [self._python, "-P", _WORKER, str(self._memory), self._wanted_device],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    env=environment,
                    text=True,
                )
        except OSError as error:
            raise PreprocError(
                f"`nvtabular_python` {self._python}: cannot be started ({error.strerror})",
                setting="nvtabular_python",
            ) from error
        try:
            answer = self._answer("start", lambda _: None)
        except BaseException:
            self._stop()
            raise
        self.version, self.device = answer["version"], answer["device"]
        return self

    def __exit__(self, *_: object) -> None:
        """Kills the worker."""
        self._stop()

    def _stop(self) -> None:
        process = self._process
        assert process is not None
        process.kill()  # safe: unfinished files have temporary names
        for stream in (process.stdin, process.stdout):
            assert stream is not None
            with contextlib.suppress(OSError):  # a request may not have been read
                stream.close()
        process.wait()

    def call(self, request: dict[str, Any], on_progress: Callable[[float], None]) -> None:
        """Sends a request and waits for the answer.

        The request has `do`, the name of a method in worker.py, and the keys that it takes.
        `on_progress` is called with the finished fraction, in [0, 1].

        Raises:
            PreprocError: NVTabular failed, or the worker ended.
        """
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # the worker ended; the missing answer is reported below
        self._answer(request["do"], on_progress)

    def _answer(self, task: str, on_progress: Callable[[float], None]) -> dict[str, Any]:
        assert self._process is not None
        assert self._process.stdout is not None
        for line in self._process.stdout:
            answer = json.loads(line)
            if "progress" in answer:
                on_progress(answer["progress"])
            elif "done" in answer:
                return dict(answer["done"])
            else:
                raise self._failure(task, answer["error"], answer.get("out_of_memory", False))
        status = self._process.wait()
        how = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
        raise self._failure(task, f"its process {how}", status < 0)

    def _failure(self, task: str, reason: str, out_of_memory: bool) -> PreprocError:
        if task == "start":
            return PreprocError(
                f"{self._python}: NVTabular cannot be used: {reason}; create its environment again "
                f"({command_for('nvtabular')}), or see {self._log}; {SAME_DATASET}",
                settings=("nvtabular_device", "engine"),
            )
        remedy = (
            "perhaps it ran out of memory: raise `memory_limit`, or use `engine` native, which "
            "stays within any limit"
            if out_of_memory
            else f"the same command continues where it stopped; {SAME_DATASET}"
        )
        lines = self._log.read_text(errors="replace").splitlines()[-_LOG_LINES:]
        tail = "".join(f"\n  {line}" for line in lines)
        return PreprocError(
            f"NVTabular failed ({task}): {reason}; {remedy}. The end of {self._log}:{tail}",
            settings=("memory_limit", "engine") if out_of_memory else (),
        )
