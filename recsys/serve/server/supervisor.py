# SPDX-License-Identifier: Apache-2.0
"""Keeps a Triton server serving: watches it and restarts it.

Triton's own health endpoints stay 200 when a Python instance has died. The supervisor sees that
from outside, and replaces only the instances of that model. Nothing watches this process: the
service manager that started it (systemd, Docker, Kubernetes) must restart it, and the server ends
with it.
"""

import dataclasses
import datetime
import itertools
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from recsys.serve.server.health import HealthEndpoint, HealthReport, Status
from recsys.serve.server.install import ServerError
from recsys.serve.server.instances import Instances, read_process
from recsys.serve.server.models import Models
from recsys.serve.server.probe import SILENCE_S, Prober
from recsys.serve.server.process import ServerSettings, TritonServer, version_text
from recsys.settings import setting

_TICK_S, _POLL_S = 0.5, 0.05
_CONFIRM_S = 0.1
"""Seconds to a second look at an instance that may be ending in order."""
_WINDOW_S = 600.0
"""Seconds in which at most `max_restarts` may happen."""
_LONGEST_PAUSE_S = 30.0
_CALM_S = 60.0
"""Restarts as far apart as this are no series, and have no pause."""
_SHOWN_RESTARTS = 100
_OF_REQUESTS = (-signal.SIGABRT, -signal.SIGFPE, -signal.SIGSEGV)
_BLAME = "; a request may have caused it (Security in docs/deployment.md)"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class SupervisorSettings:
    """Settings of the supervision."""

    ready_timeout_s: float = setting(300.0, "Seconds after which to give up loading a version")
    probe_secs: int = setting(10, "Seconds between probes of each version; 0: no probes")
    max_restarts: int = setting(10, "Largest number of restarts of the server in ten minutes")
    health_port: int = setting(0, "Port of /healthz; 0 takes a free one")
    log_mib: int = setting(64, "Size in MiB above which the log moves to FILE.1")

    def __post_init__(self) -> None:
        """Refuses values out of range."""
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
        stopped: returns whether the program was asked to stop.
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
        self._restarts: list[tuple[float, str]] = []
        self._num_restarts = 0

    def run(self, on_ready: Callable[[TritonServer], None]) -> None:
        """Serves until `stopped`; calls `on_ready` once.

        Raises:
            ServerError: the first start failed, or there were too many restarts.
        """
        served = False
        while not self._stopped():
            try:
                with TritonServer(self._settings, self._log_file) as server:
                    self._begin(server)
                    self._load()
                    if not self._stopped() and not served:
                        on_ready(server)
                    served = True
                    while not self._stopped():
                        self._wait()
                        self._look()
                    self._say("stopping (a client that keeps its connection open may delay it)")
            except Exception as error:  # from the server or its surroundings
                if not served:
                    raise  # the settings or the models are wrong
                if self._stopped():
                    return
                deadline = time.monotonic() + self._restart(_text(error))
                while time.monotonic() < deadline and not self._stopped():
                    time.sleep(_TICK_S)

    def _wait(self) -> None:
        """Waits until the next look: shorter if the server or an instance ends."""
        is_suspect = self._instances.has_suspect()
        deadline = time.monotonic() + (_CONFIRM_S if is_suspect else _TICK_S)
        while (left := deadline - time.monotonic()) > 0 and self._server.poll() is None:
            if not is_suspect and self._instances.has_new_fault():
                return
            time.sleep(min(left, _POLL_S))

    def _restart(self, reason: str, model: str = "") -> float:
        """Counts and reports a restart of the server or a model; returns the pause before it.

        Raises:
            ServerError: there were too many restarts.
        """
        now, when = time.monotonic(), datetime.datetime.now(datetime.UTC)
        self._num_restarts += 1
        most = self._options.max_restarts
        told = f"{when.isoformat(timespec='seconds')} {reason}"
        self._restarts = [*self._restarts[-max(most, _SHOWN_RESTARTS) :], (now, told)]
        recent = sum(then >= now - _WINDOW_S for then, _ in self._restarts)
        if recent > most:
            raise ServerError(
                f"{reason}; it was restarted {most} times within ten minutes, the limit "
                "(`max_restarts`)",
                setting="max_restarts",
            )
        pause = restart_pause([then for then, _ in self._restarts])
        # Before the line is printed, so that health shows the restart to readers of the line.
        self._report("degraded" if model else "restarting")
        what = f"{model} is loaded again, the other models keep serving"
        what = what if model else f"starting again in {pause:.0f} s"
        when_told, _, _ = told.partition(" ")
        self._say(f"{when_told} restart {self._num_restarts}: {reason}; {what}")
        return pause

    def _begin(self, server: TritonServer) -> None:
        """Begins to watch a server."""
        self._server = server
        self._models = Models(server)
        self._instances = Instances(server.pid)
        self._prober = Prober(self._options.probe_secs)
        self._told: dict[object, str] = {}

    def _load(self) -> None:
        """Waits for the first load; ends models that do not finish."""
        server, models, timeout_s = self._server, self._models, self._options.ready_timeout_s
        deadline = time.monotonic() + timeout_s
        while not self._stopped() and not server.is_loaded():
            self._instances.look()
            self._report("restarting" if self._num_restarts else "starting")
            if time.monotonic() > deadline:
                if not self._end_hung({*server.names} - server.log.loaded_models()):
                    raise ServerError(
                        f"the server is not ready after {timeout_s:g} s; its log is "
                        f"{server.log.file}"
                    )
                deadline = time.monotonic() + timeout_s
            time.sleep(_POLL_S)
        if self._stopped():
            return
        models.observe({})
        self._answered = time.monotonic()  # the load may have taken longer than SILENCE_S
        if models.failures and not models.ready:
            reasons = "\n  ".join(f"{version_text(v)}: {w}" for v, w in models.failures.items())
            raise ServerError(f"no model could be loaded:\n  {reasons}\n  (log {server.log.file})")
        if not server.names and self._settings.poll_secs:
            self._say(
                f"{self._settings.repository} holds no models yet; the server looks for one every "
                f"{self._settings.poll_secs} s"
            )
        self._report_models("")

    def _look(self) -> None:
        """Looks at the server once; raises an error if it does not serve.

        If this process cannot look, it reports why, and tries again at the next look.
        """
        try:
            self._look_at_process()
            if fault := self._look_at_models():
                silent_s = time.monotonic() - self._answered
                if silent_s > SILENCE_S:
                    raise ServerError(f"the server did not answer for {SILENCE_S:.0f} s{_BLAME}")
                fault = f"the server has not answered for {silent_s:.0f} s: {fault}"
                self._report("degraded", fault)
                return
        except ServerError:
            raise
        except Exception as error:  # noqa: BLE001  (no descriptor or thread is left, say)
            fault = f"cannot watch the server at the moment: {_text(error)}"
            self._print_news(self._told | {fault: fault})
            self._report("degraded", fault)
        self._answered = time.monotonic()  # or this process could not ask

    def _look_at_process(self) -> None:
        """Raises an error if the process of the server does not serve."""
        code = self._server.poll()
        if code is not None:
            ended = f"signal {signal.Signals(-code).name}" if code < 0 else f"code {code}"
            blame = _BLAME if code in _OF_REQUESTS else ""
            raise ServerError(f"the server ended with {ended}{blame}")
        if read_process(self._server.pid).state == "T":
            raise ServerError("the server was stopped by a signal")

    def _look_at_models(self) -> str:
        """Asks the server for its models and acts on the answer; returns why there was none."""
        models, instances = self._models, self._instances
        log_fault = self._server.log.limit(self._options.log_mib << 20)
        # Before the ends of loads are recorded: the last process of a load may be seen here.
        instances.look()
        if not self._server.responds():
            return "it is not ready"
        models.look(self._settings.poll_secs)
        instances.end_by(models.end_loads(), time.monotonic() + SILENCE_S)
        try:
            models.observe({v: p.fault for v, p in self._prober.probes.items() if p.fault})
        except ServerError as error:
            return str(error)
        self._report_models(log_fault)
        self._prober.look(self._server, models.ready)
        for dead in instances.dead():
            if dead.model not in models.loading and models.is_ready(dead):
                models.renew(dead.model, instances.of(dead.model))  # first: it needs a thread
                reason = f"instance {dead.name} (process {dead.pid}) {dead.fault}"
                self._restart(reason, dead.model)
        for model, spent_s in models.loading.items():
            over_s = spent_s - self._options.ready_timeout_s
            if over_s > SILENCE_S:
                raise ServerError(f"loading {model} does not finish")
            if over_s > 0:
                self._end_hung([model])
        return ""

    def _end_hung(self, names: Iterable[str]) -> bool:
        """Ends the versions of models that load for too long; returns whether there were any."""
        hung = [
            instance
            for name in names
            for instance in self._instances.of(name)
            if not instance.fault and not self._models.is_ready(instance)
        ]
        for instance in hung:
            self._say(
                f"{instance.model}: {instance.version_folder} did not load within "
                f"{self._options.ready_timeout_s:g} s; ending it"
            )
            instance.kill()
        return bool(hung)

    def _report_models(self, log_fault: str) -> None:
        """Reports the states of the models, and prints what has changed."""
        models = self._models
        is_ok = not models.failures and not models.fault
        self._report("ok" if is_ok else "degraded", models.fault)
        lines: dict[object, str] = {log_fault: log_fault} if log_fault else {}
        lines |= {v: f"  {version_text(v)}: READY" for v in sorted(models.ready)}
        for version, why in models.unloaded.items():
            lines[version, why] = f"  {version_text(version)}: does not load: {why.rstrip()}"
        for version, probe in self._prober.probes.items():
            if probe.fault:
                lines[version, "probe"] = f"  {version_text(version)}: {probe.fault}"
        if models.fault:
            lines[models.fault] = f"degraded: {models.fault}"
        self._print_news(lines)

    def _print_news(self, lines: dict[object, str]) -> None:
        """Prints what is new since the last look; each line has a key that identifies it."""
        news = [line for key, line in lines.items() if key not in self._told]
        gone = [line for key, line in self._told.items() if key not in lines]
        for line in news + [f"no longer {line}" for line in gone if line.startswith("degraded: ")]:
            self._say(line)
        self._told = lines

    def _report(self, status: Status, fault: str = "") -> None:
        """Replaces the health report; only a server that is up has models in it."""
        report = HealthReport(
            status=status,
            fault=fault,
            restarts=tuple(told for _, told in self._restarts[-_SHOWN_RESTARTS:]),
            num_restarts=self._num_restarts,
            metrics_url=self._server.metrics_url,
        )
        if status in ("ok", "degraded"):
            models, probes = self._models, self._prober.probes
            report.listed, report.failures = models.listed, dict(models.failures)
            report.probes = {version: probe.right for version, probe in probes.items()}
            report.failed_probes = {version: probe.failures for version, probe in probes.items()}
            for model, version in sorted(models.ready.keys() - models.failures.keys()):
                report.models.setdefault(model, []).append(int(version))
        self._health.report = report


def restart_pause(restarts: Sequence[float]) -> float:
    """Returns the seconds to wait before the last of some restarts, at these monotonic times.

    They grow with each restart that follows the one before within a minute. So a server that
    crashes at once does not use up its restarts, and one that has served does not keep its clients
    waiting.
    """
    gaps = (after - before for before, after in itertools.pairwise(restarts))
    series = itertools.takewhile(lambda gap: gap < _CALM_S, reversed([*gaps]))
    pause = 0.0
    for _ in series:
        pause = min(2 * pause + 1, _LONGEST_PAUSE_S)
    return pause


def _text(error: Exception) -> str:
    """Returns an error as text; those of others include their type."""
    return str(error) if isinstance(error, ServerError) else f"{type(error).__name__}: {error}"
