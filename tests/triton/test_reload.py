# SPDX-License-Identifier: Apache-2.0
"""Models come and go while requests flow, and a server that was killed comes back the same."""

import os
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from recsys.data.manifest import file_checksum
from recsys.serve.client.connection import Endpoint, EndpointError
from recsys.serve.server.instances import find_instances
from recsys.serve.versions.repository import ModelRepository
from tests import harness
from tests.tools import needs
from tests.triton.conftest import Server, deploy
from tests.triton.tiny_model import write_version

pytestmark = pytest.mark.triton_server


class Flow:
    """Clients that ask a model over and over, and keep every answer and failure."""

    def __init__(self, endpoints, request, pause_s=0.02):
        self._pause_s = pause_s  # leaves the cores to what is loaded meanwhile
        self.answers = [[] for _ in endpoints]
        self.failures = []
        self._request = request
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._ask, args=pair)
            for pair in zip(endpoints, self.answers, strict=True)
        ]

    def _ask(self, arguments, answers):
        with Endpoint(*arguments) as endpoint:
            while not self._stop.is_set():
                try:
                    answers.append(endpoint.predict(self._request)["logit"])
                except EndpointError as error:
                    self.failures.append(error)
                    return
                time.sleep(self._pause_s)

    def wait_for_more(self, count=5):
        """Waits until each client got some answers more."""
        before = [len(of_client) for of_client in self.answers]
        harness.wait_for(
            lambda: (
                self.failures
                or all(len(a) >= n + count for a, n in zip(self.answers, before, strict=True))
            ),
            "answers",
        )

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        for thread in self._threads:
            thread.join()


def addresses(server, model):
    return [(server.http_url, model)] * 2 + [(server.grpc_url, model, "", "grpc")]


def test_no_request_fails_while_versions_and_models_change(server, generations):
    name = server.serve("changing", generations.checkpoints[0], "--instances=2")
    with Flow(addresses(server, name), generations.request) as flow:
        flow.wait_for_more()
        deploy(generations.checkpoints[1], server.repository, f"--name={name}")
        flow.wait_for_more()
        server.load(name)
        assert server.is_ready(name, 2)
        flow.wait_for_more()
        write_version(server.repository, "other", 1, 2.0)
        server.load("other")
        flow.wait_for_more()
        server.unload("other")
        flow.wait_for_more()
        write_version(server.repository, "failing", 1, 2.0, "raise ValueError('no')")
        with pytest.raises(Exception, match="ValueError: no"):
            server.load("failing")
        flow.wait_for_more()
    assert flow.failures == []
    # Each answer is whole one version's, and the new one's from some request on.
    assert [generations.of(answers) for answers in flow.answers] == [[0, 1]] * 3


def kill_while_staging(repository, *arguments):
    """Kills a deployer once it writes its version; the staging folder stays behind."""
    program = harness.REPOSITORY / "triton" / "deployer.py"
    arguments = (f"--repository={repository}", "--verify=100000", *arguments)
    with harness.started_forked(program, *arguments) as process:
        exists = ModelRepository(repository).staging().exists
        harness.wait_for(exists, "a version in the making", process=process)
        process.send_signal(signal.SIGKILL)
    assert ModelRepository(repository).staging().exists()


def checksums(folder):
    """Of all files but Python's cache of model.py, which the server writes where it may."""
    files = [f for f in folder.rglob("*") if f.is_file() and f.parent.name != "__pycache__"]
    return {str(f.relative_to(folder)): file_checksum(f) for f in files}


@needs("compiled Triton backend")
def test_a_killed_server_comes_back_with_the_same_answers(generations, tmp_path):
    """And removes what a deployer that was killed meanwhile has left."""
    repository = tmp_path / "models"
    deploy(generations.checkpoints[0], repository, "--backend=native")
    write_version(repository, "tiny", 1, 2.0)  # has a process of its own
    before = checksums(repository)
    with Server(tmp_path) as server:
        stubs = [instance.pid for instance in find_instances(server.pid)]
        assert stubs
        with Flow(addresses(server, "dlrm"), generations.request) as flow:
            flow.wait_for_more()
            os.kill(server.pid, signal.SIGKILL)
            harness.wait_for(lambda: server.poll() is not None, "the end of the server")
            harness.wait_for(lambda: len(flow.failures) == 3, "three errors")  # none hangs
        prefix = server._shm_prefix
    harness.wait_for(lambda: not any(_runs(pid) for pid in stubs), "the end of the instances")
    assert not list(Path("/dev/shm").glob(f"{prefix}*"))
    kill_while_staging(repository, f"--checkpoint={generations.checkpoints[1]}")
    assert checksums(repository) == before
    with Server(tmp_path) as server, server.endpoint("dlrm") as endpoint:
        assert {model["name"]: model["version"] for model in server.models()} == {
            "dlrm": "1",
            "tiny": "1",
        }
        again = endpoint.predict(generations.request)["logit"]
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["models"]
    for of_client in flow.answers:
        for answer in of_client:
            # Requests that arrive together are one batch, whose sums may round otherwise.
            np.testing.assert_allclose(answer, again, rtol=0, atol=1e-5)


def _runs(pid):
    try:
        return b"triton_python_backend_stub" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False
