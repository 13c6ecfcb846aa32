# SPDX-License-Identifier: Apache-2.0
"""What other users of the machine see of a server, and what they can do with it."""

import base64
import json
import os
import subprocess
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import pytest

from recsys.serve.client.connection import Endpoint
from recsys.serve.server import native_backend
from tests import harness
from tests.tools import needs
from tests.triton.test_supervisor import serving
from tests.triton.tiny_model import write_version

pytestmark = pytest.mark.triton_server

NOBODY = {"user": 65534, "group": 65534, "extra_groups": []}
KEY = b"RECIPES_ADMIN_KEY="
OWN_MODEL = """
import pathlib
pathlib.Path({marker!r}).touch()
class TritonPythonModel:
    def execute(self, requests):
        return []
"""


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    folder = tmp_path_factory.mktemp("private")
    write_version(folder / "models", "tiny", 1, 2.0)
    flags = ("--poll_secs=1", "--grpc_port=0", f"--log_file={folder / 'log'}", "--log_mib=1")
    with serving(folder / "models", *flags) as served:
        yield served


def key_of(served):
    variables = Path(f"/proc/{served.server_pid}/environ").read_bytes().split(b"\0")
    (variable,) = (v for v in variables if v.startswith(KEY))
    return variable.removeprefix(KEY)


def status(served, path, key=None, body=None):
    headers = {} if key is None else {"recipes-admin-key": key}
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"{served.http}/v2/{path}", data, headers)
    try:
        with urllib.request.urlopen(request, timeout=harness.PATIENCE_S) as response:
            return response.status
    except urllib.error.HTTPError as error:
        return error.code


@pytest.mark.parametrize(("supervisor", "status"), [(os.getpid, 0), (os.getppid, 1)])
def test_a_server_does_not_start_without_its_supervisor(supervisor, status):
    """Which may have ended before the server asked the kernel for a signal at that moment."""
    library = native_backend.LIBRARY.with_name("libprivate.so")
    own = {"LD_PRELOAD": str(library), "RECIPES_SUPERVISOR": str(supervisor())}
    assert subprocess.run(["true"], env=os.environ | own, check=False).returncode == status


def test_no_argument_of_any_process_holds_the_key(served):
    key = key_of(served)
    assert len(key) == 32
    assert status(served, "repository/index", key.decode(), {}) == 200
    for command_line in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            assert key not in command_line.read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            continue
    assert key not in Path(served.log).read_bytes()


def test_models_of_ones_own_are_not_loaded_without_the_key(served, tmp_path):
    marker = tmp_path / "ran"
    model = base64.b64encode(OWN_MODEL.format(marker=str(marker)).encode()).decode()
    config = json.dumps({"backend": "python", "max_batch_size": 8})
    body = {"parameters": {"config": config, "file:1/model.py": model}}
    arguments = Path(f"/proc/{served.server_pid}/cmdline").read_bytes().split(b"\0")
    (shown,) = (a for a in arguments if a.startswith(b"--http-restricted-api="))
    written = shown.rpartition(b"=")[2].decode()
    for key in (None, "", written.strip(), f" {written.strip()}", "0" * 32):
        for name in ("own", "tiny"):
            path = f"repository/models/{name}"
            assert status(served, f"{path}/load", key, body) == 403
            assert status(served, f"{path}/unload", key, {}) == 403
        for path in ("repository/index", "trace/setting", "logging"):
            assert status(served, path, key, {"log_verbose_level": 9}) == 403
        assert status(served, "systemsharedmemory/status", key) == 403
    from tritonclient import grpc

    for headers in (None, {"triton-grpc-protocol-recipes-admin-key": written.strip()}):
        with grpc.InferenceServerClient(served.grpc) as client:
            with pytest.raises(Exception, match="restricted"):
                client.load_model("own", headers=headers, config=config)
            with pytest.raises(Exception, match="restricted"):
                client.register_system_shared_memory("region", "/x", 8, headers=headers)
    assert not marker.exists()
    served.answers()


def test_files_and_shared_memory_are_of_the_server_s_user_alone(served):
    served.answers()
    segments = list(Path("/dev/shm").glob(f"recipes_{served.pid}_*"))
    folders = list(Path("/tmp").glob(f"recipes-triton-{served.pid}-*"))
    log = Path(served.log)
    assert segments
    assert folders
    for path in (*segments, *folders, log):
        assert path.stat().st_mode & 0o077 == 0, path


@needs("another user")
def test_another_user_reads_neither_key_nor_requests(served):
    served.answers()
    (segment, *_) = Path("/dev/shm").glob(f"recipes_{served.pid}_*")

    def read(path):
        done = subprocess.run(["cat", path], capture_output=True, check=False, **NOBODY)
        return done.stdout if done.returncode == 0 else None

    assert key_of(served) not in read(f"/proc/{served.server_pid}/cmdline")
    for path in (f"/proc/{served.server_pid}/environ", segment, served.log):
        assert read(path) is None, path


@needs("another user", "curl")
def test_another_user_reaches_no_control_where_grpc_was_not_asked_for(tmp_path):
    write_version(tmp_path / "models", "tiny", 1, 2.0)
    with serving(tmp_path / "models") as served:
        assert served.grpc is None
        (socket,) = Path("/tmp").glob(f"recipes-triton-{served.pid}-*/grpc:*")
        url = f"{served.http}/v2/repository/models/tiny/unload"
        commands = (
            (["curl", "-s", "--unix-socket", socket, "http://x/"], 7),  # it cannot connect
            (["curl", "-sf", "-X", "POST", url], 22),  # 400 or above
        )
        for command, code in commands:
            assert subprocess.run(command, check=False, **NOBODY).returncode == code
        with Endpoint(served.http, "tiny") as endpoint:
            answer = endpoint.predict({"x": np.ones((1, 2), np.float32)})
        assert answer["y"].tolist() == [[2, 2]]
    harness.wait_for(lambda: not socket.exists(), "the end of the socket")
