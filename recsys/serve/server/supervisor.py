# SPDX-License-Identifier: Apache-2.0
"""Keeps a Triton server serving: watches it and starts it again.

Triton's own health endpoints stay 200 when a Python instance has died; that is seen from outside
here, and the instances of that model alone are replaced. Nothing watches this process: whoever
started it (systemd, Docker, Kubernetes) starts it again, and the server ends with it.
"""

import collections
import dataclasses
import datetime
import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from recsys.serve.server.health import HealthEndpoint, HealthReport, Status
from recsys.serve.server.install import ServerError
from recsys.serve.server.instances import Instance, Instances, read_process
from recsys.serve.server.models import Models
from recsys.serve.server.probe import SILENCE_S, Prober
from recsys.serve.server.process import (
    NotReadyError,
    ServerSettings,
    TritonServer,
    version_text,
)
from recsys.settings import setting

_TICK_S = 0.5
_WINDOW_S = 600.0
"""Time in which there are to be no more than `max_restarts`."""
_LONGEST_PAUSE_S = 30.0
_OF_REQUESTS = (-signal.SIGABRT, -signal.SIGFPE, -signal.SIGSEGV)
_BLAME = "; a request may have caused it (Security in docs/deployment.md)"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class SupervisorSettings:
    """Settings of the supervision."""

    ready_timeout_s: float = setting(300.0, "Give up loading a version after this long")
    probe_secs: int = setting(10, "Ask each version its recorded row this often; 0: never")
    max_restarts: int = setting(10, "Most restarts of the server within ten minutes")
    health_port: int = setting(0, "Port of /healthz; 0 takes a free one")
    log_mib: int = setting(64, "Size above which the log moves to FILE.1")

    def __post_init__(self) -> None:
        """Refuses settings without a sense."""
        if not self.ready_timeout_s > 0:
            raise ServerError(f"`ready_timeout_s` must be above 0, got {self.ready_timeout_s}")
        if (
            min(self.max_restarts, self.probe_secs, self.log_mib - 1) < 0
            or not 0 <= self.health_port < 1 << 16
        ):
            raise ServerError(
                "expected `max_restarts` and `probe_secs` of 0 or more, `log_mib` of 1 or more and "
                f"a `health_port` below 65536, got {self.max_restarts}, {self.probe_secs}, "
                f"{self.log_mib} and {self.health_port}"
            )


class Supervisor:
    """Runs a server until it is stopped, or fails too often.

    Args:
        say: prints a line.
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
        self._settings, self._options, self._log_file = settings, options, log_file
        self._health, self._say, self._stopped = health, say, stopped
        self._watched: _Watched | None = None
        self._restarts: list[str] = []
        self._recent: collections.deque[float] = collections.deque()
        self._num_restarts = 0
        self._metrics_url = ""

    def run(self, on_ready: Callable[[TritonServer], None]) -> None:
        """Serves until `stopped`; calls `on_ready` once.

        Raises:
            ServerError: the first start failed, or there were too many restarts.
        """
        served = False
        while not self._stopped():
            try:
                with TritonServer(self._settings, self._log_file) as server:
                    self._metrics_url = server.metrics_url
                    watched = _Watched(server, self._options.probe_secs)
                    self._load(watched)
                    if not self._stopped() and not served:
                        on_ready(server)
                    served = True
                    self._watch(watched)
                    self._say("stopping (a client that keeps its connection open may delay it)")
            except Exception as error:  # of the server or its surroundings
                if not served:
                    raise  # settings or models are wrong
                if self._stopped():
                    return
                self._watched = None
                pause = self._note_restart(_text(error))
                self._report("restarting")
                self._tell_restart(f"starting again in {pause:.0f} s")
                deadline = time.monotonic() + pause
                while time.monotonic() < deadline and not self._stopped():
                    time.sleep(_TICK_S)

    def _note_restart(self, reason: str) -> float:
        """Counts a restart of the server or of a model; returns the pause before it.

        Raises:
            ServerError: there were too many.
        """
        now = time.monotonic()
        self._recent.append(now)
        while self._recent[0] < now - _WINDOW_S:
            self._recent.popleft()
        when = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        self._restarts = [*self._restarts[-99:], f"{when} {reason}"]
        self._num_restarts += 1
        if len(self._recent) > self._options.max_restarts:
            raise ServerError(
                f"{reason}; it was started again {self._options.max_restarts} times within ten "
                "minutes (`max_restarts`)"
            )
        return min(2.0 ** (len(self._recent) - 1) - 1, _LONGEST_PAUSE_S)

    def _tell_restart(self, what: str) -> None:
        when, _, reason = self._restarts[-1].partition(" ")
        self._say(f"{when} restart {self._num_restarts}: {reason}; {what}")

    def _load(self, watched: "_Watched") -> None:
        """Waits for the first load; ends models that do not finish."""
        server = watched.server

        def tick() -> bool:
            watched.instances.look()
            self._report("restarting" if self._restarts else "starting")
            return self._stopped()

        while True:
            try:
                server.wait_ready(self._options.ready_timeout_s, tick)
                break
            except NotReadyError:
                hung = {*server.names} - server.log.loaded_models()
                if not self._end_hung(watched, hung):
                    raise
        if self._stopped():
            return
        self._watched = watched
        news = self._observe(watched)
        if not server.names and self._settings.poll_secs:
            self._say(
                f"{self._settings.repository} holds no model yet; it is looked for one every "
                f"{self._settings.poll_secs} s"
            )
        failures = watched.models.failures
        if failures and not watched.models.ready:
            reasons = "\n  ".join(f"{version_text(v)}: {why}" for v, why in failures.items())
            raise ServerError(f"no model could be loaded:\n  {reasons}\n  (log {server.log.file})")
        for line in news:
            self._say(line)

    def _watch(self, watched: "_Watched") -> None:
        """Returns when `stopped`; raises why the server died or does not serve."""
        told = ""
        while not self._stopped():
            time.sleep(_TICK_S)
            try:
                self._look(watched)
                told = ""
            except ServerError:
                raise
            except Exception as error:  # noqa: BLE001  (no descriptor or thread is left, say)
                fault = f"cannot watch the server at the moment: {_text(error)}"
                if fault != told:
                    self._say(fault)
                told = fault
                self._report("degraded", fault)
                watched.answered = time.monotonic()  # nobody could ask

    def _look(self, watched: "_Watched") -> None:
        """Looks at the server once; raises why it does not serve."""
        server, models, instances = watched.server, watched.models, watched.instances
        fault = server.log.limit(self._options.log_mib << 20)
        if fault and fault != watched.log_fault:
            self._say(fault)
        watched.log_fault = fault
        if (code := server.poll()) is not None:
            ended = f"signal {signal.Signals(-code).name}" if code < 0 else f"code {code}"
            blame = _BLAME if code in _OF_REQUESTS else ""
            raise ServerError(f"the server ended with {ended}{blame}")
        if read_process(server.pid).state == "T":
            raise ServerError("the server was stopped by a signal")
        # Before the end of a load is noted: its last process may be seen here.
        instances.look()
        if fault := self._ask(watched):
            silent_s = time.monotonic() - watched.answered
            if silent_s > SILENCE_S:
                raise ServerError(f"the server did not answer for {SILENCE_S:.0f} s{_BLAME}")
            self._report("degraded", f"the server has not answered for {silent_s:.0f} s: {fault}")
            return
        watched.answered = time.monotonic()
        for dead in instances.dead(models.loading):
            if models.is_ready(dead):
                self._replace(watched, dead)
        for model, spent_s in models.loading.items():
            over_s = spent_s - self._options.ready_timeout_s
            if over_s > SILENCE_S:
                raise ServerError(f"the load of {model} does not end")
            if over_s > 0:
                self._end_hung(watched, [model])

    def _ask(self, watched: "_Watched") -> str:
        """Asks the server for its state and reports it; returns why it did not answer."""
        if not watched.server.responds():
            return "it is not ready"
        watched.models.look(self._settings.poll_secs)
        for model in watched.models.end_loads():
            watched.instances.end_retired(model, time.monotonic() + SILENCE_S)
        try:
            news = self._observe(watched)
        except ServerError as error:
            return str(error)
        for line in news:
            self._say(line)
        watched.prober.look(watched.server, watched.models.ready)
        return ""

    def _observe(self, watched: "_Watched") -> list[str]:
        """Reads and reports the models' states; returns lines of the news."""
        news = watched.models.observe(watched.prober.faults)
        is_ok = not watched.models.failures and not watched.models.fault
        self._report("ok" if is_ok else "degraded", watched.models.fault)
        return news

    def _replace(self, watched: "_Watched", dead: Instance) -> None:
        """Replaces the instances of a model of which one is dead."""
        watched.models.renew(dead.model)  # first: it needs a thread
        watched.instances.retire(dead.model)
        self._note_restart(f"instance {dead.name} (process {dead.pid}) {dead.fault}")
        self._report("degraded")  # before it is said, so that who reads that finds it in health
        self._tell_restart(f"{dead.model} is loaded again, the other models go on")

    def _end_hung(self, watched: "_Watched", names: Iterable[str]) -> bool:
        """Ends the versions of models that load for too long; tells if there were any."""
        hung = [
            instance
            for name in names
            for instance in watched.instances.of(name)
            if not instance.fault and not watched.models.is_ready(instance)
        ]
        for instance in hung:
            self._say(
                f"{instance.model}: {instance.version_folder} did not load within "
                f"{self._options.ready_timeout_s:g} s; ending it"
            )
            instance.kill()
        return bool(hung)

    def _report(self, status: Status, fault: str = "") -> None:
        report = HealthReport(
            status=status,
            fault=fault,
            restarts=tuple(self._restarts),
            num_restarts=self._num_restarts,
            metrics_url=self._metrics_url,
        )
        if (watched := self._watched) is not None:
            answering: dict[str, list[int]] = collections.defaultdict(list)
            for model, version in sorted(watched.models.ready - watched.models.failures.keys()):
                answering[model].append(int(version))
            report = dataclasses.replace(
                report,
                models=dict(answering),
                failures=dict(watched.models.failures),
                probes=watched.prober.right,
                failed_probes=watched.prober.failures,
                listed=watched.models.listed,
            )
        self._health.report = report


class _Watched:
    """A server, and what is known about it from one look to the next.

    Attributes:
        answered: time of the last look at which it told its state.
        log_fault: what was wrong with its log then.
    """

    def __init__(self, server: TritonServer, probe_secs: float) -> None:
        self.server = server
        self.models = Models(server)
        self.instances = Instances(server.pid)
        self.prober = Prober(probe_secs)
        self.answered = time.monotonic()
        self.log_fault = ""


def _text(error: Exception) -> str:
    """Returns an error for readers; others than our own with their type."""
    return str(error) if isinstance(error, ServerError) else f"{type(error).__name__}: {error}"
