# SPDX-License-Identifier: Apache-2.0
"""A Triton server as a child process.

It listens on loopback by default. Endpoints that run uploaded code, write files or map memory
(model repository, trace, logging, shared memory) need a random key, which stays in this process.
"""

import contextlib
import dataclasses
import http.client
import importlib
import os
import re
import secrets
import signal
import socket
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from recsys.resources import available_cores
from recsys.serve.repository import ModelRepository, RepositoryError
from recsys.serve.server.guard import start_guard
from recsys.serve.server.install import ServerError, ServerInstall, find_server
from recsys.serve.server.log import begin_log, failure_reason
from recsys.settings import REQUIRED, setting

_GUARDED = "model-repository,trace,logging,shared-memory"
_KEY_NAME = "recipes-admin-key"
_SHM = Path("/dev/shm")
_SHM_NAME = "recipes_{pid}_{token}_"
_SHM_OF = re.compile(r"recipes_(\d+)_")
_EXIT_TIMEOUT_S = 20
"""The server waits this long for open connections; killed earlier, it leaks shared memory."""
_POLL_S = 0.05
_PORTS = ("http_port", "grpc_port", "metrics_port")
"""Settings of the ports, in the order of the server's arguments."""
_ANSWER_S = 5.0
"""Longest wait for an answer about the server's state."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ServerSettings:
    """Settings of a server process.

    Attributes:
        arguments: further arguments of the server.
    """

    repository: Path = setting(REQUIRED, "Folder of models, made by `recsys-recipes deploy`")
    host: str = setting("127.0.0.1", "Address to listen on; 0.0.0.0 or :: is every network")
    no_http: bool = setting(False, "Do not listen for HTTP, whose parser a request can crash")
    http_port: int = setting(0, "0 takes a free one")
    grpc_port: int = setting(0, "0 takes a free one")
    metrics_port: int = setting(0, "0 takes a free one; for Prometheus")
    models: tuple[str, ...] = setting((), "Names to load, with commas between; by default all")
    poll_secs: int = setting(0, "Look for new versions this often; 0: never")
    threads: int | None = setting(None, "CPU threads of an instance; by default cores / instances")
    arguments: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuses settings that the server would refuse less clearly."""
        if not self.repository.is_dir():
            raise ServerError(
                f"`repository`: {self.repository} is not a folder; `recsys-recipes deploy` makes "
                "one"
            )
        for name in _PORTS:
            if not 0 <= getattr(self, name) < 1 << 16:
                raise ServerError(
                    f"`{name}` must lie in 1 to 65535, or be 0 for a free one, got "
                    f"{getattr(self, name)}"
                )
        if self.models and self.poll_secs:
            raise ServerError("`models` and `poll_secs` exclude each other: polling loads all")
        for name in self.models:
            if not (self.repository / name).is_dir():
                raise ServerError(f"`models`: {self.repository} has no model {name!r}")
        if self.threads is not None and self.threads < 1:
            raise ServerError(f"`threads` must be 1 or more, got {self.threads}")
        try:
            ModelRepository(self.repository).require_models(later=self.poll_secs > 0)
        except RepositoryError as error:
            raise ServerError(str(error)) from error


class NotReadyError(ServerError):
    """A server took too long to load its models."""


class TritonServer:
    """A running server; a context manager that stops it.

    Attributes:
        settings: the settings, with the ports that were free.
        http_url: host:port, empty without HTTP; `grpc_url` and `metrics_url` alike.
        names: the models that it was started for.
    """

    def __init__(self, settings: ServerSettings, log_file: Path) -> None:
        self.log_file = log_file
        self._key = secrets.token_hex(16)
        self._shm_prefix = _SHM_NAME.format(pid=os.getpid(), token=secrets.token_hex(3))
        ports = _free_ports(settings.host)
        for name in _PORTS:
            if port := getattr(settings, name):
                ports[name] = port
                if not (name == "http_port" and settings.no_http):
                    _check_port(settings.host, name, port)
        self.settings = dataclasses.replace(settings, **ports)
        shown = url_host(settings.host)
        self.http_url = "" if settings.no_http else f"{shown}:{ports['http_port']}"
        self.grpc_url = f"{shown}:{ports['grpc_port']}"
        self.metrics_url = f"{shown}:{ports['metrics_port']}"
        folders = sorted(p.name for p in settings.repository.iterdir() if p.is_dir())
        staged = "."  # begins their names
        self.names = settings.models or tuple(n for n in folders if not n.startswith(staged))
        self._folder = tempfile.TemporaryDirectory(prefix="recipes-triton-")
        install = find_server(Path(self._folder.name))
        remove_leftovers()
        with contextlib.suppress(RepositoryError):  # one that can only be read has no deployments
            ModelRepository(settings.repository).remove_leftovers()
        self._process = self._start(install)
        self.pid = self._process.pid
        self._guard = start_guard(self.pid, self._shm_prefix, self._folder.name)

    def _start(self, install: ServerInstall) -> "subprocess.Popen[bytes]":
        settings = self.settings
        if settings.poll_secs:
            control = ["--model-control-mode=poll", f"--repository-poll-secs={settings.poll_secs}"]
        else:
            control = ["--model-control-mode=explicit"]
            control += [f"--load-model={name}" for name in self.names or ("*",)]
        arguments = [str(install.binary), f"--model-repository={settings.repository}"]
        host = settings.host
        for name in _PORTS:
            kind = name.removesuffix("_port")
            of_http = f"ipv6:{host}" if ":" in host else host  # the spelling of libevent
            address = url_host(host) if kind == "grpc" else of_http
            arguments += [f"--{kind}-address={address}", f"--{kind}-port={getattr(settings, name)}"]
        arguments += [
            f"--allow-http={str(not settings.no_http).lower()}",
            "--exit-on-error=false",  # a model that does not load leaves the others
            *install.arguments,
            *control,
            f"--exit-timeout-secs={_EXIT_TIMEOUT_S}",
            f"--http-restricted-api={_GUARDED}:{_KEY_NAME}={self._key}",
            f"--grpc-restricted-protocol={_GUARDED}:{_KEY_NAME}={self._key}",
            f"--backend-config=python,shm-region-prefix-name={self._shm_prefix}",
            # The server stays ready if a model fails to load later.
            "--strict-readiness=false",
            *settings.arguments,
        ]
        threads = str(settings.threads or threads_per_instance(settings.repository))
        with begin_log(self.log_file) as log:
            return subprocess.Popen(
                arguments,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "OMP_NUM_THREADS": threads, **install.environment},
                start_new_session=True,  # a Ctrl-C reaches this process, which then stops it
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def poll(self) -> int | None:
        """Returns the server's exit code; None while it runs."""
        return self._process.poll()

    def wait_ready(
        self, timeout_s: float = 120.0, give_up: Callable[[], bool] = lambda: False
    ) -> None:
        """Waits until the server has loaded its models, or `give_up` returns True.

        Raises:
            ServerError: it ended or took too long; with the reason from its log.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            if self._process.poll() is not None:
                raise ServerError(self._reason_of_end())
            if give_up() or self.responds():
                return
            if time.monotonic() > deadline:
                raise NotReadyError(
                    f"the server is not ready after {timeout_s:.0f} s; its log is {self.log_file}"
                )
            time.sleep(_POLL_S)

    def _reason_of_end(self) -> str:
        reason = failure_reason(self.log_file)
        for name in _PORTS:
            port = getattr(self.settings, name)
            # Another program took it after this one's constructor looked.
            if re.search(rf"Socket '\S+:{port}' already in use", reason):
                return _port_taken(self.settings.host, name, port, "Address already in use")
        return f"the server ended with code {self._process.returncode}: {reason}"

    def responds(self) -> bool:
        """Tells if the server answers, over every protocol that it speaks."""
        try:
            if self.http_url:
                url = f"http://{self.http_url}/v2/health/ready"
                urllib.request.urlopen(url, timeout=_ANSWER_S).close()
            return bool(self._ask("is_server_ready"))
        except (OSError, http.client.HTTPException, ServerError):
            return False

    def _ask(self, method: str) -> Any:
        # Over gRPC, since over HTTP it would block clients on the same thread of the server.
        library = importlib.import_module("tritonclient.grpc")
        refused: type[Exception] = importlib.import_module(
            "tritonclient.utils"
        ).InferenceServerException
        headers = {f"triton-grpc-protocol-{_KEY_NAME}": self._key}
        with contextlib.closing(library.InferenceServerClient(self.grpc_url)) as client:
            try:
                return getattr(client, method)(headers=headers, client_timeout=_ANSWER_S)
            except refused as error:
                raise ServerError(f"{method}: {error}") from error

    def models(self) -> list[dict[str, Any]]:
        """Lists the versions in the repository: name, version, state and reason.

        Raises:
            ServerError: the server does not answer.
        """
        models = self._ask("get_model_repository_index").models
        return [{field.name: value for field, value in model.ListFields()} for model in models]

    def stop(self, *, at_once: bool = False) -> int:
        """Stops the server and cleans up; returns its exit code.

        Args:
            at_once: do not wait for requests under way.
        """
        if at_once:
            self._process.kill()
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
        self._guard.kill()
        self._guard.communicate()
        return code


def threads_per_instance(repository: Path) -> int:
    """Divides the cores among the CPU instances of a repository.

    Several instances with a thread for each core would be many times slower.
    """
    instances = 0
    for config in repository.glob("*/config.pbtxt"):
        counts = re.findall(r"\bcount\s*:\s*(\d+)", config.read_text())
        instances += sum(map(int, counts)) or 1
    return max(1, available_cores() // max(instances, 1))


def url_host(host: str) -> str:
    """Returns a host for a URL: an IPv6 address in brackets."""
    return f"[{host}]" if ":" in host else host


def remove_leftovers() -> None:
    """Removes the shared memory of servers whose parent process has ended."""
    for segment in _SHM.glob("recipes_*"):
        named = _SHM_OF.match(segment.name)
        if named and not Path(f"/proc/{named[1]}").exists():
            with contextlib.suppress(PermissionError):
                segment.unlink(missing_ok=True)


def _check_port(host: str, name: str, port: int) -> None:
    """Refuses a port that the server could not listen on.

    Another server there would answer for the new one until that gives up.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # closed connections count not
        try:
            probe.bind((host, port))
        except OSError as error:
            raise ServerError(_port_taken(host, name, port, error)) from error


def _port_taken(host: str, name: str, port: int, reason: object) -> str:
    return (
        f"`{name}` {port}: cannot listen on {url_host(host)}:{port} ({reason}); choose "
        "another port, or end the program that has it"
    )


def _free_ports(host: str) -> dict[str, Any]:
    """Returns a port for each of `_PORTS` that nothing listens on."""
    with contextlib.ExitStack() as stack:
        ports = {}
        for name in _PORTS:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            probe = stack.enter_context(socket.socket(family, socket.SOCK_STREAM))
            try:
                probe.bind((host, 0))
            except OSError as error:
                raise ServerError(f"`host` {host}: cannot listen there: {error}") from error
            ports[name] = int(probe.getsockname()[1])
        return ports
