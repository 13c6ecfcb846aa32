# SPDX-License-Identifier: Apache-2.0
"""Repositories for NVIDIA's container, unchanged, on the bundled server with stand-in backends.

The server's core reads and enforces the configuration; what runs the file is the library that
NVIDIA's backend wraps, in a stand-in (see stand_in_backend.py). The backends themselves are not
tested.
"""

from pathlib import Path

import numpy as np
import pytest

from bert4rec.serve.export import Bert4RecExport
from dlrm.serve.export import DlrmExport
from recsys.serve.client.connection import EndpointError

pytestmark = pytest.mark.triton_server

STAND_IN = Path(__file__).with_name("stand_in_backend.py")
FLAGS = {
    "dlrm_pt": ("--backend=pytorch",),
    "dlrm_onnx": ("--backend=onnx",),
    "bert4rec_pt": ("--backend=pytorch", "--preferred_batch_sizes=4,8"),
}


@pytest.fixture(scope="module")
def exports(server, dlrm_run, bert4rec_run):
    for backend in ("pytorch", "onnxruntime"):
        server.add_backend(backend, STAND_IN)
    bert4rec = Bert4RecExport(bert4rec_run, 10)
    opened = {n: bert4rec if n == "bert4rec_pt" else DlrmExport(dlrm_run) for n in FLAGS}
    for name, export in opened.items():
        server.serve(name, export.path, "--target=container", "--max_batch_size=64", *FLAGS[name])
    return opened


@pytest.mark.parametrize("name", FLAGS)
def test_the_server_takes_the_configuration_and_answers_as_the_checkpoint(server, exports, name):
    export = exports[name]
    named = export.signature(fixed_shapes=True)
    served = named.positional() if name.endswith("_pt") else named
    requests = export.example_requests(80, fixed_shapes=True)
    requests = [{key: value[:32] for key, value in request.items()} for request in requests]
    there = {here.name: t.name for here, t in zip(named.inputs, served.inputs, strict=True)}
    here = {t.name: here.name for here, t in zip(named.outputs, served.outputs, strict=True)}
    with server.endpoint(name) as endpoint:
        assert endpoint.signature.inputs == served.inputs
        answers = [
            endpoint.predict({there[key]: value for key, value in request.items()})
            for request in requests
        ]
    answers = [{here[key]: value for key, value in answer.items()} for answer in answers]
    assert export.largest_difference(requests, answers) <= 1e-5


def test_an_id_outside_its_table_gives_no_number(server, exports):
    request = exports["dlrm_onnx"].example_requests(4, fixed_shapes=True)[0]
    request["categorical"][2, 0] = 5
    with server.endpoint("dlrm_onnx") as endpoint:
        logit = endpoint.predict(request)["logit"][:, 0]
    assert np.isnan(logit).tolist() == [False, False, True, False]


def test_the_core_enforces_the_configuration(server, exports):
    rows = {"INPUT__0": np.zeros((65, 3), np.float32), "INPUT__1": np.zeros((65, 4), np.int64)}
    with server.endpoint("dlrm_pt") as endpoint, pytest.raises(EndpointError, match="64"):
        endpoint.send(rows)
