# SPDX-License-Identifier: Apache-2.0
"""What the serving image does at its build, on the server of this environment."""

import sys
import tomllib

import numpy as np
import pytest

from recsys.serve.client.connection import EndpointError
from tests import harness
from tests.triton.tiny_model import write_version

pytestmark = pytest.mark.triton_server


def test_the_last_step_deploys_serves_and_asks(tmp_path):
    script = harness.REPOSITORY / "docker" / "smoke_serving.sh"
    done = harness.run(script, folder=tmp_path, PYTHON=sys.executable, PYTHONSAFEPATH="1")
    assert done.stdout.endswith("smoke_serving.sh: this server answers\n")
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
        pytest.raises(EndpointError, match="0 rows of 'y' for a request of 1; does the"),
    ):
        endpoint.predict({"x": np.ones((1, 2), np.float32)})
