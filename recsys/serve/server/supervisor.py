# SPDX-License-Identifier: Apache-2.0
"""Keeps a Triton server serving: watches it and starts it again.

Triton's own health endpoints stay 200 when a Python instance has died, and a version that never
ends loading keeps a polling server from every later one. Both are seen from outside here.
"""

import collections
import contextlib
import dataclasses
import datetime
import os
import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from recsys.serve.server.health import HealthEndpoint, HealthReport, Status, Version, version_text
from recsys.serve.server.install import ServerError
from recsys.serve.server.instances import Instance, find_instances
from recsys.serve.server.log import limit_log, loaded_models, model_error
from recsys.serve.server.process import NotReadyError, ServerSettings, TritonServer
from recsys.settings import setting

_TICK_S = 0.5
_SILENCE_S = 30.0
"""A server that does not answer for this long stands still."""
_WINDOW_S = 600.0
_LONGEST_PAUSE_S = 30.0
_UNLOADED = "unloaded"
"""Reason that Triton gives for a version that another one replaced."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class SupervisorSettings:
    """Settings of the supervision."""

    ready_timeout_s: float = setting(300.0, "Give up loading a version after this long")
    max_restarts: int = setting(10, "Most restarts of the server within ten minutes")
    health_port: int = setting(0, "Port of /healthz; 0 takes a free one")
    log_mib: int = setting(64, "Size above which the log moves to FILE.1")

    def __post_init__(self) -> None:
        """Refuses settings without a sense."""
        if not self.ready_timeout_s > 0:
            raise ServerError(f"`ready_timeout_s` must be above 0, got {self.ready_timeout_s}")
        if self.max_restarts < 0 or self.log_mib < 1 or not 0 <= self.health_port < 1 << 16:
            raise ServerError(
                "expected `max_restarts` of 0 or more, `log_mib` of 1 or more and a `health_port` "
                f"below 65536, got {self.max_restarts}, {self.log_mib} and {self.health_port}"
            )


class Supervisor:
    """Runs a server until it is stopped, or fails too often.

    Args:
        stopped: tells that the end was asked for.
    """

    def __init__(
        self,
        settings: ServerSettings,
        options: SupervisorSettings,
        log_file: Path,
        health: HealthEndpoint,
        say: Callable[[str], None],
        stopped: Callable[[], bool],
    ) -> None:
        self._settings = settings
        self._options = options
        self._log_file = log_file
        self._health = health
        self._say = say
        self._stopped = stopped
        self._served = False
        self._restarts: list[str] = []
        self._num_restarts = 0
        self._metrics_url = ""
        self._recent: collections.deque[float] = collections.deque()
        self._states: dict[Version, str] = {}
        self._failures: dict[Version, str] = {}

    def run(self, on_ready: Callable[[TritonServer], None]) -> int:
        """Serves until `stopped`; returns the last exit code. Calls `on_ready` once.

        Raises:
            ServerError: the first start failed, or there were too many restarts.
        """
        while True:
            with TritonServer(self._settings, self._log_file) as server:
                # Clients find a later server at the same ports.
                self._settings = server.settings
                self._metrics_url = server.metrics_url
                try:
                    self._load(server)
                    if not self._stopped() and not self._served:
                        on_ready(server)
                    self._served = True
                    self._watch(server)
                    self._say("stopping (a client that keeps its connection open may delay it)")
                    return server.stop()
                except ServerError as error:
                    if not self._served:
                        raise  # settings or models are wrong
                    server.stop(at_once=True)
                    self._note_restart(error)

    def _load(self, server: TritonServer) -> None:
        """Waits for the first load; ends models that do not finish."""
        while True:
            try:
                server.wait_ready(self._options.ready_timeout_s, self._stopped_while_loading)
                break
            except NotReadyError:
                loaded = loaded_models(self._log_file)
                hung = [i for i in find_instances(server.pid) if i.model and i.model not in loaded]
                if not hung:
                    raise
                self._end(hung)
        if not self._stopped():
            news = self._observe(server)
            if not server.names and self._settings.poll_secs:
                self._say(
                    f"{self._settings.repository} holds no model yet; it is looked for one every "
                    f"{self._settings.poll_secs} s"
                )
            if self._failures and not self._health.report.models:
                reasons = "\n  ".join(
                    f"{version_text(version)}: {why}" for version, why in self._failures.items()
                )
                raise ServerError(
                    f"no model could be loaded:\n  {reasons}\n  (log {self._log_file})"
                )
            for line in news:
                self._say(line)

    def _stopped_while_loading(self) -> bool:
        self._report("restarting" if self._served else "starting")
        return self._stopped()

    def _watch(self, server: TritonServer) -> None:
        """Returns when `stopped`; raises why the server died or does not serve."""
        seen = {instance.pid: instance for instance in find_instances(server.pid)}
        died: set[int] = set()
        loading: dict[Version, float] = {}
        answered = time.monotonic()
        while not self._stopped():
            time.sleep(_TICK_S)
            limit_log(self._log_file, self._options.log_mib << 20)
            now = time.monotonic()
            if (code := server.poll()) is not None:
                raise ServerError(f"the server ended with {_exit_text(code)}")
            if server.responds():
                with contextlib.suppress(ServerError):
                    for line in self._observe(server):
                        self._say(line)
                    answered = now
            elif now - answered > _SILENCE_S:
                raise ServerError(f"the server did not answer for {_SILENCE_S:.0f} s")
            instances = find_instances(server.pid)
            seen |= {instance.pid: instance for instance in instances if instance.model}
            earlier, died = died, {instance.pid for instance in instances if instance.dead}
            # An instance that ends in order is dead for a moment only.
            for pid in earlier & died:
                if self._is_ready(seen.get(pid)):
                    name = seen[pid].name if pid in seen else "of a model"
                    raise ServerError(f"instance {name} (process {pid}) died")
            self._end_hung_loads(loading, instances, now)

    def _is_ready(self, instance: Instance | None) -> bool:
        """Tells if the version of an instance, None is any, answers."""
        if instance is None:
            return "LOADING" not in self._states.values()
        folder = instance.version_folder.name
        return any(
            model == instance.model
            and state == "READY"
            and (number == folder or not folder.isdecimal())
            for (model, number), state in self._states.items()
        )

    def _end_hung_loads(
        self, loading: dict[Version, float], instances: list[Instance], now: float
    ) -> None:
        """Ends versions that load for too long, and no others."""
        for version in list(loading):
            if self._states.get(version) != "LOADING":
                del loading[version]
        for version, state in self._states.items():
            if state != "LOADING":
                continue
            spent = now - loading.setdefault(version, now)
            if spent < self._options.ready_timeout_s:
                continue
            if spent > self._options.ready_timeout_s + _SILENCE_S:
                raise ServerError(f"the load of {version_text(version)} does not end")
            self._end(i for i in instances if (i.model, i.version_folder.name) == version)

    def _end(self, hung: Iterable[Instance]) -> None:
        for instance in hung:
            self._say(
                f"{instance.model}: {instance.version_folder} did not load within "
                f"{self._options.ready_timeout_s:g} s; ending it"
            )
            with contextlib.suppress(ProcessLookupError):
                os.kill(instance.pid, signal.SIGKILL)

    def _observe(self, server: TritonServer) -> list[str]:
        """Reads and reports the models' states; returns lines of the news."""
        news: list[str] = []
        states: dict[Version, str] = {}
        listed = [model for model in server.models() if model.get("state")]
        missing = set(server.names) - {model["name"] for model in listed}
        for name in sorted(missing):  # its configuration cannot be read, or it has no version
            if (self._settings.repository / name).is_dir():
                reason = model_error(self._log_file, name)
                listed.append({"name": name, "state": "UNAVAILABLE", "reason": reason})
        for model in listed:
            version = (model["name"], model.get("version", ""))
            states[version] = model["state"]
            reason = model.get("reason", "")
            if model["state"] == "READY":
                self._failures.pop(version, None)
                if self._states.get(version) != "READY":
                    news.append(f"  {version_text(version)}: READY")
            elif model["state"] == "UNAVAILABLE" and reason and reason != _UNLOADED:
                if self._failures.get(version) != reason:
                    news.append(f"  {version_text(version)}: does not load: {reason.rstrip()}")
                self._failures[version] = reason
            elif reason == _UNLOADED:
                self._failures.pop(version, None)
        newest = {name: int(v) for (name, v), state in states.items() if state == "READY"}
        self._failures = {  # a version that a newer one replaced is not missed
            (name, v): why
            for (name, v), why in self._failures.items()
            if (name, v) in states and int(v or 0) > newest.get(name, -1)
        }
        self._states = states
        self._report("degraded" if self._failures else "ok")
        return news

    def _report(self, status: Status) -> None:
        ready: dict[str, list[int]] = collections.defaultdict(list)
        if status in ("ok", "degraded"):
            for (model, version), state in self._states.items():
                if state == "READY":
                    ready[model].append(int(version))
        self._health.report = HealthReport(
            status=status,
            models=dict(ready),
            failures=dict(self._failures),
            restarts=tuple(self._restarts),
            num_restarts=self._num_restarts,
            metrics_url=self._metrics_url,
        )

    def _note_restart(self, reason: ServerError) -> None:
        """Says why the server starts again, and pauses; refuses too many restarts."""
        now = time.monotonic()
        self._recent.append(now)
        while self._recent[0] < now - _WINDOW_S:
            self._recent.popleft()
        when = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        self._restarts = [*self._restarts[-99:], f"{when} {reason}"]
        self._num_restarts += 1
        self._states, self._failures = {}, {}
        self._report("restarting")
        if len(self._recent) > self._options.max_restarts:
            raise ServerError(
                f"{reason}; it was started again {self._options.max_restarts} times within ten "
                f"minutes (`max_restarts`); its log is {self._log_file}"
            )
        pause = min(2.0 ** (len(self._recent) - 1) - 1, _LONGEST_PAUSE_S)
        self._say(f"{when} restart {self._num_restarts}: {reason}; starting again in {pause:.0f} s")
        deadline = now + pause
        while time.monotonic() < deadline and not self._stopped():
            time.sleep(_TICK_S)


def _exit_text(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"code {code}"
