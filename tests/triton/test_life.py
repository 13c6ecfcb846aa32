# SPDX-License-Identifier: Apache-2.0
"""The life of a served model: deployments, pins, kills and faults of its surroundings, at random.

`RECIPES_LIFE_EVENTS` sets how many there are; an hour has about a hundred.
"""

import contextlib
import os
import random
import re
import resource
import signal
import socket
import time

import numpy as np
import pytest

from recsys.serve.client.connection import Endpoint, EndpointError
from recsys.serve.server.instances import find_instances
from recsys.serve.versions.repository import ModelRepository
from tests import harness
from tests.triton.conftest import deploy
from tests.triton.test_reload import Flow
from tests.triton.test_supervisor import serving
from tests.triton.tiny_model import write_version

pytestmark = [pytest.mark.triton_server, pytest.mark.release]

OUTAGE_S = 240
"""Longest time without an answer, the pause before a restart included, on a busy machine."""


class Clients(Flow):
    """Clients that go on after a failure; they keep the time and the model of each answer."""

    def __init__(self, endpoints, generations):
        super().__init__(endpoints, generations.request)
        self._logits = generations.logits

    def _ask(self, arguments, answers):
        while not self._stop.is_set():
            with (
                contextlib.suppress(EndpointError),
                Endpoint(*arguments, timeout_s=5) as endpoint,
            ):
                while not self._stop.is_set():
                    logits = endpoint.predict(self._request)["logit"]
                    right = [np.allclose(logits, known, atol=1e-6) for known in self._logits]
                    answers.append((time.monotonic(), right.index(True) if any(right) else None))
                    time.sleep(0.05)
            time.sleep(0.1)

    def outage(self, since):
        """Returns the longest time of a client without an answer."""
        times = [[since, *(when for when, _ in a if when > since)] for a in self.answers]
        return max(np.diff(of_client).max(initial=0) for of_client in times)


class Life:
    """A server and what happens to it.

    Attributes:
        version: the served one.
        number_of: version -> number of its model among the generations.
    """

    def __init__(self, served, repository, generations, log, port):
        self._served, self._repository, self._log, self._port = served, repository, log, port
        self._checkpoints = generations.checkpoints
        self._random = random.Random(0)  # the same events each time
        self._pinned = False
        self.version, self.number_of = 2, {1: 0, 2: 1}

    def _deployer(self, *arguments, status=0):
        flags = f"--repository={self._repository}", *arguments
        return harness.forked("triton/deployer.py", *flags, status=status)

    def _deployment(self):
        """Returns the flags of one."""
        number = self._random.randrange(len(self._checkpoints))
        self.number_of[max(self.number_of) + 1] = number
        return f"--checkpoint={self._checkpoints[number]}", "--instances=2"

    def deploy(self):
        self._deployer(*self._deployment())
        if not self._pinned:
            self.version = max(self.number_of)

    def pin(self):
        """While a deployment is under way, which must not undo it."""
        self.version, self._pinned = self._random.choice([*self.number_of][-3:]), True
        pin = "--name=dlrm", f"--version_policy=specific:{self.version}"
        flags = f"--repository={self._repository}", *self._deployment()
        with harness.started_forked("triton/deployer.py", *flags) as process:
            staged = ModelRepository(self._repository).staging().exists
            harness.wait_for(staged, "a version in the making", process=process)
            harness.wait_for(lambda: self._deployer(*pin, status=None).returncode == 0, "a pin")
            assert process.wait(300) == 0

    def unpin(self):
        self._deployer("--name=dlrm", "--version_policy=latest:1")
        self.version, self._pinned = max(self.number_of), False

    def roll_back(self):
        self.unpin()
        said = self._deployer("--name=dlrm", "--rollback").stdout
        self.version = int(re.search(r"-> (\d+)\b", said)[1])

    def move_log(self):
        with contextlib.suppress(FileNotFoundError):  # it was, since the last start
            self._log.rename(self._log.with_name("moved"))

    def kill_server(self):
        os.kill(self._served.server_pid, signal.SIGKILL)

    def stop_server(self):
        os.kill(self._served.server_pid, signal.SIGSTOP)

    def _instance(self):
        """Returns the process id of one that serves."""
        instances = find_instances(self._served.server_pid)
        version = str(self.version)
        return next(
            i.pid for i in instances if (i.model, i.version_folder.name) == ("dlrm", version)
        )

    def kill_instance(self):
        os.kill(self._instance(), signal.SIGKILL)

    def stop_instance(self):
        os.kill(self._instance(), signal.SIGSTOP)

    def hold_port(self):
        self.kill_server()
        with socket.socket() as other:
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)

            def bound():
                with contextlib.suppress(OSError):
                    other.bind(("127.0.0.1", self._port))
                    return True

            harness.wait_for(bound, "the server's port")
            other.listen()
            self._served.wait_for(f"--http_port {self._port}")

    def take_repository_away(self):
        away = self._repository.with_name("away")
        self._repository.rename(away)
        self.kill_server()
        self._served.wait_for("--repository", self._repository)
        away.rename(self._repository)

    def take_descriptors(self):
        self._limit(resource.RLIMIT_NOFILE, 3)

    def take_memory(self):
        """A thread cannot be started then."""
        self._limit(resource.RLIMIT_AS, 1 << 20)

    def _limit(self, what, most):
        supervisor = self._served.pid
        normal = resource.prlimit(supervisor, what)
        resource.prlimit(supervisor, what, (most, normal[1]))
        self._served.wait_for("cannot watch the server at the moment")
        resource.prlimit(supervisor, what, normal)


RESTARTING = {
    Life.kill_server, Life.stop_server, Life.hold_port, Life.take_repository_away,
}  # fmt: skip
OTHERS = {
    Life.kill_instance, Life.stop_instance,
    Life.deploy, Life.pin, Life.unpin, Life.roll_back, Life.move_log, Life.take_descriptors,
    Life.take_memory,
}  # fmt: skip


@pytest.mark.timeout(3 * 3600)
def test_a_life_has_no_wrong_answer_and_goes_on_by_itself(generations, tmp_path):
    repository, log, port = tmp_path / "models", tmp_path / "log", harness.free_port()
    write_version(repository, "broken", 1, 2.0, "raise ValueError('no')")
    for checkpoint in generations.checkpoints[:2]:
        deploy(checkpoint, repository, "--instances=2")
    flags = "--poll_secs=1", f"--http_port={port}", f"--log_file={log}", "--max_restarts=1000"
    with (
        serving(repository, *flags) as served,
        Clients([(served.http, "dlrm")] * 3, generations) as clients,
    ):
        life = Life(served, repository, generations, log, port)

        def serves():
            with contextlib.suppress(OSError):
                code, body = served.health("/dlrm")
                return (
                    code == 200
                    and body["models"]["dlrm"] == [life.version]
                    and (event not in RESTARTING or served.server_pid != server)
                    and all(a and a[-1][0] > done for a in clients.answers)
                    and {a[-1][1] for a in clients.answers} == {life.number_of[life.version]}
                )

        left = []
        for _ in range(int(os.environ.get("RECIPES_LIFE_EVENTS", "20"))):
            if not left:
                left = sorted(RESTARTING | OTHERS, key=lambda event: event.__name__)
                random.Random(life.version).shuffle(left)
            event = left.pop()
            server = served.server_pid
            served.said.clear()
            began = time.monotonic()
            event(life)
            done = time.monotonic()
            harness.wait_for(serves, f"version {life.version} after {event.__name__}", OUTAGE_S)
            outage = clients.outage(began)
            print(f"{event.__name__}: {outage:.1f} s without an answer", flush=True)
            assert outage < OUTAGE_S
        assert served.health("/broken")[0] == 503
    answers = [number for of_client in clients.answers for _, number in of_client]
    assert None not in answers
    print(f"{len(answers)} answers, none of them wrong")
