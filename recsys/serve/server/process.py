# SPDX-License-Identifier: Apache-2.0
"""A Triton server as a child process.

It listens for HTTP on loopback by default, and for gRPC if asked to. This process loads models and
reads the server's state over gRPC, by default through a socket in a folder of this user. Endpoints
that run uploaded code, write files or map memory (model repository, trace, logging, shared memory)
need a random key, which only this user's processes can read.
"""

import contextlib
import dataclasses
import http.client
import importlib
import json
import os
import re
import resource
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any, Self, cast

from recsys.resources import available_cores
from recsys.serve.server.install import ServerError, ServerInstall, find_server
from recsys.serve.server.log import ServerLog
from recsys.serve.server.ports import check_port, free_ports, url_host
from recsys.serve.versions.repository import ModelRepository, RepositoryError
from recsys.settings import REQUIRED, require_threads, setting

Version = tuple[str, str]
"""(model, version); the version is empty if the model has none that can be read."""

_GUARDED = "model-repository,trace,logging,shared-memory"
_KEY_NAME = "recipes-admin-key"
_KEY_VARIABLE, _SUPERVISOR_VARIABLE = "RECIPES_ADMIN_KEY", "RECIPES_SUPERVISOR"
"""Variables that csrc/private.cpp reads."""
_OTHERS_MAY_NOTHING = 0o077
_RENEWED = "recipes_renewed"
"""Configuration parameter that is changed only to make the server load a model again."""
_SHM = Path("/dev/shm")
_SHM_NAME = "recipes_{pid}_{token}_"
_FOLDER_NAME = "recipes-triton-{pid}-"
LOG_FOLDER_NAME = "recipes-serve-{pid}-"
"""Folder of a log for which the user gave no path."""
_LEFTOVER = re.compile(r"recipes_(\d+)_|recipes-(?:triton|serve)-(\d+)-")
"""Name of a server's shared memory or folder, with the process that started the server."""
_LEAST_FILES, _MOST_FILES = 256, 65_536
"""Open files below which a server hangs, and the number that is enough for it."""
_PLAIN_PATH = re.compile(r"[\w./+-]+", re.ASCII)
"""Paths that the Python backend accepts: it starts an instance by a line of shell."""
_LONGEST_TMPDIR = 60
"""Longest TMPDIR: the kernel accepts socket paths of at most 107 bytes."""
_EXIT_TIMEOUT_S = 20
"""The server waits this long for open connections. Killed earlier, it leaks shared memory."""
_POLL_S = 0.05
_ANSWER_S = 5.0
"""Longest wait for an answer about the server's state."""
_PORTS = ("http_port", "grpc_port", "metrics_port")
"""Settings of the ports, in the order of the server's arguments."""
_OF_FLAGS = {
    **{name.replace("_", "-"): name for name in _PORTS},
    **dict.fromkeys(("http-address", "grpc-address", "metrics-address"), "host"),
    **dict.fromkeys(("model-control-mode", "repository-poll-secs"), "poll_secs"),
    **dict.fromkeys(("model-repository", "model-store"), "repository"),
    "allow-http": "no_http",
    "allow-grpc": "grpc_port",
    "load-model": "models",
}
"""Arguments of the server -> the setting that they would silently contradict."""


def version_text(version: Version) -> str:
    """Returns a model and version as text."""
    return " version ".join(filter(None, version))


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ServerSettings:
    """Settings of a server process.

    Attributes:
        arguments: further arguments of the server.
    """

    repository: Path = setting(REQUIRED, "Folder of models, made by `recsys-recipes deploy`")
    host: str = setting("127.0.0.1", "Address to listen on; 0.0.0.0 or :: for every network")
    no_http: bool = setting(False, "Do not listen for HTTP: a request can crash its parser")
    http_port: int = setting(0, "Port for HTTP; 0 takes a free one")
    grpc_port: int | None = setting(
        None,
        "Port for gRPC, in addition to HTTP; 0 takes a free one. Before core 2.58 (release 25.05), "
        "clients that cancel calls, for example by a deadline, crash the server",
    )
    metrics_port: int = setting(0, "Port of the metrics for Prometheus; 0 takes a free one")
    models: tuple[str, ...] = setting(
        (), "Names of the models to load, with commas between; by default all; not with `poll_secs`"
    )
    poll_secs: int = setting(
        0, "Seconds between looks for new versions; 0: never; not with `models`"
    )
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
            if not 0 <= (getattr(self, name) or 0) < 1 << 16:
                raise ServerError(
                    f"`{name}` must be between 1 and 65535, or 0 for a free one, got "
                    f"{getattr(self, name)}"
                )
        if self.no_http and self.grpc_port is None:
            raise ServerError("`no_http` leaves clients no protocol: also give `grpc_port`")
        if self.models and self.poll_secs:
            raise ServerError("`models` and `poll_secs` exclude each other: polling loads all")
        for name in self.models:
            if not (self.repository / name).is_dir():
                raise ServerError(f"`models`: {self.repository} has no model {name!r}")
        for argument in self.arguments:
            option = argument.partition("=")[0]
            begun = option.removeprefix("--")  # the server also accepts prefixes of names
            full = next((name for name in _OF_FLAGS if begun and name.startswith(begun)), "")
            if full and option != begun:
                raise ServerError(f"{option} after --: give `{_OF_FLAGS[full]}` before it instead")
        require_threads(self, "threads")
        try:
            ModelRepository(self.repository).require_models(later=self.poll_secs > 0)
        except RepositoryError as error:
            raise ServerError(str(error)) from error

    def with_ports(self) -> Self:
        """Returns the settings with free ports instead of 0."""
        unset = [name for name in _PORTS if getattr(self, name) == 0]
        return dataclasses.replace(self, **cast(Any, free_ports(self.host, unset)))


class TritonServer:
    """A running server, which ends with this process; a context manager that stops it.

    Every method that asks the server raises ServerError if it refuses or does not answer.

    Attributes:
        settings: the settings, with free ports filled in.
        http_url: host:port, empty without HTTP; likewise `grpc_url` and `metrics_url`.
        url: address for clients, with the protocol: HTTP, unless the server does not listen for it.
        names: models that the server was started for.
        stamps: stamps of all models just before the start.
    """

    def __init__(self, settings: ServerSettings, log_file: Path) -> None:
        self._key = secrets.token_hex(16)
        self._shm_prefix = _SHM_NAME.format(pid=os.getpid(), token=secrets.token_hex(3))
        for name in _PORTS:
            if (port := getattr(settings, name)) and not (name == "http_port" and settings.no_http):
                check_port(settings.host, name, port)
        self.settings = settings = settings.with_ports()
        shown = url_host(settings.host)
        self.http_url = "" if settings.no_http else f"{shown}:{settings.http_port}"
        self.grpc_url = "" if settings.grpc_port is None else f"{shown}:{settings.grpc_port}"
        self.url = f"http://{self.http_url}" if self.http_url else f"grpc://{self.grpc_url}"
        self.metrics_url = f"{shown}:{settings.metrics_port}"
        self.stamps = ModelRepository(settings.repository).stamps()
        self.names = settings.models or tuple(self.stamps)
        remove_leftovers()
        temporary = tempfile.gettempdir()
        if not _PLAIN_PATH.fullmatch(temporary) or len(temporary) > _LONGEST_TMPDIR:
            raise ServerError(
                f"TMPDIR {temporary}: Triton only accepts paths of ASCII letters, digits and "
                f"./+_-, with at most {_LONGEST_TMPDIR} characters; set another one"
            )
        self._folder = tempfile.TemporaryDirectory(prefix=_FOLDER_NAME.format(pid=os.getpid()))
        # The server adds a port to the address, here to the name of the socket.
        self._control_url = self.grpc_url or f"unix:{self._folder.name}/grpc:1"
        install = find_server(Path(self._folder.name))
        with contextlib.suppress(RepositoryError):  # a read-only one has no deployments
            ModelRepository(settings.repository).remove_leftovers()
        self.log = ServerLog(log_file)
        self._process = self._start(install)
        self.pid = self._process.pid

    def _plain_repository(self) -> Path:
        """Returns a path of the repository that the Python backend accepts."""
        repository = self.settings.repository
        if _PLAIN_PATH.fullmatch(str(repository)):
            return repository
        link = Path(self._folder.name) / "repository"
        link.symlink_to(repository.absolute())
        return link

    def _start(self, install: ServerInstall) -> "subprocess.Popen[bytes]":
        settings, host = self.settings, self.settings.host
        of_http = f"ipv6:{host}" if ":" in host else host  # the spelling of libevent
        addresses = {
            "http": (of_http, settings.http_port),
            "grpc": self._control_url.rpartition(":")[::2],
            "metrics": (of_http, settings.metrics_port),
        }
        key = f"{_GUARDED}:{_KEY_NAME}=\n{_KEY_VARIABLE}"
        arguments = [
            *install.command,
            f"--model-repository={self._plain_repository()}",
            *(f"--{kind}-address={address}" for kind, (address, _) in addresses.items()),
            *(f"--{kind}-port={port}" for kind, (_, port) in addresses.items()),
            f"--allow-http={str(not settings.no_http).lower()}",
            "--exit-on-error=false",  # a model that fails to load does not stop the others
            # A polling server would keep loading a failing version, and wait for it.
            "--model-control-mode=explicit",
            *(f"--load-model={name}" for name in self.names),
            f"--exit-timeout-secs={_EXIT_TIMEOUT_S}",
            f"--http-restricted-api={key}",
            f"--grpc-restricted-protocol={key}",
            f"--backend-config=python,shm-region-prefix-name={self._shm_prefix}",
            # The server stays ready if a model fails to load later.
            "--strict-readiness=false",
            # Otherwise a Python model is first started for its config alone, in twice the time.
            "--disable-auto-complete-config",
            *settings.arguments,
        ]
        variables = {
            "OMP_NUM_THREADS": str(settings.threads or threads_per_instance(settings.repository)),
            _KEY_VARIABLE: self._key,
            _SUPERVISOR_VARIABLE: str(os.getpid()),
        }
        return subprocess.Popen(
            arguments,
            stdin=subprocess.DEVNULL,
            stdout=self.log.writer,
            stderr=subprocess.STDOUT,
            env={**os.environ, **variables, **install.environment},
            umask=_OTHERS_MAY_NOTHING,
            process_group=0,  # Ctrl-C reaches only this process, which then stops the server
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.stop(at_once=kind is not None)

    def poll(self) -> int | None:
        """Returns the server's exit code; None while it runs."""
        return self._process.poll()

    def wait_ready(self, timeout_s: float = 120.0) -> None:
        """Waits until the server has loaded its models.

        Raises:
            ServerError: the server ended or took too long; gives the reason from its log.
        """
        deadline = time.monotonic() + timeout_s
        while not self.is_loaded():
            if time.monotonic() > deadline:
                raise ServerError(
                    f"the server is not ready after {timeout_s:.0f} s; its log is {self.log.file}"
                )
            time.sleep(_POLL_S)

    def is_loaded(self) -> bool:
        """Returns whether the server has loaded its models.

        Raises:
            ServerError: the server ended; gives the reason from its log.
        """
        if (code := self.poll()) is not None:
            raise ServerError(f"the server ended with code {code}: {self.log.failure_reason()}")
        return self.responds()

    def responds(self) -> bool:
        """Returns whether the server answers over every protocol that it speaks."""
        try:
            if self.http_url:
                url = f"http://{self.http_url}/v2/health/ready"
                urllib.request.urlopen(url, timeout=_ANSWER_S).close()
            return bool(self._ask("is_server_ready"))
        except (OSError, http.client.HTTPException, ServerError):
            return False

    def _ask(
        self, method: str, *arguments: str, timeout_s: float | None = _ANSWER_S, **options: Any
    ) -> Any:
        # Over gRPC, because over HTTP this would block clients on the same thread of the server.
        library = importlib.import_module("tritonclient.grpc")
        refused: type[Exception] = importlib.import_module(
            "tritonclient.utils"
        ).InferenceServerException
        headers = {f"triton-grpc-protocol-{_KEY_NAME}": self._key}
        with contextlib.closing(library.InferenceServerClient(self._control_url)) as client:
            try:
                call = getattr(client, method)
                return call(*arguments, headers=headers, client_timeout=timeout_s, **options)
            except refused as error:
                raise ServerError(f"{method}: {error}") from error

    def core(self) -> str:
        """Returns the version of the server."""
        return str(self._ask("get_server_metadata").version)

    def models(self) -> list[dict[str, Any]]:
        """Lists the versions in the repository: name, version, state and reason."""
        models = self._ask("get_model_repository_index").models
        return [{field.name: value for field, value in model.ListFields()} for model in models]

    def ready_versions(self) -> dict[Version, int]:
        """Returns the versions that answer, whatever is in the repository, and their executions."""
        statistics = self._ask("get_inference_statistics").model_stats
        return {(each.name, each.version): int(each.execution_count) for each in statistics}

    def load(self, model: str) -> None:
        """Loads a model if its files changed, and waits for it."""
        self._ask("load_model", model, timeout_s=None)

    def unload(self, model: str) -> None:
        """Unloads a model."""
        self._ask("unload_model", model, timeout_s=None)

    def renew(self, model: str) -> None:
        """Loads a model whose files did not change into new instances, and waits for them.

        The old instances answer until then.
        """
        config = self._ask("get_model_config", model, as_json=True)["config"]
        config.setdefault("parameters", {})[_RENEWED] = {"string_value": secrets.token_hex(3)}
        self._ask("load_model", model, timeout_s=None, config=json.dumps(config))

    def stop(self, *, at_once: bool = False) -> int:
        """Stops the server and cleans up; returns its exit code.

        Args:
            at_once: do not wait for requests under way.
        """
        if at_once:
            self._process.kill()
        if self.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(_EXIT_TIMEOUT_S + 10)
            except subprocess.TimeoutExpired:
                self._process.kill()
        code = self._process.wait()
        # Instances of a killed server would wait for it forever; they are in its process group.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        for segment in _SHM.glob(self._shm_prefix + "*"):
            segment.unlink(missing_ok=True)
        self._folder.cleanup()
        self.log.close()
        return code


def threads_per_instance(repository: Path) -> int:
    """Divides the cores among the CPU instances of a repository.

    Several instances that each have a thread per core would be many times slower.
    """
    instances = 0
    for config in repository.glob("*/config.pbtxt"):
        counts = re.findall(r"\bcount\s*:\s*(\d+)", config.read_text())
        instances += sum(map(int, counts)) or 1
    return max(1, available_cores() // max(instances, 1))


def raise_file_limit() -> None:
    """Raises the limit of open files, for this process and its server, as far as allowed.

    Raises:
        ServerError: a server would not have enough open files.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    if most < _LEAST_FILES:
        raise ServerError(
            f"this process may have {most} open files (`ulimit -Hn`), but a server needs "
            f"{_LEAST_FILES} and one per connection: set a higher limit, such as {_MOST_FILES}"
        )


def remove_leftovers() -> None:
    """Removes what servers left behind whose parent process has ended."""
    for left in (*_SHM.glob("recipes_*"), *Path(tempfile.gettempdir()).glob("recipes-*-*")):
        named = _LEFTOVER.match(left.name)
        if named and not Path(f"/proc/{named[1] or named[2]}").exists():
            with contextlib.suppress(OSError):  # it belongs to another user
                shutil.rmtree(left) if left.is_dir() else left.unlink(missing_ok=True)
