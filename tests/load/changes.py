# SPDX-License-Identifier: Apache-2.0
"""Changes the models of a running server and kills its processes, as planned."""

import contextlib
import dataclasses
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from recsys.serve.server.instances import find_instances
from tests import harness
from tests.load.models import GENERATIONS, Model
from tests.load.schedule import APPLY, DEPLOY, KILL_INSTANCE, KILL_SERVER, REMOVE, ROLL_BACK
from tests.triton.test_supervisor import Served

_PATIENCE_S = 120.0
"""Longest time until a change is served, or until a killed process is replaced."""
_POLL_S = 0.2


@dataclasses.dataclass(frozen=True, slots=True)
class Event:
    """Something that was done to the server.

    Attributes:
        start: seconds from the start; `end` likewise, when the server said that it was over.
        model: that it concerned; empty for all.
    """

    kind: str
    start: float
    end: float
    model: str
    text: str


class Changes:
    """What happens to a server.

    Args:
        served: the running server, with all models.
        repository: its models.
        seed: draws what is changed and killed.

    Attributes:
        events: what was done.
        faults: what did not work.
    """

    def __init__(self, served: Served, repository: Path, models: Sequence[Model], seed: int):
        self.events: list[Event] = []
        self.faults: list[str] = []
        self._served, self._repository, self._models = served, repository, models
        self._random = random.Random(seed)
        # Versions made from a delta, or copied: only these can be extended by a delta.
        self._whole = {model.name: {1: 0} for model in models}
        self._turn = 0

    def run(
        self,
        plan: Sequence[tuple[float, str]],
        began: float,
        last: float,
        stop: threading.Event,
    ) -> None:
        """Does what is planned, each when it is due and what came before is over.

        Args:
            plan: (seconds from the start, kind) of each.
            began: the start, as `time.perf_counter` tells it.
            last: nothing begins later, or its end would not be seen.
            stop: ends it before.
        """
        actions = {
            DEPLOY: self._deploy,
            APPLY: self._apply,
            ROLL_BACK: self._roll_back,
            REMOVE: self._remove,
            KILL_INSTANCE: self._kill_instance,
            KILL_SERVER: self._kill_server,
        }
        for due, kind in plan:
            if stop.wait(max(0.0, began + due - time.perf_counter())):
                return
            if (start := time.perf_counter() - began) > last:
                return
            try:
                model, text = actions[kind]()
            except Exception as error:  # noqa: BLE001  (whatever it is, it is a fault)
                model, text = "", f"{type(error).__name__}: {error}"
                self.faults.append(f"{kind} at {start:.1f} s: {text}")
            event = Event(kind, start, time.perf_counter() - began, model, text)
            self.events.append(event)
            took_s = event.end - event.start
            print(f"{start:.1f} s: {kind}: {model} {text} ({took_s:.1f} s)", flush=True)

    def _next(self) -> Model:
        self._turn += 1
        return self._models[self._turn % len(self._models)]

    def _versions(self, model: Model) -> list[int]:
        folders = (self._repository / model.name).iterdir()
        return sorted(int(folder.name) for folder in folders if folder.name.isdecimal())

    def _served_versions(self, model: Model) -> list[int]:
        with contextlib.suppress(OSError):
            served: list[int] = self._served.health()[1].get("models", {}).get(model.name, [])
            return served
        return []

    def _wait_for(self, model: Model, version: int) -> None:
        wait_for(
            lambda: self._served_versions(model) == [version], f"version {version} of {model.name}"
        )

    def _command(self, *flags: str) -> str:
        """Runs `recsys-recipes deploy`; returns its output."""
        command = (sys.executable, "-W", "ignore", "-m", "recsys_recipes", "deploy")
        done = subprocess.run(
            # Where a machine serves, deployments leave it its cores.
            ["nice", "-n", "19", *command, f"--repository={self._repository}", *flags],
            cwd=harness.REPOSITORY,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=harness.PATIENCE_S,
            check=False,
        )
        assert done.returncode == 0, done.stdout
        return done.stdout

    def _deploy(self) -> tuple[str, str]:
        model = self._next()
        generation, version = self._random.randrange(GENERATIONS), self._versions(model)[-1] + 1
        model.generation_of[version] = generation  # before the server answers with it
        checkpoint = model.checkpoints[generation]
        self._command(f"--checkpoint={checkpoint}", *model.flags(generation))
        self._wait_for(model, version)
        return model.name, f"version {version}"

    def _apply(self) -> tuple[str, str]:
        model = self._next()
        if not (possible := self._possible(model)):
            self._clear(model)
            possible = self._possible(model)
        generation, version = possible[0], self._versions(model)[-1] + 1
        model.generation_of[version] = generation
        self._whole[model.name][version] = generation
        self._command(f"--name={model.name}", f"--apply={model.deltas[generation - 1]}")
        self._wait_for(model, version)
        return model.name, f"version {version}"

    def _possible(self, model: Model) -> list[int]:
        """Returns the generations whose earlier one is here, and which are not."""
        here = {*self._whole[model.name].values()}
        return [g for g in range(1, GENERATIONS) if g - 1 in here and g not in here]

    def _roll_back(self) -> tuple[str, str]:
        served = {model.name: self._served_versions(model) for model in self._models}
        possible = [m for m in self._models if self._versions(m)[:1] < served[m.name]]
        if not possible:
            return self._deploy()
        model = self._random.choice(possible)
        said = self._command(f"--name={model.name}", "--rollback")
        found = re.search(r"-> (\d+)\b", said)
        assert found, said
        self._wait_for(model, int(found[1]))
        return model.name, f"version {found[1]}"

    def _remove(self) -> tuple[str, str]:
        model = self._next()
        return model.name, self._clear(model)

    def _clear(self, model: Model) -> str:
        """Removes versions that are not served, but neither the first nor the latest."""
        _, *middle = self._versions(model)
        served = self._served_versions(model)
        removed = [version for version in middle[:-1] if version not in served]
        for version in removed:
            shutil.rmtree(self._repository / model.name / str(version))
            self._whole[model.name].pop(version, None)
        return f"versions {removed}"

    def _kill_instance(self) -> tuple[str, str]:
        served = {model.name: self._served_versions(model) for model in self._models}
        instance = self._random.choice(
            [  # not one of a version that is being unloaded
                each
                for each in find_instances(self._served.server_pid)
                if each.name and not each.fault
                if int(each.version_folder.name) in served[each.model]
            ]
        )
        restarts = self._restarts()
        os.kill(instance.pid, signal.SIGKILL)
        self._wait_until_replaced(restarts)
        return instance.model, f"{instance.name}, process {instance.pid}"

    def _kill_server(self) -> tuple[str, str]:
        pid, restarts = self._served.server_pid, self._restarts()
        os.kill(pid, signal.SIGKILL)
        self._wait_until_replaced(restarts)
        return "", f"process {pid}"

    def _restarts(self) -> int:
        return len(self._served.health()[1]["restarts"])

    def _wait_until_replaced(self, restarts: int) -> None:
        def replaced() -> bool:
            with contextlib.suppress(OSError):
                code, body = self._served.health()
                of_all = len(body.get("models", {})) == len(self._models)
                return code == 200 and body["status"] == "ok" and of_all and (
                    len(body["restarts"]) > restarts
                )  # fmt: skip
            return False

        wait_for(replaced, f"a restart: {self._served.said[-5:]}")


def wait_for(condition: Callable[[], bool], what: str) -> None:
    """Waits until a condition holds, without keeping a core busy."""
    deadline = time.monotonic() + _PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"waited {_PATIENCE_S:.0f} s for {what}"
        time.sleep(_POLL_S)
