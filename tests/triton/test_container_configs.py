# SPDX-License-Identifier: Apache-2.0
"""Repositories for NVIDIA's container, unchanged, on the bundled server with stand-in backends.

The server's core reads and enforces the configuration; what runs the file is the library that
NVIDIA's backend wraps, in a stand-in (see stand_in_backend.py). The backends themselves are not
tested.
"""

from pathlib import Path

import numpy as np
import pytest
import torch

from bert4rec.serve.export import Bert4RecExport
from dlrm.serve.export import DlrmExport
from recsys.serve.client.connection import Endpoint, EndpointError
from recsys.serve.server.process import ServerSettings, TritonServer
from tests.recsys.serve.checkpoints import bert4rec_checkpoint, dlrm_checkpoint
from tests.triton.conftest import deploy

pytestmark = pytest.mark.triton_server

STAND_IN = Path(__file__).with_name("stand_in_backend.py")
MODELS = {
    "dlrm_pt": (dlrm_checkpoint, ("--backend=pytorch",)),
    "dlrm_onnx": (dlrm_checkpoint, ("--backend=onnx",)),
    "bert4rec_pt": (bert4rec_checkpoint, ("--backend=pytorch", "--preferred_batch_sizes=4,8")),
}


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoints")
    return {name: write(folder / name)[0] for name, (write, _) in MODELS.items()}


@pytest.fixture(scope="module")
def server(checkpoints, tmp_path_factory):
    folder = tmp_path_factory.mktemp("container")
    for name, (_, arguments) in MODELS.items():
        deploy(
            checkpoints[name],
            folder / "models",
            *("--target=container", f"--name={name}", "--max_batch_size=64", *arguments),
        )
    settings = ServerSettings(
        repository=folder / "models", stand_ins={"pytorch": STAND_IN, "onnxruntime": STAND_IN}
    )
    with TritonServer(settings, folder / "log") as server:
        server.wait_ready()
        yield server


@pytest.mark.parametrize("name", MODELS)
def test_the_server_takes_the_configuration_and_answers_as_the_checkpoint(
    server, checkpoints, name
):
    positional = name.endswith("_pt")
    export = (
        Bert4RecExport(checkpoints[name], 10)
        if name.startswith("bert4rec")
        else DlrmExport(checkpoints[name])
    )
    named = export.signature(fixed_shapes=True)
    served = named.positional() if positional else named
    requests = export.example_requests(80, fixed_shapes=True)
    requests = [{key: value[:32] for key, value in request.items()} for request in requests]
    answers = []
    with Endpoint(server.grpc_url, name, protocol="grpc") as endpoint:
        assert endpoint.signature.inputs == served.inputs
        for request in requests:
            found = endpoint.predict(
                {
                    there.name: request[here.name]
                    for here, there in zip(named.inputs, served.inputs, strict=True)
                }
            )
            answers.append(
                {
                    here.name: found[there.name]
                    for here, there in zip(named.outputs, served.outputs, strict=True)
                }
            )
    assert export.largest_difference(requests, answers) <= 1e-5


def test_an_id_outside_its_table_gives_no_number(server, checkpoints):
    request = DlrmExport(checkpoints["dlrm_onnx"]).example_requests(4, fixed_shapes=True)[0]
    request["categorical"][2, 0] = 5
    with Endpoint(server.grpc_url, "dlrm_onnx", protocol="grpc") as endpoint:
        logit = endpoint.predict(request)["logit"][:, 0]
    assert np.isnan(logit).tolist() == [False, False, True, False]


def test_the_core_enforces_the_configuration(server):
    with Endpoint(server.grpc_url, "dlrm_pt", protocol="grpc") as endpoint:
        rows = torch.zeros(65, 3).numpy()
        with pytest.raises((EndpointError, ValueError), match="64"):
            endpoint.send({"INPUT__0": rows, "INPUT__1": np.zeros((65, 4), np.int64)})
