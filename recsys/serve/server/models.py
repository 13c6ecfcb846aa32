# SPDX-License-Identifier: Apache-2.0
"""Models of a running server: loads what changes, and tells what answers and what does not.

Triton's own polling loads a version that fails again at each look, and meanwhile looks for nothing
else. Here each model loads once for each change of its folder, in a thread of its own.
"""

import dataclasses
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from recsys.errors import UserError
from recsys.serve.repository import ModelRepository
from recsys.serve.server.install import ServerError
from recsys.serve.server.instances import Instance
from recsys.serve.server.process import TritonServer, Version, version_text
from recsys.serve.version_policy import is_handwritten, policy_of, served_versions

_NOT_READ = "failed to poll"
"""Words of the server about a model whose configuration cannot be read."""
_UNLOADED = "unloaded"
"""Reason that it gives for a version that another one replaced."""


@dataclasses.dataclass(slots=True)
class _Load:
    """A load under way.

    Attributes:
        renews: it replaces instances of files that did not change.
        error: why it failed; empty until it has.
    """

    thread: threading.Thread
    renews: bool
    began: float = dataclasses.field(default_factory=time.monotonic)
    error: str = ""


class Models:
    """The models of one server.

    Attributes:
        ready: versions that answer.
        failures: version -> why it does not answer, or answers wrong.
        fault: what is wrong with the repository, or that no version answers; empty if all is well.
    """

    def __init__(self, server: TritonServer) -> None:
        self.ready: set[Version] = set()
        self.failures: dict[Version, str] = {}
        self.fault = ""
        self._server = server
        self._repository = ModelRepository(server.settings.repository)
        self._stamps, self._seen = dict(server.stamps), dict(server.stamps)
        self._looked = time.monotonic()
        self._loads: dict[str, _Load] = {}
        self._unread: dict[str, str] = {}
        self._unloaded: dict[Version, str] = {}
        self._wrong: Mapping[Version, str] = {}
        self._answered = False

    @property
    def listed(self) -> frozenset[str]:
        """The models that are to be served."""
        return frozenset(self._server.settings.models or self._stamps)

    @property
    def loading(self) -> dict[str, float]:
        """The models for which a load is under way, and for how many seconds."""
        return {name: time.monotonic() - load.began for name, load in self._loads.items()}

    def is_ready(self, instance: Instance) -> bool:
        """Tells if the version of an instance is one that the server calls ready."""
        folder = instance.version_folder.name
        return any(
            model == instance.model and (number == folder or not folder.isdecimal())
            for model, number in self.ready
        )

    def look(self, poll_secs: float) -> None:
        """Begins to load what has changed, where the last look is long enough ago.

        Two looks in a row must find the same files: a model that is being copied into the
        repository is loaded once that has ended.
        """
        if not poll_secs or time.monotonic() - self._looked < poll_secs:
            return
        try:
            stamps = self._repository.stamps()
        except OSError:  # it is away, as the server's list will say
            return
        before, self._seen, self._looked = self._seen, stamps, time.monotonic()
        for name in self._stamps.keys() - stamps.keys() - self._loads.keys():
            self._begin(name, self._server.unload)
            del self._stamps[name]
        for name, stamp in stamps.items():
            is_new = self._stamps.get(name) != stamp and before.get(name) == stamp
            if is_new and name not in self._loads:
                self._begin(name, self._server.load)
                self._stamps[name] = stamp

    def renew(self, name: str) -> None:
        """Begins to replace the instances of a model that is not being loaded."""
        self._begin(name, self._server.renew, renews=True)
        self._note_renewed()

    def _begin(self, name: str, method: Callable[[str], None], *, renews: bool = False) -> None:
        def run() -> None:
            try:
                method(name)
            except ServerError as error:
                load.error = str(error)

        load = _Load(threading.Thread(target=run, daemon=True), renews)
        load.thread.start()
        self._loads[name] = load

    def end_loads(self) -> list[str]:
        """Notes the loads that have ended; returns the models whose instances were replaced.

        Raises:
            ServerError: new instances do not load.
        """
        replaced = []
        for name, load in list(self._loads.items()):
            if load.thread.is_alive():
                continue
            del self._loads[name]
            if load.renews and load.error:
                raise ServerError(f"new instances of {name} do not load: {load.error}")
            if load.renews:
                replaced.append(name)
            elif _NOT_READ in load.error:
                self._unread[name] = self._server.log.model_error(name)
            else:
                self._unread.pop(name, None)
        return replaced

    def observe(self, wrong: Mapping[Version, str]) -> list[str]:
        """Reads the states of all versions; returns lines of the news.

        Args:
            wrong: version -> what is wrong with its answers.

        Raises:
            ServerError: the server does not answer.
        """
        ready = self._server.ready_versions()
        unloaded, fault = self._unloaded, ""
        try:
            index = self._server.models()
        except ServerError as error:
            fault = f"the server cannot list {self._repository.root}: {error}"
        else:
            unloaded = self._find_unloaded(index, ready)
            gone = ready - {(model["name"], model.get("version", "")) for model in index}
            if gone and not self._server.settings.poll_secs:
                named = ", ".join(map(version_text, sorted(gone)))
                fault = f"{named}: not in {self._repository.root} any more; "
                fault += "answers until the next start"
        self._answered |= bool(ready)
        if self._answered and not ready and not fault:
            fault = "no version answers any more"
        news = dict.fromkeys(sorted(ready - self.ready), "READY")
        for version, why in unloaded.items():
            if self._unloaded.get(version) != why:
                news[version] = f"does not load: {why.rstrip()}"
        news |= {version: why for version, why in wrong.items() if version not in self._wrong}
        lines = [f"  {version_text(version)}: {text}" for version, text in news.items()]
        if fault != self.fault:
            lines.append(f"degraded: {fault}" if fault else f"no longer: {self.fault}")
        self.ready, self.fault, self._unloaded, self._wrong = ready, fault, unloaded, wrong
        self.failures = {**unloaded, **wrong}
        self._note_renewed()
        return lines

    def _note_renewed(self) -> None:
        """Notes that models whose instances are being replaced may not answer."""
        renewed = {name for name, load in self._loads.items() if load.renews}
        why = "new instances are loaded: one does not work"
        self.failures |= {version: why for version in self.ready if version[0] in renewed}

    def _find_unloaded(
        self, index: list[dict[str, Any]], ready: set[Version]
    ) -> dict[Version, str]:
        """Returns the versions that are missed, and why they do not load."""
        newest: dict[str, int] = {}
        unloaded: dict[Version, str] = {}
        known: set[str] = set()
        for name, number in ready:
            newest[name] = max(newest.get(name, 0), int(number))
        for model in index:
            name, number, state = model["name"], model.get("version", ""), model.get("state")
            reason = model.get("reason", "") if state == "UNAVAILABLE" else ""
            if state == "LOADING":  # again, perhaps
                reason = self._unloaded.get((name, number), "")
            known |= {name} if state else set()
            is_missed = not number or int(number) > newest.get(name, -1)
            if reason and reason != _UNLOADED and is_missed and self._is_chosen(name, number):
                unloaded[name, number] = reason
        # The configuration of the others cannot be read, or they have no version.
        for name in sorted((self.listed - known - self._loads.keys()) | self._unread.keys()):
            if (self._repository.root / name).is_dir():
                unloaded[name, ""] = self._unread.get(name) or self._server.log.model_error(name)
        return unloaded

    def _is_chosen(self, name: str, version: str) -> bool:
        """Tells if the policy chooses a version, or cannot be read."""
        try:
            config = self._repository.config_file(name).read_text()
            chosen = served_versions(policy_of(config), self._repository.versions(name))
            return is_handwritten(config) or not version or int(version) in chosen
        except (OSError, UserError):
            return True
