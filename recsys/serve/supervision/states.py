# SPDX-License-Identifier: Apache-2.0
"""States of a server's versions: what answers, what does not and why, and what is new."""

from typing import Any

from recsys.errors import UserError
from recsys.serve.repository import ModelRepository
from recsys.serve.server.install import ServerError
from recsys.serve.server.instances import Instance
from recsys.serve.server.process import ServerSettings, TritonServer
from recsys.serve.supervision.health import Version, version_text
from recsys.serve.supervision.loads import Loads
from recsys.serve.version_policy import is_handwritten, policy_of, served_versions

_UNLOADED = "unloaded"
"""Reason that Triton gives for a version that another one replaced."""


class ModelStates:
    """States of all versions, as a server and its repository tell them.

    Attributes:
        states: version -> Triton's word for its state.
        failures: version -> why it does not answer.
        fault: what is wrong with the repository, or that no version answers; empty if all is well.
    """

    def __init__(self, settings: ServerSettings) -> None:
        self.states: dict[Version, str] = {}
        self.failures: dict[Version, str] = {}
        self.fault = ""
        self._settings = settings
        self._told: dict[Version, str] = {}
        self._wrong: dict[Version, str] = {}
        self._had_ready = False

    def forget(self) -> None:
        """Forgets the states of a server that has ended."""
        self.states, self.failures = {}, {}

    def ready(self) -> list[Version]:
        """Returns the versions that the server calls ready."""
        return [version for version, state in self.states.items() if state == "READY"]

    def loading(self) -> list[Version]:
        """Returns the versions that are being loaded."""
        return [version for version, state in self.states.items() if state == "LOADING"]

    def is_ready(self, instance: Instance) -> bool:
        """Tells if the version of an instance is one that the server calls ready."""
        folder = instance.version_folder.name
        return any(
            model == instance.model and (number == folder or not folder.isdecimal())
            for model, number in self.ready()
        )

    def observe(self, server: TritonServer, loads: Loads, wrong: dict[Version, str]) -> list[str]:
        """Reads all states; returns lines of the news.

        Args:
            server: the server.
            loads: the loads into it.
            wrong: version -> what is wrong with its answers.

        Raises:
            ServerError: the server does not answer.
        """
        news: list[str] = []
        states: dict[Version, str] = {}
        told: dict[Version, str] = {}
        listed, fault = self._list(server, loads)
        for model in listed:
            version = (model["name"], model.get("version", ""))
            states[version] = model["state"]
            reason = model.get("reason", "")
            if model["state"] == "READY":
                self.failures.pop(version, None)
                if self.states.get(version) != "READY":
                    news.append(f"  {version_text(version)}: READY")
            elif model["state"] == "UNAVAILABLE" and reason and reason != _UNLOADED:
                if self._told.get(version) != reason:
                    news.append(f"  {version_text(version)}: does not load: {reason.rstrip()}")
                told[version] = self.failures[version] = reason
            elif reason == _UNLOADED:
                self.failures.pop(version, None)
        newest = {name: int(v) for (name, v), state in states.items() if state == "READY"}
        self.failures = {  # a version that a newer one replaced is not missed
            (name, v): why
            for (name, v), why in self.failures.items()
            if (name, v) in states
            and (not v or (int(v) > newest.get(name, -1) and self._is_chosen(name, int(v))))
        }
        self.states, self._told = states, told
        for version, why in wrong.items():
            if version not in self._wrong:
                news.append(f"  {version_text(version)}: {why}")
        self._wrong = wrong
        self.failures |= wrong
        self.note_renewed(loads)
        self._had_ready |= bool(newest)
        if self._had_ready and not newest and not fault:
            fault = "no version answers any more"
        if fault and fault != self.fault:
            news.append(f"degraded: {fault}")
        elif self.fault and not fault:
            news.append(f"no longer: {self.fault}")
        self.fault = fault
        return news

    def note_renewed(self, loads: Loads) -> None:
        """Notes that models whose instances are being replaced may not answer."""
        renewing, why = loads.renewing(), "new instances are loaded: one does not work"
        self.failures |= {version: why for version in self.states if version[0] in renewing}

    def _list(self, server: TritonServer, loads: Loads) -> tuple[list[dict[str, Any]], str]:
        """Returns all versions with their states, and what is wrong with the repository."""
        repository, polls = self._settings.repository, bool(self._settings.poll_secs)
        fault = ""
        try:
            listed = [model for model in server.models() if model.get("state")]
        except ServerError as error:
            listed, fault = [], f"the server cannot list {repository}: {error}"
        known = {(model["name"], model.get("version", "")) for model in listed}
        if not fault:
            missing = loads.names - {name for name, _ in known}
            # Its configuration cannot be read, or it has no version.
            for name in sorted(missing | loads.refused.keys()):
                if (repository / name).is_dir():
                    reason = loads.refused.get(name) or server.log.model_error(name)
                    listed.append({"name": name, "state": "UNAVAILABLE", "reason": reason})
        away = set(self.ready()) - known
        if fault or (away and not polls):
            away &= server.ready_versions()
            listed += [{"name": name, "version": v, "state": "READY"} for name, v in sorted(away)]
            if away and not fault:
                gone = ", ".join(map(version_text, sorted(away)))
                fault = f"{gone}: not in {repository} any more; answers until the next start"
        if fault and not known:  # the others do not answer, for the same reasons as before
            listed += [
                {"name": name, "version": v, "state": "UNAVAILABLE"}
                for name, v in self.states.keys() - away
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
