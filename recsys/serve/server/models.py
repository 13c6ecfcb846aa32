# SPDX-License-Identifier: Apache-2.0
"""Models of a running server: loads what has changed, and finds out which versions answer.

Triton's own polling loads a failing version again at each look, and looks for nothing else
meanwhile. Here each model loads once for each change of its folder, in a thread of its own.
"""

import dataclasses
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from recsys.errors import UserError
from recsys.serve.server.install import ServerError
from recsys.serve.server.instances import Instance
from recsys.serve.server.process import TritonServer, Version, version_text
from recsys.serve.versions.policy import is_handwritten, policy_of, served_versions
from recsys.serve.versions.repository import ModelRepository

_NOT_READ = "failed to poll"
"""Message of the server about a model whose configuration cannot be read."""
_UNLOADED = "unloaded"
"""Reason that the server gives for a version that another one replaced."""


@dataclasses.dataclass(slots=True)
class _Load:
    """A load under way.

    Attributes:
        replaced: instances that it replaces although their files did not change.
        error: why it failed; empty unless it has.
    """

    thread: threading.Thread
    replaced: Sequence[Instance]
    began: float = dataclasses.field(default_factory=time.monotonic)
    error: str = ""


class Models:
    """The models of one server.

    Attributes:
        ready: versions that answer -> number of executions that they have completed.
        unloaded: versions that should answer -> why they do not load.
        failures: versions -> why they do not answer, or answer wrongly.
        fault: what is wrong with the repository, or that no version answers; empty if neither.
    """

    def __init__(self, server: TritonServer) -> None:
        self.ready: dict[Version, int] = {}
        self.unloaded: dict[Version, str] = {}
        self.failures: dict[Version, str] = {}
        self.fault = ""
        self._server = server
        self._repository = ModelRepository(server.settings.repository)
        self._stamps, self._seen = dict(server.stamps), dict(server.stamps)
        self._looked = time.monotonic()
        self._loads: dict[str, _Load] = {}
        self._unread: dict[str, str] = {}
        self._answered = False

    @property
    def listed(self) -> frozenset[str]:
        """The models that should be served."""
        return frozenset(self._server.settings.models or self._stamps)

    @property
    def loading(self) -> dict[str, float]:
        """The models that are being loaded, and for how many seconds."""
        return {name: time.monotonic() - load.began for name, load in self._loads.items()}

    def is_ready(self, instance: Instance) -> bool:
        """Returns whether the server calls the version of an instance ready."""
        folder = instance.version_folder.name
        return any(
            model == instance.model and (number == folder or not folder.isdecimal())
            for model, number in self.ready
        )

    def look(self, poll_secs: float) -> None:
        """Begins to load what has changed, if the last look is long enough ago.

        Two looks in a row must find the same files: a model that is being copied into the
        repository is loaded once the copy is complete.
        """
        if not poll_secs or time.monotonic() - self._looked < poll_secs:
            return
        try:
            stamps = self._repository.stamps()
        except OSError:  # the repository is unavailable, as the server's list will say
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

    def renew(self, name: str, instances: Sequence[Instance]) -> None:
        """Begins to replace the instances of a model, unless it is being loaded."""
        self._begin(name, self._server.renew, instances)
        self._note_renewed()

    def _begin(
        self, name: str, method: Callable[[str], None], replaced: Sequence[Instance] = ()
    ) -> None:
        def run() -> None:
            try:
                method(name)
            except ServerError as error:
                load.error = str(error)

        load = _Load(threading.Thread(target=run, daemon=True), replaced)
        load.thread.start()
        self._loads[name] = load

    def end_loads(self) -> list[Instance]:
        """Records the loads that have ended; returns the instances that they replaced.

        Raises:
            ServerError: new instances do not load.
        """
        replaced: list[Instance] = []
        for name, load in list(self._loads.items()):
            if load.thread.is_alive():
                continue
            del self._loads[name]
            if load.replaced and load.error:
                raise ServerError(f"new instances of {name} cannot be loaded: {load.error}")
            replaced += load.replaced
            if _NOT_READ in load.error:
                self._unread[name] = self._server.log.model_error(name)
            elif not load.replaced:
                self._unread.pop(name, None)
        return replaced

    def observe(self, wrong: Mapping[Version, str]) -> None:
        """Reads the states of all versions.

        Args:
            wrong: version -> what is wrong with its answers.

        Raises:
            ServerError: the server does not answer.
        """
        self.ready, self.fault = self._server.ready_versions(), ""
        try:
            index = self._server.models()
        except ServerError as error:
            self.fault = f"the server cannot list {self._repository.root}: {error}"
        else:
            self.unloaded = self._find_unloaded(index)
            gone = self.ready.keys() - {(m["name"], m.get("version", "")) for m in index}
            if gone and not self._server.settings.poll_secs:
                named = ", ".join(map(version_text, sorted(gone)))
                self.fault = f"{named}: no longer in {self._repository.root}; "
                self.fault += "answers until the next start"
        self._answered |= bool(self.ready)
        if self._answered and not self.ready and not self.fault:
            self.fault = "no version answers any more"
        self.failures = {**self.unloaded, **wrong}
        self._note_renewed()

    def _note_renewed(self) -> None:
        """Records that models whose instances are being replaced may not answer."""
        renewed = {name for name, load in self._loads.items() if load.replaced}
        why = "loading new instances, because one does not work"
        self.failures |= {version: why for version in self.ready if version[0] in renewed}

    def _find_unloaded(self, index: list[dict[str, Any]]) -> dict[Version, str]:
        """Returns the versions that should answer but do not load, and why."""
        newest = {name: int(n) for name, n in sorted(self.ready, key=lambda v: int(v[1]))}
        known = {model["name"] for model in index if model.get("state")}
        unloaded = dict[Version, str]()
        for model in index:
            name, number, state = model["name"], model.get("version", ""), model.get("state")
            reason = model.get("reason", "") if state == "UNAVAILABLE" else ""
            if state == "LOADING":  # possibly again
                reason = self.unloaded.get((name, number), "")
            is_missed = not number or int(number) > newest.get(name, -1)
            if reason and reason != _UNLOADED and is_missed and self._is_chosen(name, number):
                unloaded[name, number] = reason
        # The configuration of the other models cannot be read, or they have no version.
        for name in sorted((self.listed - known - self._loads.keys()) | self._unread.keys()):
            if (self._repository.root / name).is_dir():
                unloaded[name, ""] = self._unread.get(name) or self._server.log.model_error(name)
        return unloaded

    def _is_chosen(self, name: str, version: str) -> bool:
        """Returns whether the policy chooses a version, or cannot be read."""
        try:
            config = self._repository.config_file(name).read_text()
            chosen = served_versions(policy_of(config), self._repository.versions(name))
            return is_handwritten(config) or not version or int(version) in chosen
        except (OSError, UserError):
            return True
