# SPDX-License-Identifier: Apache-2.0
"""Keeps a Triton server serving: watches it and starts it again.

Triton's own health endpoints stay 200 when a Python instance has died; that is seen from outside
here, and the instances of that model alone are replaced.
"""

import collections
import contextlib
import dataclasses
import math
import os
import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from recsys.errors import UserError
from recsys.serve.repository import ModelRepository
from recsys.serve.server.guard import TICK_S, Restarts, exit_text, sign_of_life
from recsys.serve.server.health import HealthEndpoint, HealthReport, Status, Version, version_text
from recsys.serve.server.install import ServerError
from recsys.serve.server.instances import Instance, find_instances, read_process
from recsys.serve.server.loads import Loads
from recsys.serve.server.probe import SILENCE_S, Prober
from recsys.serve.server.process import NotReadyError, ServerSettings, TritonServer
from recsys.serve.version_policy import is_handwritten, policy_of, served_versions
from recsys.settings import setting

_LONGEST_TICKS = 16
"""Most ticks from a look that failed to the next one."""
_CANCELLED = " one that its client cancelled may have"
_UNLOADED = "unloaded"
"""Reason that Triton gives for a version that another one replaced."""


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
        self._states: dict[Version, str] = {}
        self._failures: dict[Version, str] = {}
        self._told: dict[Version, str] = {}
        self._wrong: dict[Version, str] = {}
        self._log_fault = ""
        self._fault = ""
        self._had_ready = False
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
                self._states, self._failures = {}, {}
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
            if self._failures and not self._health.report.models:
                reasons = "\n  ".join(
                    f"{version_text(version)}: {why}" for version, why in self._failures.items()
                )
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
        watched = _Watched({instance.pid: instance for instance in find_instances(server.pid)})
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
        instances = find_instances(server.pid)
        if server.responds():
            watched.answered = now
            with contextlib.suppress(OSError):  # its index says that the repository is away
                self._loads.look(self._settings.poll_secs)
            for model in self._loads.ended():
                watched.end_replaced(model, now + SILENCE_S)
            try:
                for line in self._observe(server):
                    self._say(line)
            except ServerError as error:
                self._report("degraded", str(error))
            self._prober.look(server, (v for v, state in self._states.items() if state == "READY"))
        elif now - watched.answered > SILENCE_S:
            blame = f"; over gRPC{_CANCELLED} caused it" if self._settings.grpc_port else ""
            raise ServerError(f"the server did not answer for {SILENCE_S:.0f} s{blame}")
        else:
            since = time.monotonic() - watched.answered
            self._report("degraded", f"the server has not answered for {since:.0f} s")
        seen = watched.seen
        seen |= {instance.pid: instance for instance in instances if instance.model}
        # A load starts and ends processes of its own, dead for a moment.
        faults = {
            i.pid: i.fault
            for i in instances
            if i.fault and (i.pid in seen or not self._loads.are_under_way)
        }
        earlier, watched.faulty = watched.faulty, faults
        # An instance that ends in order is dead for a moment only.
        for pid, fault in watched.faulty.items():
            if pid in earlier and pid not in watched.replaced and self._is_ready(seen.get(pid)):
                self._replace(watched, pid, fault)
        self._end_hung_loads(watched.loading, instances, now)
        left = {i.pid: i for i in instances if i.pid in watched.replaced}
        watched.replaced = {pid: watched.replaced[pid] for pid in left}
        for pid, instance in left.items():  # kept by a request that nobody will answer, say
            if now > watched.replaced[pid] and instance.name:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def _replace(self, watched: "_Watched", pid: int, fault: str) -> None:
        """Replaces the instances of a model of which one does not work."""
        instance = watched.seen.get(pid)
        reason = f"instance {instance.name if instance else 'of a model'} (process {pid}) {fault}"
        if instance is None:
            raise ServerError(reason)
        if self._loads.is_loading(instance.model):
            return
        self._loads.renew(instance.model)  # first: it needs a thread
        self._restarts.note(reason)
        self._restarts.tell(f"{instance.model} is loaded again, the other models go on")
        watched.replace(instance.model)
        self._add_renewing()
        self._report("degraded")

    def _add_renewing(self) -> None:
        renewing, why = self._loads.renewing(), "new instances are loaded: one does not work"
        self._failures |= {version: why for version in self._states if version[0] in renewing}

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
        for model, spent in self._loads.renewing().items():
            if spent > self._options.ready_timeout_s:
                raise ServerError(f"the load of new instances of {model} does not end")
        for version, state in self._states.items():
            if state != "LOADING":
                continue
            spent = now - loading.setdefault(version, now)
            if spent < self._options.ready_timeout_s:
                continue
            if spent > self._options.ready_timeout_s + SILENCE_S:
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
        told: dict[Version, str] = {}
        listed, fault = self._list(server)
        for model in listed:
            version = (model["name"], model.get("version", ""))
            states[version] = model["state"]
            reason = model.get("reason", "")
            if model["state"] == "READY":
                self._failures.pop(version, None)
                if self._states.get(version) != "READY":
                    news.append(f"  {version_text(version)}: READY")
            elif model["state"] == "UNAVAILABLE" and reason and reason != _UNLOADED:
                if self._told.get(version) != reason:
                    news.append(f"  {version_text(version)}: does not load: {reason.rstrip()}")
                told[version] = self._failures[version] = reason
            elif reason == _UNLOADED:
                self._failures.pop(version, None)
        newest = {name: int(v) for (name, v), state in states.items() if state == "READY"}
        self._failures = {  # a version that a newer one replaced is not missed
            (name, v): why
            for (name, v), why in self._failures.items()
            if (name, v) in states
            and (not v or (int(v) > newest.get(name, -1) and self._is_chosen(name, int(v))))
        }
        self._states, self._told = states, told
        for version, why in self._prober.faults.items():
            if version not in self._wrong:
                news.append(f"  {version_text(version)}: {why}")
        self._wrong = self._prober.faults
        self._failures |= self._wrong
        self._add_renewing()
        self._had_ready |= bool(newest)
        if self._had_ready and not newest and not fault:
            fault = "no version answers any more"
        if fault and fault != self._fault:
            news.append(f"degraded: {fault}")
        elif self._fault and not fault:
            news.append(f"no longer: {self._fault}")
        self._fault = fault
        self._report("degraded" if self._failures or fault else "ok", fault)
        return news

    def _list(self, server: TritonServer) -> tuple[list[dict[str, Any]], str]:
        """Returns all versions with their states, and what is wrong with the repository."""
        repository, polls = self._settings.repository, bool(self._settings.poll_secs)
        fault = ""
        try:
            listed = [model for model in server.models() if model.get("state")]
        except ServerError as error:
            if not self._states:
                raise  # nothing was ever loaded
            listed, fault = [], f"the server cannot list {repository}: {error}"
        known = {(model["name"], model.get("version", "")) for model in listed}
        if not fault:
            missing = self._loads.names - {name for name, _ in known}
            # Its configuration cannot be read, or it has no version.
            for name in sorted(missing | self._loads.refused.keys()):
                if (repository / name).is_dir():
                    reason = self._loads.refused.get(name) or server.log.model_error(name)
                    listed.append({"name": name, "state": "UNAVAILABLE", "reason": reason})
        away = {v for v, state in self._states.items() if state == "READY"} - known
        if away and (fault or not polls):
            away &= server.ready_versions()
            listed += [{"name": name, "version": v, "state": "READY"} for name, v in sorted(away)]
            if away and not fault:
                gone = ", ".join(map(version_text, sorted(away)))
                fault = f"{gone}: not in {repository} any more; answers until the next start"
        if fault and not known:  # the others do not answer, for the same reasons as before
            listed += [
                {"name": name, "version": v, "state": "UNAVAILABLE"}
                for name, v in self._states.keys() - away
            ]
        return listed, fault

    def _is_chosen(self, name: str, version: int) -> bool:
        """Tells if the policy chooses a version, or cannot be read."""
        repository = ModelRepository(self._settings.repository)
        try:
            config = repository.config_file(name).read_text()
            chosen = served_versions(policy_of(config), repository.versions(name))
            return is_handwritten(config) or version in chosen
        except (OSError, UserError):
            return True

    def _report(self, status: Status, fault: str = "") -> None:
        ready: dict[str, list[int]] = collections.defaultdict(list)
        if status in ("ok", "degraded"):
            for (model, version), state in self._states.items():
                if state == "READY" and (model, version) not in self._failures:
                    ready[model].append(int(version))
        self._health.report = HealthReport(
            status=status,
            fault=fault,
            models=dict(ready),
            failures=dict(self._failures),
            restarts=tuple(self._restarts.reasons),
            num_restarts=self._restarts.number,
            probes=self._prober.right,
            failed_probes=self._prober.failures,
            listed=frozenset(model for model, _ in self._states),
            metrics_url=self._metrics_url,
        )


@dataclasses.dataclass(slots=True)
class _Watched:
    """State of one server between two looks at it.

    Attributes:
        seen: process id -> instance, of all that ever lived.
        faulty: process id -> fault, at the last look.
        replaced: process id -> time at which it is to end, of instances that others replace.
        loading: version -> time from which it was seen to load.
        answered: time of the last answer.
    """

    seen: dict[int, Instance]
    faulty: dict[int, str] = dataclasses.field(default_factory=dict)
    replaced: dict[int, float] = dataclasses.field(default_factory=dict)
    loading: dict[Version, float] = dataclasses.field(default_factory=dict)
    answered: float = dataclasses.field(default_factory=time.monotonic)

    def replace(self, model: str) -> None:
        """Notes that others will replace all instances of a model."""
        of_model = [pid for pid, instance in self.seen.items() if instance.model == model]
        self.replaced = dict.fromkeys(of_model, math.inf) | self.replaced

    def end_replaced(self, model: str, when: float) -> None:
        """Notes when the replaced instances of a model are to have ended."""
        for pid, end in self.replaced.items():
            if self.seen[pid].model == model:
                self.replaced[pid] = min(end, when)


def _text(error: Exception) -> str:
    """Returns an error for readers; others than our own with their type."""
    return str(error) if isinstance(error, ServerError) else f"{type(error).__name__}: {error}"
