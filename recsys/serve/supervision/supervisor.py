# SPDX-License-Identifier: Apache-2.0
"""Keeps a Triton server serving: watches it and starts it again.

Triton's own health endpoints stay 200 when a Python instance has died; that is seen from outside
here, and the instances of that model alone are replaced.
"""

import collections
import contextlib
import dataclasses
import os
import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from recsys.serve.server.install import ServerError
from recsys.serve.server.instances import Instance, find_instances, read_process
from recsys.serve.server.process import NotReadyError, ServerSettings, TritonServer
from recsys.serve.supervision.guard import TICK_S, Restarts, exit_text, sign_of_life
from recsys.serve.supervision.health import (
    HealthEndpoint,
    HealthReport,
    Status,
    Version,
    version_text,
)
from recsys.serve.supervision.loads import Loads
from recsys.serve.supervision.probe import SILENCE_S, Prober
from recsys.serve.supervision.roster import Roster
from recsys.serve.supervision.states import ModelStates
from recsys.settings import setting

_LONGEST_TICKS = 16
"""Most ticks from a look that failed to the next one."""
_CANCELLED = " one that its client cancelled may have"


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
        restarts: those of this supervisor, earlier ones of its guard included.
        stopped: tells that the end was asked for.
    """

    def __init__(
        self,
        settings: ServerSettings,
        options: SupervisorSettings,
        log_file: Path,
        health: HealthEndpoint,
        restarts: Restarts,
        say: Callable[[str], None],
        stopped: Callable[[], bool],
    ) -> None:
        self._settings = settings
        self._options = options
        self._log_file = log_file
        self._health = health
        self._say = say
        self._stopped = stopped
        self._served = restarts.number > 0  # by another supervisor
        self._restarts = restarts
        self._metrics_url = ""
        self._states = ModelStates(settings)
        self._log_fault = ""
        self._prober = Prober(options.probe_secs)

    def run(self, on_ready: Callable[[TritonServer], None]) -> None:
        """Serves until `stopped`; calls `on_ready` once.

        Raises:
            ServerError: the first start failed, or there were too many restarts.
        """
        while not self._stopped():
            sign_of_life()
            try:
                with TritonServer(self._settings, self._log_file) as server:
                    self._metrics_url, self._loads = server.metrics_url, Loads(server)
                    self._load(server)
                    if not self._stopped() and not self._served:
                        on_ready(server)
                    self._served = True
                    self._watch(server)
                    self._say("stopping (a client that keeps its connection open may delay it)")
                    sign_of_life()
            except Exception as error:  # of the server or its surroundings
                if not self._served:
                    raise  # settings or models are wrong
                if self._stopped():
                    return
                self._states.forget()
                self._prober = Prober(self._options.probe_secs)
                self._restarts.note(_text(error))
                self._report("restarting")
                self._restarts.pause()

    def _load(self, server: TritonServer) -> None:
        """Waits for the first load; ends models that do not finish."""
        while True:
            try:
                server.wait_ready(self._options.ready_timeout_s, self._stopped_while_loading)
                break
            except NotReadyError:
                loaded = server.log.loaded_models()
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
            failures = self._states.failures
            if failures and not self._health.report.models:
                reasons = "\n  ".join(f"{version_text(v)}: {why}" for v, why in failures.items())
                raise ServerError(
                    f"no model could be loaded:\n  {reasons}\n  (log {server.log.file})"
                )
            for line in news:
                self._say(line)

    def _stopped_while_loading(self) -> bool:
        sign_of_life()
        self._report("restarting" if self._served else "starting")
        return self._stopped()

    def _watch(self, server: TritonServer) -> None:
        """Returns when `stopped`; raises why the server died or does not serve."""
        watched = _Watched(Roster(server.pid, self._loads))
        faults: list[str] = []
        while not self._stopped():
            time.sleep(TICK_S * min(2 ** len(faults), _LONGEST_TICKS))
            try:
                self._look(server, watched)
            except ServerError:
                raise
            except Exception as error:  # noqa: BLE001  (no descriptor or thread is left, say)
                fault = f"cannot watch the server at the moment: {_text(error)}"
                if _text(error) not in faults:
                    self._say(fault)
                self._report("degraded", fault)
                faults.append(_text(error))
                watched.answered = time.monotonic()  # nobody could ask
            else:
                sign_of_life()
                faults.clear()

    def _look(self, server: TritonServer, watched: "_Watched") -> None:
        """Looks at the server once; raises why it does not serve."""
        self._limit_log(server)
        now = time.monotonic()
        if (code := server.poll()) is not None:
            raise ServerError(f"the server ended with {exit_text(code)}{self._blame(code)}")
        if read_process(server.pid).state == "T":
            raise ServerError("the server was stopped by a signal")
        watched.roster.look()
        if fault := self._ask(server, watched.roster):
            silent_s = time.monotonic() - watched.answered
            if silent_s > SILENCE_S:
                blame = f"; over gRPC{_CANCELLED} caused it" if self._settings.grpc_port else ""
                raise ServerError(f"the server did not answer for {SILENCE_S:.0f} s{blame}")
            self._report("degraded", f"the server has not answered for {silent_s:.0f} s: {fault}")
        else:
            watched.answered = now
        for instance in watched.roster.dead():
            if not instance.name or self._states.is_ready(instance):
                self._replace(watched.roster, instance)
        watched.roster.kill_overdue(now)
        self._end_hung_loads(watched, now)

    def _ask(self, server: TritonServer, roster: Roster) -> str:
        """Asks the server for its state and reports it; returns why it did not answer."""
        if not server.responds():
            return "it is not ready"
        with contextlib.suppress(OSError):  # its index says that the repository is away
            self._loads.look(self._settings.poll_secs)
        for model in self._loads.ended():
            roster.end_replaced(model, time.monotonic() + SILENCE_S)
        try:
            news = self._observe(server)
        except ServerError as error:
            return str(error)
        for line in news:
            self._say(line)
        self._prober.look(server, self._states.ready())
        return ""

    def _observe(self, server: TritonServer) -> list[str]:
        """Reads and reports the models' states; returns lines of the news."""
        news = self._states.observe(server, self._loads, self._prober.faults)
        is_ok = not self._states.failures and not self._states.fault
        self._report("ok" if is_ok else "degraded", self._states.fault)
        return news

    def _replace(self, roster: Roster, dead: Instance) -> None:
        """Replaces the instances of a model of which one is dead."""
        reason = f"instance {dead.name or 'of a model'} (process {dead.pid}) {dead.fault}"
        if not dead.name:
            raise ServerError(reason)
        self._loads.renew(dead.model)  # first: it needs a thread
        roster.replace(dead.model)
        self._restarts.note(reason)
        self._states.note_renewed(self._loads)
        self._report("degraded")  # before it is said, so that who reads that finds it in health
        self._restarts.tell(f"{dead.model} is loaded again, the other models go on")

    def _blame(self, code: int) -> str:
        """Returns the usual cause of a signal of the server's own."""
        if code not in (-signal.SIGABRT, -signal.SIGFPE, -signal.SIGSEGV):
            return ""
        blame = f", over gRPC{_CANCELLED}" if self._settings.grpc_port else ""
        return f"; a request may have caused it{blame} (Security in docs/deployment.md)"

    def _limit_log(self, server: TritonServer) -> None:
        """Keeps the log small; faults of its disk are said alone."""
        try:
            server.log.limit(self._options.log_mib << 20)
            fault = ""
            if not server.log.is_in_place():
                fault = (
                    f"{server.log.file} was moved or deleted: it stays the server's log until the "
                    "next start (logrotate: copytruncate)"
                )
        except OSError as error:
            fault = f"the log cannot be kept small: {error}"
        if fault and fault != self._log_fault:
            self._say(fault)
        self._log_fault = fault

    def _end_hung_loads(self, watched: "_Watched", now: float) -> None:
        """Ends versions that load for too long, and no others."""
        for model, spent in self._loads.renewing().items():
            if spent > self._options.ready_timeout_s:
                raise ServerError(f"the load of new instances of {model} does not end")
        begun = {version: watched.loading.get(version, now) for version in self._states.loading()}
        watched.loading = begun
        for version, since in begun.items():
            if now - since < self._options.ready_timeout_s:
                continue
            if now - since > self._options.ready_timeout_s + SILENCE_S:
                raise ServerError(f"the load of {version_text(version)} does not end")
            instances = watched.roster.instances()
            self._end(i for i in instances if (i.model, i.version_folder.name) == version)

    def _end(self, hung: Iterable[Instance]) -> None:
        for instance in hung:
            self._say(
                f"{instance.model}: {instance.version_folder} did not load within "
                f"{self._options.ready_timeout_s:g} s; ending it"
            )
            with contextlib.suppress(ProcessLookupError):
                os.kill(instance.pid, signal.SIGKILL)

    def _report(self, status: Status, fault: str = "") -> None:
        ready: dict[str, list[int]] = collections.defaultdict(list)
        if status in ("ok", "degraded"):
            for model, version in self._states.ready():
                if (model, version) not in self._states.failures:
                    ready[model].append(int(version))
        self._health.report = HealthReport(
            status=status,
            fault=fault,
            models=dict(ready),
            failures=dict(self._states.failures),
            restarts=tuple(self._restarts.reasons),
            num_restarts=self._restarts.number,
            probes=self._prober.right,
            failed_probes=self._prober.failures,
            listed=frozenset(model for model, _ in self._states.states),
            metrics_url=self._metrics_url,
        )


@dataclasses.dataclass(slots=True)
class _Watched:
    """State of one server between two looks at it.

    Attributes:
        roster: its instances.
        loading: version -> time from which it was seen to load.
        answered: time of the last look at which it told its state.
    """

    roster: Roster
    loading: dict[Version, float] = dataclasses.field(default_factory=dict)
    answered: float = dataclasses.field(default_factory=time.monotonic)


def _text(error: Exception) -> str:
    """Returns an error for readers; others than our own with their type."""
    return str(error) if isinstance(error, ServerError) else f"{type(error).__name__}: {error}"
