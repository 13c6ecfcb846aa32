# SPDX-License-Identifier: Apache-2.0
"""The programs of triton/ as their command lines run them, and a trained DLRM."""

import importlib.util
import json

import numpy as np
import pytest

from tests import harness
from tests.dlrm.conftest import dataset, make_program  # noqa: F401  (a fixture)


def script(name):
    """Imports a script of triton/, which is no package."""
    spec = importlib.util.spec_from_file_location(
        f"triton_{name}", harness.REPOSITORY / f"triton/{name}.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def client(arguments):
    """Runs triton/client.py in this process; returns its exit status."""
    return script("client").main(["client", *arguments])


def deploy(checkpoint, repository, *arguments):
    """Deploys a checkpoint, as the deployer's command line does, in this process."""
    arguments = (f"--checkpoint={checkpoint}", f"--repository={repository}", *arguments)
    assert harness.call(script("deployer"), *arguments) == 0


def replay(endpoint, file):
    """Sends the rows of a file for perf_analyzer; yields each request and its answer."""
    inputs = {tensor.name: tensor for tensor in endpoint.signature.inputs}
    (key, entries), *others = json.loads(file.read_text()).items()
    assert (key, others) == ("data", [])
    for entry in entries:
        request = {}
        for name, tensor in entry.items():
            assert set(tensor) == {"content", "shape"}
            values = np.array(tensor["content"], inputs[name].numpy_dtype)
            request[name] = values.reshape(1, *tensor["shape"])
        yield request, endpoint.predict(request)


def run(*arguments, code=0):
    """Runs a script in a process of its own and returns what it prints."""
    return harness.python(*arguments, status=code).stdout


@pytest.fixture(scope="session")
def dlrm_checkpoint(dataset, tmp_path_factory):  # noqa: F811
    """A small DLRM, trained on a dataset that it can learn."""
    folder = tmp_path_factory.mktemp("dlrm")
    make_program(folder)(f"--dataset={dataset}", f"--save_checkpoint_path={folder / 'run'}")
    return folder / "run"
