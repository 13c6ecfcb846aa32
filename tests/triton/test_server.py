# SPDX-License-Identifier: Apache-2.0
"""The server's life: start, failures, the closed parts of its interface, and its end."""

import contextlib
import http.client
import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import pytest

from recsys.serve.client.connection import Endpoint, EndpointError, predict_in_order
from recsys.serve.server.install import ServerError
from recsys.serve.server.instances import processes
from recsys.serve.server.log import ServerLog
from recsys.serve.server.process import ServerSettings, TritonServer, threads_per_instance
from tests import harness
from tests.harness import assert_tells, refusal
from tests.tools import MAIN_PYTHON, needs
from tests.triton.conftest import Server, client
from tests.triton.test_supervisor import serving
from tests.triton.tiny_model import write_version

pytestmark = pytest.mark.triton_server


def shared_memory(pid):
    return list(Path("/dev/shm").glob(f"recipes_{pid}_*"))


@pytest.fixture
def repository(tmp_path):
    folder = tmp_path / "my répository"  # the Python backend alone would take no such path
    write_version(folder, "tiny", 1, 2.0)
    return folder


def test_the_program_serves_until_a_signal_and_leaves_nothing(repository, tmp_path):
    log = tmp_path / "log"
    command = ("triton/serve.py", f"--repository={repository}", f"--log_file={log}")
    with harness.started(*command, "--", "--exit-timeout-secs=1") as program:
        said = harness.wait_for_line(program, lambda line: "Ctrl-C" in line)
        assert "tiny version 1: READY" in said
        url = re.search(r"HTTP (http://127\.0\.0\.1:\d+) ", said)[1]
        with urllib.request.urlopen(f"{url}/v2/models/tiny/ready") as response:
            assert response.status == 200
        assert shared_memory(program.pid)
        # What runs uploaded code, writes files or maps memory is closed to whoever has no key.
        for path in ("repository/index", "repository/models/tiny/unload"):
            with pytest.raises(urllib.error.HTTPError, match="403"):
                urllib.request.urlopen(f"{url}/v2/{path}", data=b"{}")
        for path in ("trace/setting", "logging", "systemsharedmemory/status"):
            with pytest.raises(urllib.error.HTTPError, match="403"):
                urllib.request.urlopen(f"{url}/v2/{path}")
        idle = http.client.HTTPConnection(url.removeprefix("http://"))
        idle.request("GET", "/v2/health/ready")  # a client that keeps its connection
        idle.getresponse().read()
        program.send_signal(signal.SIGINT)
        assert program.wait(harness.PATIENCE_S) == 0
    idle.close()
    assert not shared_memory(program.pid)
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(f"{url}/v2/health/live", timeout=2)


@needs("environment .venv")
def test_the_command_of_an_environment_without_a_server_starts_that_of_the_checkout(
    repository, tmp_path
):
    port, log = harness.free_port(), tmp_path / "log"
    flags = f"--repository={repository}", f"--http_port={port}", "--models=tiny", "--threads=2"
    words = ("serve", *flags, f"--log_file={log}", "--", "--log-verbose=1")
    command = [str(MAIN_PYTHON), "-m", "recsys_recipes", *words]
    environment = os.environ | {"PYTHONPATH": str(harness.REPOSITORY)}
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True
    ) as program:
        try:
            said = harness.wait_for_line(program, lambda line: "Ctrl-C" in line)
            assert f"HTTP http://127.0.0.1:{port} " in said
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/models/tiny/ready") as ready:
                assert ready.status == 200
            server = next(
                p.pid
                for p in processes()
                if p.command == "tritonserver" and p.parent == program.pid
            )
            started = Path(f"/proc/{server}/environ").read_bytes().split(b"\0")
            assert b"OMP_NUM_THREADS=2" in started
            assert b"--log-verbose=1" in Path(f"/proc/{server}/cmdline").read_bytes()
            program.send_signal(signal.SIGINT)
            assert program.wait(harness.PATIENCE_S) == 0
        finally:
            program.kill()
    assert log.is_file()
    doctor = harness.run(MAIN_PYTHON, "-m", "recsys_recipes", "doctor", "--json", status=None)
    (found,) = (part for part in json.loads(doctor.stdout) if part["name"] == "Triton server")
    assert (found["state"], found["add"]) == ("ok", "")


def test_models_that_do_not_load_end_a_program_without_another(tmp_path):
    broken = "raise FileNotFoundError('weights.bin is missing')"
    write_version(tmp_path / "m", "broken", 1, 2.0, broken)
    (tmp_path / "m" / "notes" / "1").mkdir(parents=True)
    arguments = [f"--repository={tmp_path / 'm'}", f"--log_file={tmp_path / 'log'}"]
    said = harness.forked("triton/serve.py", *arguments, status=1)
    assert_tells(
        said.stderr,
        *("broken version 1", "FileNotFoundError: weights.bin is missing"),
        *("broken/1/model.py(7): initialize", "notes"),
    )
    assert "Traceback" not in said.stderr
    assert "weights.bin" not in said.stdout  # once is enough
    assert "Ready" not in said.stdout


def test_a_limit_of_files_is_raised_or_named(repository):
    def few():
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 4096))

    with serving(repository, preexec_fn=few) as served, contextlib.ExitStack() as stack:
        for _ in range(300):  # each sends a half of a request
            host, _, port = served.http.removeprefix("http://").partition(":")
            connection = stack.enter_context(socket.create_connection((host, int(port)), 30))
            connection.sendall(b"POST /v2/models/tiny/infer HTTP/1.1\r\nContent-Length: 100\r\n")
        served.answers()
        assert served.health()[0] == 200
    command = f"ulimit -n 64; exec {sys.executable} triton/serve.py --repository '{repository}'"
    refused = harness.run("bash", "-c", command, status=1)
    assert "ulimit" in refused.stderr
    assert "Loading" not in refused.stdout


def test_an_empty_folder_that_is_polled_waits_for_models(tmp_path):
    (tmp_path / "m").mkdir()
    with serving(tmp_path / "m", "--poll_secs=1") as served:
        assert_tells(served.said[0], tmp_path / "m", "1 s")
        write_version(tmp_path / "m", "tiny", 1, 2.0)
        served.wait_for("tiny version 1: READY")
        log = Path(re.search(r"^log (\S+)$", served.said[0], re.MULTILINE)[1])
        assert log.is_file()
    assert not log.parent.exists()


def test_the_chosen_models_alone_are_loaded_and_a_stopped_server_leaves_nothing(tmp_path):
    for name in ("tiny", "other"):
        write_version(tmp_path / "models", name, 1, 2.0)
    with Server(tmp_path, models=("tiny",)) as server:
        states = {model["name"]: model.get("state") for model in server.models()}
        assert states.pop("tiny") == "READY"
        assert set(states.values()) <= {None}
        prefix = server._shm_prefix
        assert list(Path("/dev/shm").glob(f"{prefix}*"))
        assert server.stop() == 0
    assert not list(Path("/dev/shm").glob(f"{prefix}*"))


def test_addresses_as_the_server_prints_them(server, capsys):
    http, grpc = server.http_url, server.grpc_url
    for url in (f"http://{http}", f"http://{http}/", http, f"grpc://{grpc}", f"ipv4:{grpc}"):
        assert client([f"--url={url}", "--model=tiny"]) == 0, capsys.readouterr().err
    assert_tells(capsys.readouterr().out, "x: float32 [rows, 2]")
    free = f"127.0.0.1:{harness.free_port()}"
    for url, *remedy in (
        (f"grpc://{http}", "--protocol http", f"--url http://{http}"),
        (grpc, "--protocol grpc", f"--url grpc://{grpc}"),
        (f"http://{free}", "`recsys-recipes serve`"),
        (free, "`recsys-recipes serve`"),
    ):
        assert client([f"--url={url}", "--model=tiny", "--timeout_s=20"]) == 2
        assert_tells(capsys.readouterr().err, *remedy)


LATE = {"kind": EndpointError, "settings": ("timeout_s",)}


@pytest.fixture
def still(server):
    """Yields a function that lets every thread of the server stand still; goes on at the end."""

    def stop():
        os.kill(server.pid, signal.SIGSTOP)
        threads = list(Path(f"/proc/{server.pid}/task").iterdir())
        harness.wait_for(
            lambda: all(
                (each / "stat").read_text().rpartition(")")[2][1] == "T" for each in threads
            ),
            "the stop of every thread",
        )

    goes_on = threading.Timer(
        600, os.kill, (server.pid, signal.SIGCONT)
    )  # if a client waits for it
    goes_on.start()
    yield stop
    os.kill(server.pid, signal.SIGCONT)
    goes_on.cancel()


def hasty(url, protocol, request):
    """Returns an endpoint of little patience that got an answer, which a busy machine may delay."""
    while True:
        endpoint = None
        try:
            endpoint = Endpoint(url, "tiny", protocol=protocol, timeout_s=0.5)
            endpoint.predict(request)
        except EndpointError:
            if endpoint is not None:
                endpoint.close()
        else:
            return endpoint


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_a_server_that_stands_still_is_waited_for_as_long_as_the_user_said(
    server, protocol, still, capsys
):
    url = server.grpc_url if protocol == "grpc" else server.http_url
    request = {"x": np.ones((1, 2), np.float32)}
    with hasty(url, protocol, request) as connected:
        still()
        for ask in (
            connected.times,
            lambda: connected.predict(request),
            lambda: list(predict_in_order(connected, [request], 1)),
        ):
            with refusal("0.5 s", **LATE):
                ask()
    assert client([f"--url={protocol}://{url}", "--model=tiny", "--timeout_s=0.5"]) == 2
    assert_tells(capsys.readouterr().err, "0.5 s", "--timeout_s")


def test_an_answer_of_which_bytes_trickle_in_is_given_up(capsys):
    """The library's own limits count for each read."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer():
            connection, _ = listening.accept()
            with connection, contextlib.suppress(OSError):
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 400\r\n\r\n")
                for _ in range(400):
                    connection.sendall(b" ")
                    time.sleep(0.05)

        threading.Thread(target=answer, daemon=True).start()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        assert client([f"--url={url}", "--model=tiny", "--timeout_s=0.5"]) == 2
    assert_tells(capsys.readouterr().err, "0.5 s", "--timeout_s")


def test_a_thread_that_asked_leaves_no_open_file(server):
    def ask():
        with server.endpoint("tiny") as endpoint:
            endpoint.predict({"x": np.ones((1, 2), np.float32)})

    def open_files():
        return len(list(Path("/proc/self/fd").iterdir()))

    ask()
    before = open_files()
    for _ in range(10):
        thread = threading.Thread(target=ask)
        thread.start()
        thread.join()
    assert open_files() <= before + 2


@pytest.mark.parametrize("flag", ["metrics_port", "health_port"])
def test_a_port_that_another_server_has_is_named(server, flag):
    """It would answer for the new server, and tell that its key is wrong."""
    taken = getattr(server.settings, flag, server.settings.http_port)
    arguments = (f"--repository={server.repository}", f"--{flag}={taken}")
    said = harness.forked("triton/serve.py", *arguments, status=1).stderr
    assert_tells(said, f"--{flag} {taken}", f"127.0.0.1:{taken}")


@pytest.mark.parametrize(
    ("argument", "facts"),
    [
        ("--http-port=9", ["--http-port", "--http_port"]),
        ("--grpc-addr=::1", ["--grpc-addr", "--host"]),
        ("--load-model=tiny", ["--load-model", "--models"]),
        ("--allow-grpc=true", ["--allow-grpc", "--grpc_port"]),
        ("--nonsense", ["'--nonsense'\n"]),
        ("--log-verbose=x", ['"--log-verbose"', "x\n"]),
    ],
)
def test_an_argument_that_the_server_must_not_or_does_not_take_is_named(
    repository, tmp_path, argument, facts
):
    flags = (f"--repository={repository}", f"--log_file={tmp_path / 'log'}")
    refused = harness.forked("triton/serve.py", *flags, "--", argument, status=1)
    assert_tells(refused.stderr, *facts)


@pytest.mark.parametrize("flag", ["http_port", "grpc_port"])
def test_a_port_taken_while_the_server_starts_is_named(repository, tmp_path, flag):
    """The look before the start sees no server that does not listen yet."""
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", 0))  # free for the look, which asks who listens
        port = other.getsockname()[1]
        settings = ServerSettings(repository=repository, **{flag: port})
        with TritonServer(settings, tmp_path / "log") as server:
            other.listen()
            with refusal(f"127.0.0.1:{port}", kind=ServerError):
                server.wait_ready()


def test_a_temporary_folder_that_the_python_backend_cannot_take_is_named(
    repository, tmp_path, monkeypatch
):
    monkeypatch.setattr(tempfile, "tempdir", f"{tmp_path}/a b")
    with refusal(f"TMPDIR {tmp_path}/a b", kind=ServerError):
        TritonServer(ServerSettings(repository=repository), tmp_path / "log")


def test_cores_are_shared_out_among_instances(tmp_path):
    cores = len(os.sched_getaffinity(0))
    assert threads_per_instance(tmp_path) == cores
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        group = f"instance_group [ {{ count: {cores} kind: KIND_CPU }} ]"
        (tmp_path / name / "config.pbtxt").write_text(group)
    assert threads_per_instance(tmp_path) == 1


def test_a_log_without_a_failed_model_gives_its_errors(tmp_path):
    log = ServerLog(tmp_path / "log")
    log.file.write_text(
        'E1121 17:13:28.061370 1 server.cc:241] "CudaDriverHelper has not been initialized."\n'
        "error: creating server: Internal - failed to load all models\n"
    )
    assert log.failure_reason().startswith("error: creating server: Internal")
    log.close()


@pytest.mark.release  # its steps are tested one by one; `make image-check` runs it in the image
def test_the_last_step_of_the_image_deploys_serves_and_asks(tmp_path):
    script = harness.REPOSITORY / "docker" / "smoke_serving.sh"
    harness.run(script, folder=tmp_path, PYTHON=sys.executable, PYTHONSAFEPATH="1")
    assert list(tmp_path.iterdir()) == []


def test_the_packages_take_the_numpy_of_an_older_server():
    project = tomllib.loads((harness.REPOSITORY / "pyproject.toml").read_text())["project"]
    (numpy,) = (need for need in project["dependencies"] if need.startswith("numpy"))
    least = tuple(map(int, numpy.removeprefix("numpy>=").split(".")))
    assert tuple(map(int, np.__version__.split(".")[:2])) >= least


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_an_empty_reply_is_an_error(server, protocol):
    """A Python backend that was built for another NumPy answers so, with status 200."""
    empty = "__import__('numpy').ones((0, 2), 'float32')"
    write_version(server.repository, f"empty_{protocol}", 1, empty)
    server.load(f"empty_{protocol}")
    with (
        server.endpoint(f"empty_{protocol}", protocol) as endpoint,
        refusal("0 rows", "'y'", 1, kind=EndpointError),
    ):
        endpoint.predict({"x": np.ones((1, 2), np.float32)})
