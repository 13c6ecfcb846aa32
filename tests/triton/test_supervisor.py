# SPDX-License-Identifier: Apache-2.0
"""What triton/serve.py does when a server, an instance, a model or itself dies."""

import contextlib
import http.client
import json
import os
import re
import select
import shutil
import signal
import socket
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import pytest

from recsys.serve.client.connection import Endpoint
from recsys.serve.server import probe
from recsys.serve.server.health import HealthEndpoint
from recsys.serve.server.install import ServerError
from recsys.serve.server.instances import find_instances, processes
from recsys.serve.server.probe import Prober, write_probe
from recsys.serve.server.process import remove_leftovers
from recsys.serve.versions.policy import with_policy
from tests import harness
from tests.triton import stand_in_server
from tests.triton.conftest import client
from tests.triton.tiny_model import wait_while, write_version

pytestmark = [pytest.mark.triton_server, pytest.mark.slow]

POLL_FAILED = "Poll failed for model"
"""Words of Triton for a configuration that cannot be read."""
TOO_LARGE = json.dumps(
    {"inputs": [{"name": "x", "shape": [2000000000, 13], "datatype": "FP32", "data": [1.0]}]}
)


class Served:
    """A running triton/serve.py."""

    def __init__(self, process, said):
        self.process = process
        self.said = [said]
        found = {p: re.search(rf"\b{p} (\S+)  ", said) for p in ("HTTP", "gRPC")}
        self.http, self.grpc = (address and address[1] for address in found.values())
        self.health_url = re.search(r"health (http\S+)$", said, re.MULTILINE)[1]
        self.log = re.search(r"^log (\S+)$", said, re.MULTILINE)[1]
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for line in self.process.stdout:
            self.said.append(line)

    def telling(self, *facts):
        """Returns the lines that hold facts, see `harness.assert_tells`."""
        lines = "".join(self.said).splitlines()
        return [line for line in lines if harness.tells(line, *facts)]

    def wait_for(self, *facts):
        harness.wait_for(lambda: self.telling(*facts), f"{facts} in {self.said}")

    def wait_for_status(self, status):
        harness.wait_for(lambda: self.health()[1]["status"] == status, f"{status}: {self.said}")

    @property
    def server_pid(self):
        """Process id of the server; None between two of them."""
        servers = [p for p in processes() if p.command == "tritonserver" and p.state != "Z"]
        return next((p.pid for p in servers if p.parent == self.pid), None)

    @property
    def pid(self):
        """Process id of the supervisor."""
        return self.process.pid

    def health(self, model=""):
        """Returns status code and body."""
        try:
            address = f"{self.health_url}{model}"
            with urllib.request.urlopen(address, timeout=harness.PATIENCE_S) as response:
                return response.status, json.loads(response.read())
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())

    def answers(self):
        """Asks the model `tiny`."""
        with Endpoint(self.http or f"grpc://{self.grpc}", "tiny") as endpoint:
            answer = endpoint.predict({"x": np.ones((3, 2), np.float32)})
        assert answer["y"].tolist() == [[2, 2]] * 3

    def metrics(self):
        """Returns the text of /metrics."""
        with urllib.request.urlopen(self.health_url.replace("/healthz", "/metrics")) as response:
            return response.read().decode()

    def wait_for_answers(self, model):
        harness.wait_for(lambda: self.health(f"/{model}")[0] == 200, f"{model}: {self.said}")

    def wait_for_restart(self, number):
        def restarted():
            code, body = self.health()
            return code == 200 and len(body["restarts"]) == number

        harness.wait_for(restarted, f"restart {number}: {self.said}")


def _name(pid):
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        start, _, state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")
        return None if state.split()[0] == "Z" else start.partition("(")[2]
    return None


@contextlib.contextmanager
def serving(repository, *arguments, **options):
    command = ("triton/serve.py", f"--repository={repository}", *arguments)
    with harness.started(*command, **options) as process:
        try:
            yield Served(process, harness.wait_for_line(process, lambda line: "Ctrl-C" in line))
        finally:
            process.terminate()
            process.wait(harness.PATIENCE_S)


def post(url, body):
    with urllib.request.urlopen(url, body.encode(), timeout=harness.PATIENCE_S) as response:
        return response.read()


def test_a_server_or_instance_that_dies_is_replaced_until_it_dies_too_often(tmp_path):
    held = tmp_path / "held"
    write_version(tmp_path / "models", "tiny", 1, 2.0, wait_while(held), instances=2)
    with serving(tmp_path / "models", "--max_restarts=3") as served:
        served.answers()
        url = re.search(r"HTTP (\S+)", served.said[0])[1]
        with pytest.raises((urllib.error.URLError, http.client.HTTPException, ConnectionError)):
            post(f"{url}/v2/models/tiny/infer", TOO_LARGE)
        served.wait_for("restart 1", "SIGABRT", "docs/deployment.md")
        served.wait_for_restart(1)
        served.answers()
        (instance, _) = find_instances(served.server_pid)
        held.touch()
        os.kill(instance.pid, signal.SIGKILL)
        served.wait_for("restart 2", instance.name, instance.pid)
        assert served.health("/tiny")[0] == 503
        held.unlink()
        served.wait_for_answers("tiny")
        served.answers()
        held.touch()
        ended = time.monotonic()
        os.kill(served.server_pid, signal.SIGKILL)
        served.wait_for("restart 3", "SIGKILL", "3 s")
        assert served.health("/tiny")[0] == 503
        harness.wait_for(lambda: served.server_pid, "the next server")
        assert time.monotonic() - ended >= 3  # the pause
        metrics = served.metrics()
        assert "recsys_serving 0.0\n" in metrics
        assert "recsys_server_restarts_total 3.0\n" in metrics
        assert "recsys_version_ready{" not in metrics
        held.unlink()
        served.wait_for_restart(3)
        assert 'recsys_version_ready{model="tiny",version="1"} 1.0\n' in served.metrics()
        served.answers()
        reasons = served.health()[1]["restarts"]
        assert [re.search("SIGABRT|instance|SIGKILL", r)[0] for r in reasons] == [
            "SIGABRT", "instance", "SIGKILL",
        ]  # fmt: skip
        os.kill(served.server_pid, signal.SIGKILL)
        assert served.process.wait(harness.PATIENCE_S) == 1
        served.wait_for("SIGKILL", "3 times", "--max_restarts")


def test_nothing_is_left_when_the_program_itself_is_killed(tmp_path):
    write_version(tmp_path / "models", "tiny", 1, 2.0)
    with serving(tmp_path / "models") as served:
        left = [served.server_pid, *(i.pid for i in find_instances(served.server_pid))]
        assert len(left) == 2

        def files():
            names = {"/dev/shm": "recipes_{}_*", "/tmp": "recipes-*-{}-*"}
            return [[*Path(where).glob(n.format(served.pid))] for where, n in names.items()]

        assert all(files())
        os.kill(served.pid, signal.SIGKILL)
        harness.wait_for(lambda: not any(map(_name, left)), "the end of all")
        served.process.wait()
        remove_leftovers()  # as the next server does
        assert not any(files())


def test_a_signal_to_all_processes_ends_a_server_that_listens_for_grpc_alone(tmp_path):
    write_version(tmp_path / "models", "tiny", 1, 2.0)
    port = harness.free_port()
    arguments = ("--no_http", "--grpc_port=0", f"--http_port={port}")
    with serving(tmp_path / "models", *arguments) as served:
        assert served.http is None
        served.answers()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port))
        server = served.server_pid
        served.process.terminate()
        os.kill(server, signal.SIGTERM)  # to all processes, as some managers do
        assert served.process.wait(harness.PATIENCE_S) == 0
    assert _name(server) is None


def test_faults_of_the_surroundings_are_waited_out(tmp_path):
    models, log, port = tmp_path / "models", tmp_path / "logs" / "log", harness.free_port()
    write_version(models, "tiny", 1, 2.0)
    with serving(models, f"--log_file={log}", f"--http_port={port}") as served:
        log.rename(tmp_path / "moved")
        served.wait_for(log, "copytruncate")
        log.parent.rmdir()
        models.rename(tmp_path / "away")
        os.kill(served.server_pid, signal.SIGKILL)
        served.wait_for("restart 2", "--repository", models)
        with socket.socket() as other:
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            other.bind(("127.0.0.1", port))
            other.listen()
            (tmp_path / "away").rename(models)
            served.wait_for(f"--http_port {port}")
            assert served.health()[0] == 503
        harness.wait_for(lambda: served.health()[0] == 200, f"health: {served.said}")
        served.answers()
        assert log.exists()
        os.kill(served.server_pid, signal.SIGSTOP)
        restarts = len(served.health()[1]["restarts"])
        served.wait_for_restart(restarts + 1)
        assert "30 s" not in served.health()[1]["restarts"][-1]  # it was seen, not only missed


def test_a_server_that_is_ready_and_does_not_tell_its_state_is_started_again(tmp_path, monkeypatch):
    silent, programs = tmp_path / "silent", tmp_path / "programs"
    write_version(tmp_path / "models", "tiny", 1, 2.0)
    programs.mkdir()
    server = programs / "tritonserver"
    server.write_text(f'#!/bin/sh\nexec {sys.executable} {stand_in_server.__file__} "$@"\n')
    server.chmod(0o755)
    monkeypatch.setenv("PATH", str(programs), prepend=os.pathsep)
    monkeypatch.setenv(stand_in_server.SILENT, str(silent))
    with serving(tmp_path / "models", "--probe_secs=0") as served:
        assert served.health("/tiny")[0] == 200
        silent.touch()
        served.wait_for_status("degraded")
        served.wait_for("restart 1", "30 s", "docs/deployment.md")
        silent.unlink()
        served.wait_for_restart(1)


def test_a_version_that_hangs_or_errs_is_seen_by_its_probe(server, tmp_path, monkeypatch):
    factor, held = tmp_path / "factor", tmp_path / "held"

    def set_factor(value):
        """Replaces the file as a whole: the model reads it all the while."""
        (tmp_path / "next").write_text(value)
        (tmp_path / "next").replace(factor)

    set_factor("2.0")
    held_up = f"len(list(iter(lambda: __import__('os').path.exists({str(held)!r}), False)))"
    code = f"(float(open({str(factor)!r}).read()) + 0 * {held_up})"
    write_version(server.repository, "probed", 1, code)
    row = {"x": np.ones((1, 2), np.float32)}
    write_probe(server.repository / "probed" / "1", row, {"y": 2 * row["x"]}, 1e-3)
    server.load("probed")
    version, prober = ("probed", "1"), Prober(0.01)

    def look(until):
        def looked():
            prober.look(server, server.ready_versions())
            return until(prober.probes[version])

        harness.wait_for(looked, "an answer")

    look(lambda probed: True)
    first = prober.probes[version].right
    look(lambda probed: probed.right > first)
    assert prober.probes[version].fault == ""
    set_factor("3.0")
    look(lambda probed: probed.fault)
    harness.assert_tells(prober.probes[version].fault, "y [[3.0, 3.0]]", "[[2.0, 2.0]]")
    assert prober.probes[version].failures > 0
    set_factor("2.0")
    look(lambda probed: not probed.fault)
    monkeypatch.setattr(probe, "SILENCE_S", 1.0)
    held.touch()
    with harness.refusal("probed version 1", "1 s", kind=ServerError):
        look(lambda probed: False)
    held.unlink()


def test_connections_to_the_health_port_are_short():
    with HealthEndpoint("127.0.0.1", 0) as endpoint, contextlib.ExitStack() as stack:
        address = ("127.0.0.1", endpoint.port)
        trickling = []

        def ended():
            """Tells how many of them the server has ended, however often they send a byte."""
            for connection in trickling:
                with contextlib.suppress(OSError):
                    connection.send(b"G")
            readable, _, _ = select.select(trickling, [], [], 0)
            return len(readable)

        for _ in range(200):
            trickling.append(
                stack.enter_context(socket.create_connection(address, timeout=harness.PATIENCE_S))
            )
            ended()
        request = http.client.HTTPConnection(*address, timeout=harness.PATIENCE_S)
        request.request("HEAD", "/healthz")
        with request.getresponse() as response:
            assert (response.status, response.read()) == (503, b"")
            assert int(response.headers["Content-Length"]) > 0
        harness.wait_for(lambda: ended() == 200, "the end of all")


def test_a_damaged_model_and_a_load_without_an_end_leave_the_others(tmp_path):
    for model in ("tiny", "broken"):
        write_version(tmp_path, model, 1, 2.0)
    write_version(tmp_path, "broken", 2, 2.0, "raise ValueError('weights are gone')")
    write_version(tmp_path, "hung", 1, 2.0, "import time; time.sleep(10000)")
    write_version(tmp_path, "wrong", 1, 2.0)
    row = {"x": np.ones((1, 2), np.float32)}
    write_probe(tmp_path / "wrong" / "1", row, {"y": 3 * row["x"]}, 1e-3)
    write_version(tmp_path, "cut", 1, 2.0)
    (tmp_path / "cut" / "config.pbtxt").write_text("backend: [")
    with serving(tmp_path, "--poll_secs=1", "--ready_timeout_s=30") as served:
        for facts in (["cut", POLL_FAILED], ["tiny version 1: READY"], ["hung/1", "30 s"]):
            assert any(harness.tells(line, *facts) for line in served.said[0].splitlines())
        served.wait_for("broken version 2", "ValueError: weights are gone")
        served.wait_for("wrong version 1", "y [[2.0, 2.0]]", "[[3.0, 3.0]]")
        # The fault is printed before the next look makes it part of health.
        harness.wait_for(lambda: served.health("/wrong")[0] == 503, "the fault in its health")
        assert "wrong version 1" in served.health()[1]["failures"]
        shutil.rmtree(tmp_path / "wrong")
        harness.wait_for(lambda: served.health("/wrong")[0] == 404, "the end of its model")
        code, health = served.health()
        assert (code, health["status"], health["models"]) == (200, "degraded", {"tiny": [1]})
        assert "weights are gone" in health["failures"]["broken version 2"]
        assert POLL_FAILED in health["failures"]["cut"]
        assert len(served.telling("cut", POLL_FAILED)) == 1
        assert served.health("/tiny")[0] == 200
        assert served.health("/broken")[0] == 503
        shutil.rmtree(tmp_path / "cut")
        write_version(tmp_path, "broken", 3, 2.0)
        write_version(tmp_path, "hung", 2, 2.0)
        served.wait_for("broken version 3: READY")
        served.wait_for("hung version 2: READY")
        write_version(tmp_path, "tiny", 2, 3.0, "import time; time.sleep(10000)")
        served.wait_for("tiny/2", "30 s")
        assert served.health("/tiny")[1]["models"]["tiny"] == [1]
        write_version(tmp_path, "tiny", 3, 4.0)
        served.wait_for("tiny version 3: READY")
        served.wait_for_status("ok")
        config = tmp_path / "tiny" / "config.pbtxt"
        good = config.read_text()
        config.write_text("backend: [")
        served.wait_for("tiny", POLL_FAILED)
        assert served.health("/tiny")[1]["models"]["tiny"] == [3]
        assert POLL_FAILED in served.health()[1]["failures"]["tiny"]
        config.write_text(good)
        served.wait_for_status("ok")
        assert served.health()[1]["restarts"] == []


def test_health_is_ok_once_a_version_that_failed_is_chosen_no_more(tmp_path):
    write_version(tmp_path, "tiny", 1, 2.0)
    config = tmp_path / "tiny" / "config.pbtxt"
    newest = config.read_text()
    failed = 'recsys_version_failed{model="tiny",version="2"} 1.0'
    with serving(tmp_path, "--poll_secs=1") as served:

        def wait_for_health(status):
            served.wait_for_status(status)
            assert (failed in served.metrics()) == (status != "ok")

        for mend in (
            lambda: config.write_text(with_policy(newest, "specific:1")),
            lambda: shutil.rmtree(tmp_path / "tiny" / "2"),
        ):
            write_version(tmp_path, "tiny", 2, 2.0, "raise ValueError('weights are gone')")
            wait_for_health("degraded")
            assert served.health("/tiny")[0] == 200
            mend()
            wait_for_health("ok")
            served.answers()
            shutil.rmtree(tmp_path / "tiny" / "2", ignore_errors=True)
            config.write_text(newest)
        code, body = served.health("/absent")
        assert code == 404
        harness.assert_tells(body["error"], "absent", "tiny")


def _delete(models):
    """At once: a look in between would find a repository without models."""
    shutil.copytree(models, models.with_name("away"))
    models.rename(models.with_name("deleted"))
    shutil.rmtree(models.with_name("deleted"))


def _empty(models):
    """As a file system does that is not mounted any more."""
    models.rename(models.with_name("away"))
    models.mkdir()


def _replace_by_a_file(models):
    models.rename(models.with_name("away"))
    models.write_text("not a folder")


def _restore(models):
    if models.is_dir():
        models.rmdir()
    models.unlink(missing_ok=True)
    models.with_name("away").rename(models)


@pytest.mark.parametrize("polls", [True, False], ids=["polls", "loads once"])
def test_health_is_not_ok_while_the_repository_is_away(tmp_path, polls):
    models, of_tiny = tmp_path / "models", '{model="tiny",version="1"}'
    write_version(models, "tiny", 1, 2.0)
    row = {"x": np.ones((1, 2), np.float32)}
    write_probe(models / "tiny" / "1", row, {"y": 2 * row["x"]}, 1e-3)
    ready, probed = f"recsys_version_ready{of_tiny} 1.0\n", f"recsys_probe_age_seconds{of_tiny}"

    def metric(name):
        return float(re.search(rf"^{re.escape(name)} (\S+)$", served.metrics(), re.MULTILINE)[1])

    with serving(models, f"--poll_secs={int(polls)}", "--probe_secs=1") as served:
        for take in (lambda m: m.rename(m.with_name("away")), _delete, _empty, _replace_by_a_file):
            served.wait_for_status("ok")
            served.answers()
            harness.wait_for(lambda: probed in served.metrics(), "the first probe")
            assert ready in served.metrics()
            assert metric("recsys_degraded") == 0
            take(models)
            goes_on = not polls or take is not _empty  # no model is to be served any more
            answers = [1] if goes_on else None

            def seen(answers=answers):
                body = served.health()[1]
                return body["status"] == "degraded" and body["models"].get("tiny") == answers

            harness.wait_for(seen, f"another health: {served.health()}")
            code, body = served.health()
            assert code == (200 if goes_on else 503)
            assert body["error"]
            assert served.health("/tiny")[0] == code
            assert metric("recsys_serving") == (code == 200)
            assert metric("recsys_degraded") == 1
            assert (ready in served.metrics()) == (code == 200)
            if goes_on:  # what was loaded answers, its probe too
                served.answers()
                since = time.monotonic()

                def answered(since=since):
                    now = time.monotonic()  # before the age is asked for, which grows meanwhile
                    return now - metric(probed) > since

                harness.wait_for(answered, "an answer to the probe")
                assert ready in served.metrics()
            _restore(models)
        served.wait_for_status("ok")
        served.answers()
        assert served.health()[1]["restarts"] == []


def test_an_address_of_ipv6(tmp_path, capsys):
    write_version(tmp_path, "tiny", 1, 2.0)
    with serving(tmp_path, "--host=::1", "--grpc_port=0") as served:
        assert served.grpc.startswith("[::1]:")
        assert served.health()[0] == 200
        assert client([f"--url={served.grpc}", "--protocol=grpc", "--model=tiny"]) == 0
        assert client([f"--url={served.http}", "--model=tiny"]) == 0
        assert capsys.readouterr().out.count("gives y: float32 [rows, 2]") == 2


def test_a_log_is_cut_while_the_server_writes_to_it(server):
    log = server.log.file
    server.log.limit(1 << 30)
    before = log.read_bytes()
    server.log.limit(len(before) - 1)
    assert log.with_name("log.1").read_bytes().startswith(before)
    write_version(server.repository, "logged", 1, 2.0)
    server.load("logged")
    assert log.read_bytes()[:1] == b"I"
    assert len(log.read_bytes()) < len(before)
