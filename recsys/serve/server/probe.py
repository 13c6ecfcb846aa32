# SPDX-License-Identifier: Apache-2.0
"""Asks a server rows whose answers were recorded at deployment.

A server calls a model ready whose instance hangs, or whose weights were damaged in memory.
"""

import dataclasses
import json
import math
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from recsys.serve.client.connection import (
    Endpoint,
    EndpointError,
    OverloadedError,
    request_from_json,
)
from recsys.serve.client.requests import Arrays
from recsys.serve.server.install import ServerError
from recsys.serve.server.process import TritonServer, Version, version_text

PROBE_FILE = "probe.json"
SILENCE_S = 30.0
"""A server or version that answers nothing for this long stands still."""
_NO_ANSWER = ("", "UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED")


def write_probe(folder: Path, request: Arrays, answer: Arrays, tolerance: float) -> None:
    """Records a request, [1, ...] each, and its answer.

    A number of a later answer may differ by the tolerance, relatively where it is above 1.
    """
    sides = {"inputs": request, "outputs": answer}
    values: dict[str, Any] = {
        side: {name: array.tolist() for name, array in arrays.items()}
        for side, arrays in sides.items()
    }
    (folder / PROBE_FILE).write_text(
        json.dumps(values | {"tolerance": tolerance}, default=bytes.decode)
    )


@dataclasses.dataclass(slots=True)
class _Probe:
    """The questions to one version.

    Attributes:
        recorded: what the file holds, read once: the repository may be away later.
        thread: of the last one.
        sent: its time.
        asked: time since which none was answered; None if the last one was.
        executions: of the version at that time: a busy one answers others.
        is_silent: it answered nobody for too long.
        right: time of the last answer that was right.
        fault: why the last answer was not right; empty if it was.
        failures: number of questions that got a wrong answer or none.
    """

    file: Path
    recorded: dict[str, Any] = dataclasses.field(default_factory=dict)
    thread: threading.Thread | None = None
    sent: float = -math.inf
    asked: float | None = None
    executions: int = 0
    is_silent: bool = False
    right: float = dataclasses.field(default_factory=time.monotonic)
    fault: str = ""
    failures: int = 0

    def ask(self, server: TritonServer, version: Version) -> None:
        """Sends the recorded row and compares the answer."""
        failed = True
        try:
            executions = server.executions(*version)
            if self.asked is None or executions != self.executions:
                self.asked, self.executions = time.monotonic(), executions
            elif time.monotonic() - self.asked > SILENCE_S:
                self.is_silent = True
            self.recorded = self.recorded or json.loads(self.file.read_text())
            with Endpoint(server.url, *version, timeout_s=SILENCE_S) as endpoint:
                inputs = json.dumps(self.recorded["inputs"])
                answer = endpoint.send(request_from_json(endpoint.signature, inputs))
            self.fault = _difference(answer, self.recorded["outputs"], self.recorded["tolerance"])
            self.asked, failed = None, bool(self.fault)
            self.right = self.right if failed else time.monotonic()
        except OverloadedError:
            self.asked, failed = None, False  # it answers others
        except ServerError:
            pass  # it goes, or the server is slow
        except EndpointError as error:
            if error.status not in _NO_ANSWER:
                self.fault, self.asked = f"its recorded row is refused: {error}", None
        except (OSError, ValueError, LookupError, TypeError) as error:
            self.fault, self.asked = f"{self.file} cannot be asked: {error}", None
        finally:
            self.failures += failed


class Prober:
    """Asks each version its recorded row again and again, in threads.

    Args:
        every_s: time between two questions; 0 asks none.
    """

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self._probes: dict[Version, _Probe] = {}

    def look(self, server: TritonServer, versions: Iterable[Version]) -> None:
        """Asks the versions whose turn it is.

        Raises:
            ServerError: one of them answers nobody any more.
        """
        known, self._probes = self._probes, {}
        for version in versions if self._every_s else ():
            file = server.settings.repository.joinpath(*version, PROBE_FILE)
            if version in known or file.is_file():
                self._probes[version] = known.get(version) or _Probe(file)
        for version, probe in self._probes.items():
            if probe.is_silent:
                raise ServerError(f"{version_text(version)} answered nothing for {SILENCE_S:.0f} s")
            is_asked = probe.thread is not None and probe.thread.is_alive()
            if not is_asked and time.monotonic() - probe.sent >= self._every_s:
                call = (server, version)
                probe.thread = threading.Thread(target=probe.ask, args=call, daemon=True)
                probe.thread.start()
                probe.sent = time.monotonic()

    @property
    def faults(self) -> dict[Version, str]:
        """Versions whose last answer was wrong -> the difference."""
        return {version: probe.fault for version, probe in self._probes.items() if probe.fault}

    @property
    def failures(self) -> dict[Version, int]:
        """Versions -> number of questions that got a wrong answer or none."""
        return {version: probe.failures for version, probe in self._probes.items()}

    @property
    def right(self) -> dict[Version, float]:
        """Versions -> time of the last right answer, or first look."""
        return {version: probe.right for version, probe in self._probes.items()}


def _difference(answer: Arrays, recorded: dict[str, Any], tolerance: float) -> str:
    """Returns the first number that differs; near items may change places."""
    for name, values in recorded.items():
        expected = np.asarray(values)
        if expected.dtype.kind == "f" and not np.allclose(
            answer[name], expected, rtol=tolerance, atol=tolerance
        ):
            return f"its recorded row gets {name} {answer[name].tolist()} instead of {values}"
    return ""
