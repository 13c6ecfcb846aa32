# SPDX-License-Identifier: Apache-2.0
"""Kills a server, its supervisor or both at random moments, and starts them again."""

import contextlib
import importlib.util
import random
import shutil
import time
from pathlib import Path

from recsys.serve.client.connection import Endpoint, EndpointError
from recsys.serve.client.requests import Arrays
from recsys.serve.server.install import python_with_server
from recsys.serve.server.instances import read_process
from tests import harness
from tests.kills import processes
from tests.kills.processes import PATIENCE_S, Command, HangsError
from tests.kills.scenarios import Inputs, ViolationError

NAME = "serve"


def lacks() -> list[str]:
    """Returns what this machine lacks to serve and to ask."""
    here = shutil.which("tritonserver") or importlib.util.find_spec("pytriton")
    server = [] if here or python_with_server() else ["Triton server (`make triton-env`)"]
    return server if importlib.util.find_spec("tritonclient") else [*server, "tritonclient"]


class Disturber:
    """Kills servers of one repository.

    Args:
        inputs: has the repository.
        folder: an empty folder for a server that is not killed.

    Attributes:
        seconds: until it answers.
    """

    def __init__(self, inputs: Inputs, folder: Path) -> None:
        from dlrm.serve.export import DlrmExport

        self._models = inputs.models
        (self._request,) = DlrmExport(inputs.run).example_requests(4, fixed_shapes=False)
        began = time.monotonic()
        server = _Server(self._models, folder)
        self._answer = server.answer(self._request)
        self.seconds = time.monotonic() - began
        server.stop()

    def disturb(self, folder: Path, rng: random.Random) -> int:
        """Kills one to three times in an empty folder; returns the number of kills.

        Raises:
            Exception: a server does not answer as before, or leaves something.
        """
        server = _Server(self._models, folder)
        kills = rng.randint(1, 3)
        for _ in range(kills):
            time.sleep(rng.random() * 1.5 * self.seconds)
            server.kill(rng.choice(("supervisor", "server", "all")))
            if rng.random() < 0.5:
                self._require_answer(server)
        self._require_answer(server)
        server.stop()
        return kills

    def _require_answer(self, server: "_Server") -> None:
        if (answer := server.answer(self._request)) != self._answer:
            raise ViolationError(f"answers {answer} instead of {self._answer}")


class _Server:
    """A supervised server, which is started again at the same ports after its supervisor has ended.

    Args:
        models: its repository.
        folder: an empty folder for its files.
    """

    def __init__(self, models: Path, folder: Path) -> None:
        ports = {name: harness.free_port() for name in ("http", "metrics", "health")}
        self._url = f"127.0.0.1:{ports['http']}"
        self._folder = folder
        self._arguments = (
            *("-m", "recsys_recipes", "serve", f"--repository={models}"),
            *(f"--{name}_port={port}" for name, port in ports.items()),
            f"--log_file={folder / 'log'}",
        )
        self._has_answered = self._may_end = False
        self._ended: list[int] = []
        self._command = Command(self._arguments, folder)

    def kill(self, what: str) -> None:
        """Kills the `supervisor`, its `server` if there is one already, or `all` processes."""
        servers = [pid for pid in self._command.pids() if _is_server(pid)]
        if what == "server" and servers:
            processes.kill(servers[0])
            self._may_end = not self._has_answered  # the first start of a server may not fail
            return
        if what == "all":
            self._command.kill()
        else:
            processes.kill(self._command.process.pid)
        self._start_again()

    def _start_again(self) -> None:
        self._command.wait()
        self._ended.append(self._command.process.pid)
        self._has_answered = self._may_end = False
        self._command = Command(self._arguments, self._folder)

    def answer(self, request: Arrays) -> object:
        """Returns the answer to a request, once the server gives one."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            if self._command.process.poll() is not None:
                if not self._may_end:
                    raise ViolationError("ended by itself")
                self._start_again()
            with contextlib.suppress(EndpointError), Endpoint(self._url, "dlrm") as endpoint:
                logits = endpoint.predict(request)["logit"]
                self._has_answered = True
                self._require_no_leftovers()
                return logits.tolist()
            time.sleep(0.1)
        raise HangsError(f"no answer after {PATIENCE_S:.0f} s")

    def stop(self) -> None:
        """Stops it as its users do."""
        self._command.process.terminate()
        if status := self._command.wait():
            raise ViolationError(f"status {status} after SIGTERM")
        self._ended.append(self._command.process.pid)
        self._require_no_leftovers()
        if left := [*(self._folder / "tmp").iterdir()]:
            raise ViolationError(f"left over: {left}")

    def _require_no_leftovers(self) -> None:
        """Raises an error where something is left of a supervisor, or server, that has ended."""
        memory, temporary = Path("/dev/shm"), self._folder / "tmp"
        left = [
            path
            for pid in self._ended
            for path in (*memory.glob(f"recipes_{pid}_*"), *temporary.glob(f"recipes-*-{pid}-*"))
        ]
        of_servers = {
            path.name.split("_")[2]
            for path in memory.glob(f"recipes_{self._command.process.pid}_*")
        }
        if left or len(of_servers) > 1:
            raise ViolationError(f"left over: {left}, memory of servers {of_servers}")


def _is_server(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return read_process(pid).command == "tritonserver"
    return False
