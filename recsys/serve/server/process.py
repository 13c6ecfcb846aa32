# SPDX-License-Identifier: Apache-2.0
"""A Triton server as a child process.

It listens on loopback by default. Endpoints that run uploaded code, write files or map memory
(model repository, trace, logging, shared memory) need a random key, which stays in this process.
"""

import contextlib
import dataclasses
import http.client
import importlib
import json
import os
import re
import secrets
import signal
import socket
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from recsys.serve.repository import ModelRepository, RepositoryError
from recsys.serve.server.install import ServerError, ServerInstall, find_server
from recsys.settings import REQUIRED, setting

_GUARDED = "model-repository,trace,logging,shared-memory"
_KEY_NAME = "recipes-admin-key"
_SHM = Path("/dev/shm")
_SHM_NAME = "recipes_{pid}_{token}_"
_SHM_OF = re.compile(r"recipes_(\d+)_")
_EXIT_TIMEOUT_S = 20
"""The server waits this long for open connections; killed earlier, it leaks shared memory."""
_POLL_S = 0.05
_REASON_LINES = 12
_ERROR_LINE = re.compile(r"E\d{4} |error: ")
_NO_GPU = re.compile("CudaDriverHelper|NVML|DCGM")
"""Messages of the server on every machine without a GPU."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ServerSettings:
    """Settings of a server process.

    Attributes:
        stand_ins: name of a backend -> `model.py`, see `find_server`.
        arguments: further arguments of the server.
    """

    repository: Path = setting(REQUIRED, "Folder of models (triton/deployer.py)")
    host: str = setting("127.0.0.1", "Address to listen on; 0.0.0.0 is every network")
    http_port: int = setting(0, "0 takes a free one")
    grpc_port: int = setting(0, "0 takes a free one")
    metrics_port: int = setting(0, "0 takes a free one; for Prometheus")
    models: tuple[str, ...] = setting((), "Names to load, with commas between; by default all")
    poll_secs: int = setting(0, "Look for new versions this often; 0: never")
    threads: int | None = setting(None, "CPU threads of an instance; by default cores / instances")
    cache_mib: int = setting(16, "Response cache, for models deployed with --cache")
    stand_ins: Mapping[str, Path] = dataclasses.field(default_factory=dict)
    arguments: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuses settings that the server would refuse less clearly."""
        if not self.repository.is_dir():
            raise ServerError(
                f"`repository`: {self.repository} is not a folder; triton/deployer.py makes one"
            )
        if self.models and self.poll_secs:
            raise ServerError("`models` and `poll_secs` exclude each other: polling loads all")
        for name in self.models:
            if not (self.repository / name).is_dir():
                raise ServerError(f"`models`: {self.repository} has no model {name!r}")
        if self.threads is not None and self.threads < 1:
            raise ServerError(f"`threads` must be 1 or more, got {self.threads}")


class TritonServer:
    """A running server; a context manager that stops it.

    Args:
        settings: settings of the process.
        log_file: receives the server's output.

    Attributes:
        http_url: host:port of HTTP.
        grpc_url: host:port of gRPC.
        metrics_url: host:port of the metrics.
        pid: process id.
    """

    def __init__(self, settings: ServerSettings, log_file: Path) -> None:
        self.settings = settings
        self.log_file = log_file
        self._key = secrets.token_hex(16)
        self._shm_prefix = _SHM_NAME.format(pid=os.getpid(), token=secrets.token_hex(3))
        ports = _free_ports(settings.host, 3)
        chosen = (settings.http_port, settings.grpc_port, settings.metrics_port)
        http_port, grpc_port, metrics_port = (
            port or free for port, free in zip(chosen, ports, strict=True)
        )
        self.http_url = f"{settings.host}:{http_port}"
        self.grpc_url = f"{settings.host}:{grpc_port}"
        self.metrics_url = f"{settings.host}:{metrics_port}"
        self._folder = tempfile.TemporaryDirectory(prefix="recipes-triton-")
        install = find_server(Path(self._folder.name), settings.stand_ins)
        remove_leftovers()
        with contextlib.suppress(RepositoryError):  # one that can only be read has no deployments
            ModelRepository(settings.repository).remove_leftovers()
        self._process = self._start(install, (http_port, grpc_port, metrics_port))
        self.pid = self._process.pid

    def _start(
        self, install: ServerInstall, ports: tuple[int, int, int]
    ) -> "subprocess.Popen[bytes]":
        settings = self.settings
        if settings.poll_secs:
            control = ["--model-control-mode=poll", f"--repository-poll-secs={settings.poll_secs}"]
        else:
            control = ["--model-control-mode=explicit"]
            control += [f"--load-model={name}" for name in settings.models or self._every_model()]
        arguments = [str(install.binary), f"--model-repository={settings.repository}"]
        for kind, port in zip(("http", "grpc", "metrics"), ports, strict=True):
            arguments += [f"--{kind}-address={settings.host}", f"--{kind}-port={port}"]
        arguments += [
            *install.arguments,
            *control,
            f"--exit-timeout-secs={_EXIT_TIMEOUT_S}",
            f"--http-restricted-api={_GUARDED}:{_KEY_NAME}={self._key}",
            f"--grpc-restricted-protocol={_GUARDED}:{_KEY_NAME}={self._key}",
            f"--cache-config=local,size={settings.cache_mib << 20}",
            f"--backend-config=python,shm-region-prefix-name={self._shm_prefix}",
            # The server stays ready if a model fails to load later.
            "--strict-readiness=false",
            *settings.arguments,
        ]
        threads = str(settings.threads or threads_per_instance(settings.repository))
        with self.log_file.open("wb") as log:
            return subprocess.Popen(
                arguments,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "OMP_NUM_THREADS": threads, **install.environment},
                start_new_session=True,  # a Ctrl-C reaches this process, which then stops it
            )

    def _every_model(self) -> list[str]:
        """Returns the models of the repository, without staged ones."""
        folders = sorted(p.name for p in self.settings.repository.iterdir() if p.is_dir())
        return [name for name in folders if not name.startswith(".")] or ["*"]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def poll(self) -> int | None:
        """Returns the server's exit code; None while it runs."""
        return self._process.poll()

    def wait_ready(
        self, timeout_s: float = 120.0, give_up: Callable[[], bool] = lambda: False
    ) -> None:
        """Waits until the server has loaded its models.

        Args:
            timeout_s: longest wait, in seconds.
            give_up: called repeatedly; True ends the wait without an error.

        Raises:
            ServerError: it ended or took too long; with the reason from its log.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            if self._process.poll() is not None:
                raise ServerError(
                    f"the server ended with code {self._process.returncode}: "
                    f"{failure_reason(self.log_file)}"
                )
            if give_up() or self._responds("/v2/health/ready"):
                return
            if time.monotonic() > deadline:
                raise ServerError(
                    f"the server is not ready after {timeout_s:.0f} s; its log is {self.log_file}"
                )
            time.sleep(_POLL_S)

    def is_ready(self, model: str, version: int | None = None) -> bool:
        """Tells if a model, or one version of it, is ready."""
        of_version = "" if version is None else f"/versions/{version}"
        return self._responds(f"/v2/models/{model}{of_version}/ready")

    def _responds(self, path: str) -> bool:
        try:
            with urllib.request.urlopen(f"http://{self.http_url}{path}", timeout=5) as response:
                return bool(response.status == 200)
        except (OSError, http.client.HTTPException):
            return False

    def load(self, model: str) -> None:
        """Loads a model, or the newest version of one that is loaded.

        Requests in flight are completed by the earlier version.

        Raises:
            ServerError: it cannot be loaded; with the server's reason.
        """
        self._control("load_model", model)

    def unload(self, model: str) -> None:
        """Unloads a model; requests in flight are completed first.

        Raises:
            ServerError: the server refuses.
        """
        self._control("unload_model", model)

    def _control(self, method: str, model: str) -> None:
        # Over gRPC, since over HTTP it would block clients on the same thread of the server.
        library = importlib.import_module("tritonclient.grpc")
        refused: type[Exception] = importlib.import_module(
            "tritonclient.utils"
        ).InferenceServerException
        headers = {f"triton-grpc-protocol-{_KEY_NAME}": self._key}
        with contextlib.closing(library.InferenceServerClient(self.grpc_url)) as client:
            try:
                getattr(client, method)(model, headers=headers)
            except refused as error:
                raise ServerError(f"{method} {model}: {error}") from error

    def models(self) -> list[dict[str, Any]]:
        """Lists the versions in the repository: name, version, state and reason.

        Raises:
            ServerError: the server does not answer.
        """
        request = urllib.request.Request(
            f"http://{self.http_url}/v2/repository/index",
            data=b"{}",
            headers={_KEY_NAME: self._key},
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                models: list[dict[str, Any]] = json.loads(response.read())
        except (OSError, http.client.HTTPException) as error:
            raise ServerError(f"the server does not list its models: {error}") from error
        return models

    def stop(self) -> int:
        """Stops the server and cleans up; safe to call again.

        Returns:
            Its exit code.
        """
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(_EXIT_TIMEOUT_S + 10)
            except subprocess.TimeoutExpired:
                self._process.kill()
        code = self._process.wait()
        # Instances of a killed server would wait for it for ever; they are in its process group.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        for segment in _SHM.glob(self._shm_prefix + "*"):
            segment.unlink(missing_ok=True)
        self._folder.cleanup()
        return code


def threads_per_instance(repository: Path) -> int:
    """Divides the cores among the CPU instances of a repository.

    Several instances with a thread for each core would be many times slower.
    """
    instances = 0
    for config in repository.glob("*/config.pbtxt"):
        counts = re.findall(r"\bcount\s*:\s*(\d+)", config.read_text())
        instances += sum(map(int, counts)) or 1
    return max(1, len(os.sched_getaffinity(0)) // max(instances, 1))


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


def remove_leftovers() -> None:
    """Removes the shared memory of servers whose parent process has ended."""
    for segment in _SHM.glob("recipes_*"):
        named = _SHM_OF.match(segment.name)
        if named and not Path(f"/proc/{named[1]}").exists():
            with contextlib.suppress(PermissionError):
                segment.unlink(missing_ok=True)


def _free_ports(host: str, count: int) -> list[int]:
    """Returns different ports that nothing listens on."""
    with contextlib.ExitStack() as stack:
        ports = []
        for _ in range(count):
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            probe = stack.enter_context(socket.socket(family, socket.SOCK_STREAM))
            try:
                probe.bind((host, 0))
            except OSError as error:
                raise ServerError(f"`host` {host}: cannot listen there: {error}") from error
            ports.append(int(probe.getsockname()[1]))
        return ports
