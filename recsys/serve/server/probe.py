# SPDX-License-Identifier: Apache-2.0
"""Sends a server rows whose answers were recorded at deployment, and compares the answers.

A server calls a model ready even if an instance hangs, or its weights were damaged in memory.
"""

import dataclasses
import json
import math
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from recsys.serve.client.connection import (
    Endpoint,
    EndpointError,
    OverloadedError,
    keep_shared,
    request_from_json,
)
from recsys.serve.client.requests import Arrays
from recsys.serve.server.install import ServerError
from recsys.serve.server.process import TritonServer, Version, version_text

PROBE_FILE = "probe.json"
SILENCE_S = 30.0
"""Seconds without an answer after which a server or version counts as hung."""
_NO_ANSWER = ("", "UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED")
_threads = ThreadPoolExecutor(256, "probe", keep_shared)
"""Threads that ask: as many as questions were under way at a time, for all servers."""


def write_probe(folder: Path, request: Arrays, answer: Arrays, tolerance: float) -> None:
    """Records a request of one row, arrays [1, ...], and its answer.

    Numbers of later answers may differ by the tolerance, relatively if above 1.
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
class Probe:
    """The probe of one version.

    Attributes:
        recorded: contents of the file, read once because the repository may become unavailable.
        question: the last one, which may be under way.
        sent: time of the last question.
        answered: time of the last answer, right or wrong.
        right: time of the last right answer.
        fault: why the last answer was not right; empty if it was.
        failures: number of questions with a wrong answer or none.
        executions: executions of the version at the last look.
        alive: last time at which no question was waiting, or the version answered other requests.
    """

    file: Path
    recorded: dict[str, Any] = dataclasses.field(default_factory=dict)
    question: "Future[None] | None" = None
    sent: float = -math.inf
    answered: float = -math.inf
    right: float = dataclasses.field(default_factory=time.monotonic)
    fault: str = ""
    failures: int = 0
    executions: int = -1
    alive: float = -math.inf

    def ask(self, url: str, version: Version) -> None:
        """Sends the recorded row and compares the answer."""
        failed, answered = True, True
        try:
            self.recorded = self.recorded or json.loads(self.file.read_text())
            with Endpoint(url, *version, timeout_s=SILENCE_S) as endpoint:
                inputs = json.dumps(self.recorded["inputs"])
                answer = endpoint.send(request_from_json(endpoint.signature, inputs))
            self.fault = _difference(answer, self.recorded["outputs"], self.recorded["tolerance"])
            failed = bool(self.fault)
            self.right = self.right if failed else time.monotonic()
        except OverloadedError:
            failed = False  # the version answers other requests
        except EndpointError as error:
            answered = error.status not in _NO_ANSWER
            if answered:
                self.fault = f"its recorded row is refused: {error}"
        except (OSError, ValueError, LookupError, TypeError) as error:
            self.fault = f"{self.file} cannot be sent: {error}"
        finally:
            self.failures += failed
            self.answered = time.monotonic() if answered else self.answered


class Prober:
    """Sends each version its recorded row again and again, in threads.

    Args:
        every_s: seconds between two questions; 0 sends none.

    Attributes:
        probes: probes of the versions that have a recorded row.
    """

    def __init__(self, every_s: float) -> None:
        self.probes: dict[Version, Probe] = {}
        self._every_s = every_s

    def look(self, server: TritonServer, versions: Mapping[Version, int]) -> None:
        """Asks the versions whose turn it is, given the executions of each.

        Raises:
            ServerError: a version no longer answers anything.
        """
        known, self.probes = self.probes, {}
        for version in versions if self._every_s else ():
            file = server.settings.repository.joinpath(*version, PROBE_FILE)
            if version in known or file.is_file():
                self.probes[version] = known.get(version) or Probe(file)
        for version, probe in self.probes.items():
            now, executions = time.monotonic(), versions[version]
            if probe.answered >= probe.sent or executions != probe.executions:
                probe.alive, probe.executions = now, executions
            if now - probe.alive > SILENCE_S:
                raise ServerError(f"{version_text(version)} did not answer for {SILENCE_S:.0f} s")
            is_asked = probe.question is not None and not probe.question.done()
            if not is_asked and now - probe.sent >= self._every_s:
                probe.question = _threads.submit(probe.ask, server.url, version)
                probe.sent = now


def _difference(answer: Arrays, recorded: dict[str, Any], tolerance: float) -> str:
    """Describes the first number that differs; items of near scores may swap places."""
    for name, values in recorded.items():
        expected = np.asarray(values)
        if expected.dtype.kind == "f" and not np.allclose(
            answer[name], expected, rtol=tolerance, atol=tolerance
        ):
            return f"its recorded row gets {name} {answer[name].tolist()} instead of {values}"
    return ""
