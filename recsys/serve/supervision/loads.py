# SPDX-License-Identifier: Apache-2.0
"""Loads of models into a running server: once for each change of their folders.

Triton's own polling loads a version that fails again at each look, and meanwhile looks for nothing
else. Here each model loads in a thread of its own.
"""

import dataclasses
import threading
import time
from collections.abc import Callable, Iterator, Set

from recsys.serve.repository import ModelRepository
from recsys.serve.server.install import ServerError
from recsys.serve.server.process import TritonServer

_NOT_READ = "failed to poll"
"""Words of the server about a model whose configuration cannot be read."""


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


class Loads:
    """Loads models when they change, or when they need new instances.

    Attributes:
        refused: models whose configuration could not be read, with the reason.
    """

    def __init__(self, server: TritonServer) -> None:
        self.refused: dict[str, str] = {}
        self._server = server
        self._repository = ModelRepository(server.settings.repository)
        self._stamps = server.stamps
        self._seen = dict(server.stamps)
        self._loads: dict[str, _Load] = {}
        self._looked = time.monotonic()

    def look(self, poll_secs: int) -> None:
        """Begins to load what has changed, where the last look is long enough ago.

        Two looks in a row must find the same files: a model that is being copied into the
        repository is loaded once that has ended.

        Raises:
            OSError: the repository cannot be listed.
        """
        if not poll_secs or time.monotonic() - self._looked < poll_secs:
            return
        stamps = self._repository.stamps()
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

    @property
    def names(self) -> set[str]:
        """The models that are to be served and for which no load is under way."""
        return {*(self._server.settings.models or self._stamps)} - self._loads.keys()

    @property
    def models(self) -> Set[str]:
        """The models for which a load is under way."""
        return self._loads.keys()

    def renewing(self) -> dict[str, float]:
        """Returns models whose instances are being replaced, and for how many seconds."""
        now = time.monotonic()
        return {name: now - load.began for name, load in self._loads.items() if load.renews}

    def ended(self) -> Iterator[str]:
        """Notes the loads that have ended; yields models whose instances were replaced."""
        for name, load in list(self._loads.items()):
            if load.thread.is_alive():
                continue
            del self._loads[name]
            if load.renews and not load.error:
                yield name
            elif load.renews:
                raise ServerError(f"new instances of {name} do not load: {load.error}")
            elif _NOT_READ in load.error:
                self.refused[name] = self._server.log.model_error(name)
            else:
                self.refused.pop(name, None)

    def _begin(self, name: str, method: Callable[[str], None], *, renews: bool = False) -> None:
        def run() -> None:
            try:
                method(name)
            except ServerError as error:
                load.error = str(error)

        load = _Load(threading.Thread(target=run, daemon=True), renews)
        load.thread.start()
        self._loads[name] = load
