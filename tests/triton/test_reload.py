# SPDX-License-Identifier: Apache-2.0
"""Models come and go while requests flow, and a server that was killed comes back the same."""

import os
import re
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from dlrm.serve.export import DlrmExport
from recsys.data.manifest import file_checksum
from recsys.serve.client.connection import Endpoint, EndpointError
from recsys.serve.repository import ModelRepository
from recsys.serve.server.install import ServerError
from recsys.serve.server.memory import instance_memory
from recsys.serve.server.process import ServerSettings, TritonServer
from tests import harness
from tests.recsys.serve.checkpoints import dlrm_checkpoint
from tests.triton.conftest import deploy, run
from tests.triton.tiny_model import write_version

pytestmark = pytest.mark.triton_server

TIMEOUT_S = 300


def wait_until(condition):
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


class Flow:
    """Clients that ask a model over and over, and keep every answer and failure."""

    def __init__(self, endpoints, request):
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
                time.sleep(0.02)  # leaves the cores to what is loaded meanwhile

    def wait_for_more(self, count=5):
        """Waits until each client got some answers more."""
        before = [len(of_client) for of_client in self.answers]
        wait_until(
            lambda: (
                self.failures
                or all(len(a) >= n + count for a, n in zip(self.answers, before, strict=True))
            )
        )

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        for thread in self._threads:
            thread.join()


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoints")
    return [
        dlrm_checkpoint(folder / str(i), top_mlp_sizes=[width, 1])[0]
        for i, width in enumerate((16, 24))
    ]


def addresses(server):
    return [(server.grpc_url, "dlrm")] * 2 + [(server.http_url, "dlrm", "", "http")]


def test_no_request_fails_while_versions_and_models_change(checkpoints, tmp_path):
    repository = tmp_path / "models"
    exports = [DlrmExport(checkpoint) for checkpoint in checkpoints]
    (request,) = exports[0].example_requests(4, fixed_shapes=False)
    deploy(checkpoints[0], repository, "--instances=2")
    settings = ServerSettings(repository=repository)
    with TritonServer(settings, tmp_path / "log") as server:
        server.wait_ready()
        with Flow(addresses(server), request) as flow:
            flow.wait_for_more()
            deploy(checkpoints[1], repository, "--instances=2")
            flow.wait_for_more()
            server.load("dlrm")
            assert server.is_ready("dlrm", 2)
            flow.wait_for_more()
            write_version(repository, "other", 1, 2.0)
            server.load("other")
            flow.wait_for_more()
            server.unload("other")
            flow.wait_for_more()
            write_version(repository, "failing", 1, 2.0, "raise ValueError('no')")
            with pytest.raises(ServerError, match="ValueError: no"):
                server.load("failing")
            flow.wait_for_more()
        assert flow.failures == []
        assert server.stop() == 0
    first, second = (offline(export, request) for export in exports)
    for of_client in flow.answers:
        of_first = [np.allclose(answer, first, atol=1e-6) for answer in of_client]
        of_second = [np.allclose(answer, second, atol=1e-6) for answer in of_client]
        # Each answer is whole one version's, and the new one's from some request on.
        assert all(a != b for a, b in zip(of_first, of_second, strict=True))
        assert of_first == sorted(of_first, reverse=True)
        assert of_first[0]
        assert of_second[-1]


def test_the_deployer_adds_a_version_to_a_polled_server(checkpoints, tmp_path):
    repository, log = tmp_path / "models", tmp_path / "log"
    (request,) = DlrmExport(checkpoints[0]).example_requests(4, fixed_shapes=False)
    # Exporting to ONNX outlasts several polls, as writing tables of gigabytes does.
    again = ("triton/deployer.py", f"--checkpoint={checkpoints[1]}", f"--repository={repository}",
             "--format=onnx")  # fmt: skip
    deploy(checkpoints[0], repository, "--format=onnx")
    settings = ServerSettings(repository=repository, poll_secs=1)
    with TritonServer(settings, log) as server:
        server.wait_ready()
        with Flow(addresses(server), request) as flow:
            flow.wait_for_more()
            kill_while_staging(*again)
            time.sleep(3)
            flow.wait_for_more()
            run(*again)
            wait_until(lambda: server.is_ready("dlrm", 2) and not server.is_ready("dlrm", 1))
            flow.wait_for_more()
        assert flow.failures == []
    assert re.findall(r'"loading: (\S+:\d+)"', log.read_text()) == ["dlrm:1", "dlrm:2"]
    kill_while_staging(*again)
    with TritonServer(ServerSettings(repository=repository), log) as server:
        server.wait_ready()
        assert [(model["name"], model["version"]) for model in server.models()] == [("dlrm", "2")]
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["models"]


def kill_while_staging(*deployer):
    """Kills a deployer once it writes its version; the staging folder stays behind."""
    (repository,) = (word.partition("=")[2] for word in deployer if "--repository" in word)
    with harness.started(*deployer) as process:
        wait_until(ModelRepository(Path(repository)).staging().exists)
        process.kill()


@torch.inference_mode()
def offline(export, request):
    inputs = [torch.from_numpy(request[name]) for name in ("numerical", "categorical")]
    return export.model(*inputs)[:, None].numpy()


def checksums(folder):
    """Of all files but Python's cache of model.py, which the server writes where it may."""
    files = [f for f in folder.rglob("*") if f.is_file() and f.parent.name != "__pycache__"]
    return {str(f.relative_to(folder)): file_checksum(f) for f in files}


def test_a_killed_server_comes_back_with_the_same_answers(checkpoints, tmp_path):
    repository = tmp_path / "models"
    deploy(checkpoints[0], repository)
    (request,) = DlrmExport(checkpoints[0]).example_requests(64, fixed_shapes=False)
    before = checksums(repository)
    settings = ServerSettings(repository=repository)
    with TritonServer(settings, tmp_path / "log") as server:
        server.wait_ready()
        stubs = [instance.pid for instance in instance_memory(server.pid)]
        assert stubs
        with Flow(addresses(server), request) as flow:
            flow.wait_for_more()
            os.kill(server.pid, signal.SIGKILL)
            wait_until(lambda: server.poll() is not None)
            wait_until(lambda: len(flow.failures) == 3)  # every client is told; none hangs
    wait_until(lambda: not any(_runs(pid) for pid in stubs))
    assert not list(Path("/dev/shm").glob(f"recipes_{os.getpid()}_*"))
    assert checksums(repository) == before
    with TritonServer(settings, tmp_path / "log") as server:
        server.wait_ready()
        with Endpoint(server.grpc_url, "dlrm") as endpoint:
            again = endpoint.predict(request)["logit"]
    for of_client in flow.answers:
        for answer in of_client:
            np.testing.assert_array_equal(answer, again)


def _runs(pid):
    try:
        return b"triton_python_backend_stub" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False
