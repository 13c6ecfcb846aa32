# SPDX-License-Identifier: Apache-2.0
"""What triton/serve.py does when a server, an instance, a model or itself dies."""

import contextlib
import http.client
import json
import os
import re
import shutil
import signal
import socket
import threading
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import pytest

from recsys.serve.client.connection import Endpoint
from recsys.serve.server.instances import find_instances
from recsys.serve.server.log import limit_log
from tests import harness
from tests.triton.conftest import Server, client
from tests.triton.tiny_model import write_version

pytestmark = pytest.mark.triton_server

TOO_LARGE = json.dumps(
    {"inputs": [{"name": "x", "shape": [2000000000, 13], "datatype": "FP32", "data": [1.0]}]}
)


class Served:
    """A running triton/serve.py."""

    def __init__(self, process, said):
        self.process = process
        self.said = [said]
        self.grpc = re.search(r"gRPC (\S+)", said)[1]
        self.health_url = re.search(r"health (http\S+)$", said, re.MULTILINE)[1]
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for line in self.process.stdout:
            self.said.append(line)

    def wait_for(self, text):
        harness.wait_for(lambda: text in "".join(self.said), f"{text!r} in {self.said}", 120)

    @property
    def server_pid(self):
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return next(p for p in map(int, children.split()) if _name(p) == "tritonserver")

    def health(self, model=""):
        """Returns status code and body."""
        try:
            with urllib.request.urlopen(f"{self.health_url}{model}", timeout=10) as response:
                return response.status, json.loads(response.read())
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())

    def metrics(self):
        """Returns the text of /metrics."""
        with urllib.request.urlopen(self.health_url.replace("/healthz", "/metrics")) as response:
            return response.read().decode()

    def wait_for_restart(self, number):
        def restarted():
            code, body = self.health()
            return code == 200 and len(body["restarts"]) == number

        harness.wait_for(restarted, f"restart {number}: {self.said}", 120)


def _name(pid):
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        start, _, state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")
        return None if state.split()[0] == "Z" else start.partition("(")[2]
    return None


@contextlib.contextmanager
def serving(repository, *arguments):
    command = ("triton/serve.py", f"--repository={repository}", *arguments)
    with harness.started(*command) as process:
        try:
            yield Served(process, harness.wait_for_line(process, lambda line: "Ctrl-C" in line))
        finally:
            process.terminate()
            process.wait(harness.PATIENCE_S)


def post(url, body):
    with urllib.request.urlopen(url, body.encode(), timeout=30) as response:
        return response.read()


def test_a_server_or_instance_that_dies_is_replaced_until_it_dies_too_often(tmp_path):
    write_version(tmp_path / "models", "tiny", 1, 2.0, instances=2)
    with serving(tmp_path / "models", "--max_restarts=3") as served:

        def answers():
            with Endpoint(served.grpc, "tiny") as endpoint:
                answer = endpoint.predict({"x": np.ones((3, 2), np.float32)})
            assert answer["y"].tolist() == [[2, 2]] * 3

        answers()
        url = re.search(r"HTTP (\S+)", served.said[0])[1]
        with pytest.raises((urllib.error.URLError, http.client.HTTPException, ConnectionError)):
            post(f"{url}/v2/models/tiny/infer", TOO_LARGE)
        served.wait_for("restart 1: the server ended with signal SIGABRT")
        served.wait_for_restart(1)
        answers()
        (instance, _) = find_instances(served.server_pid)
        os.kill(instance.pid, signal.SIGKILL)
        served.wait_for(f"restart 2: instance {instance.name} (process {instance.pid}) died")
        assert served.health()[0] == 503
        served.wait_for_restart(2)
        answers()
        os.kill(served.server_pid, signal.SIGKILL)
        served.wait_for("restart 3: the server ended with signal SIGKILL")
        assert served.health("/tiny")[0] == 503
        metrics = served.metrics()
        assert "recsys_serving 0.0\n" in metrics
        assert "recsys_server_restarts_total 3.0\n" in metrics
        assert "recsys_version_ready{" not in metrics
        served.wait_for_restart(3)
        assert 'recsys_version_ready{model="tiny",version="1"} 1.0\n' in served.metrics()
        answers()
        reasons = served.health()[1]["restarts"]
        assert [re.search("SIGABRT|instance|SIGKILL", r)[0] for r in reasons] == [
            "SIGABRT", "instance", "SIGKILL",
        ]  # fmt: skip
        os.kill(served.server_pid, signal.SIGKILL)
        assert served.process.wait(60) == 1
        served.wait_for("started again 3 times within ten minutes (--max_restarts)")


def test_nothing_is_left_when_the_program_itself_is_killed(tmp_path):
    write_version(tmp_path / "models", "tiny", 1, 2.0)
    before = set(Path("/tmp").glob("recipes-triton-*"))
    with serving(tmp_path / "models") as served:
        pids = [served.server_pid, *(i.pid for i in find_instances(served.server_pid))]
        assert len(pids) == 2
        served.process.kill()
        harness.wait_for(lambda: all(_name(pid) is None for pid in pids), "the end of all", 30)
        harness.wait_for(
            lambda: not list(Path("/dev/shm").glob(f"recipes_{served.process.pid}_*")),
            "removal",
            30,
        )
        harness.wait_for(
            lambda: set(Path("/tmp").glob("recipes-triton-*")) <= before, "removal", 30
        )


def test_a_damaged_model_and_a_load_without_an_end_leave_the_others(tmp_path):
    for model in ("tiny", "broken"):
        write_version(tmp_path, model, 1, 2.0)
    write_version(tmp_path, "broken", 2, 2.0, "raise ValueError('weights are gone')")
    write_version(tmp_path, "hung", 1, 2.0, "import time; time.sleep(10000)")
    write_version(tmp_path, "cut", 1, 2.0)
    (tmp_path / "cut" / "config.pbtxt").write_text("backend: [")
    with serving(tmp_path, "--poll_secs=1", "--ready_timeout_s=8") as served:
        assert "cut: does not load: Poll failed for model directory 'cut'" in served.said[0]
        assert "tiny version 1: READY" in served.said[0]
        assert "hung/1 did not load within 8 s" in served.said[0]
        served.wait_for("broken version 2: does not load: Internal: ValueError: weights are gone")
        code, health = served.health()
        assert (code, health["status"], health["models"]) == (200, "degraded", {"tiny": [1]})
        assert "weights are gone" in health["failures"]["broken version 2"]
        assert "Poll failed for model" in health["failures"]["cut"]
        assert "".join(served.said).count("cut: does not load") == 1
        assert served.health("/tiny")[0] == 200
        assert served.health("/broken")[0] == 503
        shutil.rmtree(tmp_path / "cut")
        write_version(tmp_path, "broken", 3, 2.0)
        write_version(tmp_path, "hung", 2, 2.0)
        served.wait_for("broken version 3: READY")
        served.wait_for("hung version 2: READY")
        write_version(tmp_path, "tiny", 2, 3.0, "import time; time.sleep(10000)")
        served.wait_for("tiny/2 did not load within 8 s; ending it")
        assert served.health("/tiny")[1]["models"]["tiny"] == [1]
        write_version(tmp_path, "tiny", 3, 4.0)
        served.wait_for("tiny version 3: READY")
        harness.wait_for(lambda: served.health()[1]["status"] == "ok", "health", 60)
        assert served.health()[1]["restarts"] == []


def test_an_address_of_ipv6_and_a_server_without_http(tmp_path, capsys):
    write_version(tmp_path, "tiny", 1, 2.0)
    with serving(tmp_path, "--host=::1") as served:
        url = re.search(r"HTTP http://(\S+)", served.said[0])[1]
        assert served.grpc.startswith("[::1]:")
        assert served.health()[0] == 200
        assert client([f"--url={served.grpc}", "--model=tiny"]) == 0
        assert client([f"--url={url}", "--protocol=http", "--model=tiny"]) == 0
        assert capsys.readouterr().out.count("gives y: float32 [rows, 2]") == 2
    port = harness.free_port()
    with serving(tmp_path, "--no_http", f"--http_port={port}") as served:
        assert "HTTP" not in served.said[0]
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port))
        assert client([f"--url={served.grpc}", "--model=tiny"]) == 0


def test_a_log_is_cut_while_the_server_writes_to_it(tmp_path):
    write_version(tmp_path / "models", "tiny", 1, 2.0)
    with Server(tmp_path) as server:
        log = server.log_file
        limit_log(log, 1 << 30)
        before = log.read_bytes()
        limit_log(log, len(before) - 1)
        assert log.with_name("log.1").read_bytes() == before
        server.unload("tiny")
        harness.wait_for(lambda: log.stat().st_size, "a line")
        assert log.read_bytes()[:1] == b"I"
        assert len(log.read_bytes()) < len(before)
