# SPDX-License-Identifier: Apache-2.0
"""Recommendations, and networks for NVIDIA's container, beside their checkpoints.

Repositories for NVIDIA's container are taken unchanged by the bundled server with stand-in
backends. Its core reads and enforces the configuration; what runs the file is the library that
NVIDIA's backend wraps, in a stand-in (see stand_in_backend.py). The backends are not tested.
"""

from pathlib import Path

import numpy as np
import pytest

from bert4rec.serve.export import Bert4RecExport
from dlrm.serve.export import DlrmExport
from recsys.ratings.config import RatingsExportOptions
from recsys.serve.client.connection import EndpointError
from recsys.serve.server.probe import Prober
from tests import harness

pytestmark = [pytest.mark.triton_server, pytest.mark.usefixtures("recommenders")]

TOP_K = 10
MODELS = ("bert4rec", "exported")
"""Of all tests; DLRM is asked in test_dlrm_served.py, each format in tests/*/test_export.py."""
CONTAINER = {
    "container_dlrm_onnx": ("--backend=onnx",),
    "container_bert4rec_pt": ("--backend=pytorch", "--preferred_batch_sizes=4,8"),
}
"""Models for NVIDIA's container."""


@pytest.fixture(scope="module")
def exports(server, dlrm_run, bert4rec_run):
    for backend in ("pytorch", "onnxruntime"):
        server.add_backend(backend, Path(__file__).with_name("stand_in_backend.py"))
    dlrm, bert4rec = (
        DlrmExport(dlrm_run),
        Bert4RecExport(bert4rec_run, RatingsExportOptions(top_k=TOP_K)),
    )
    opened = {name: dlrm if "dlrm" in name else bert4rec for name in (*MODELS, *CONTAINER)}
    for_container = ("--target=container", "--max_batch_size=64")
    for name, flags in CONTAINER.items():
        server.serve(name, opened[name].path, *for_container, *flags)
    return opened


@pytest.mark.parametrize("protocol", ["grpc", "http"])
@pytest.mark.parametrize("name", MODELS)
def test_answers_are_those_of_the_checkpoint(server, exports, name, protocol):
    requests = exports[name].example_requests(64, fixed_shapes=name == "exported")
    requests += [{key: array[:rows] for key, array in requests[0].items()} for rows in (1, 2)]
    with server.endpoint(name, protocol) as endpoint:
        if protocol == "grpc":
            assert endpoint.signature.input("exclude_seen").optional == (name != "exported")
        answers = [endpoint.predict(request) for request in requests]
    assert exports[name].largest_difference(requests, answers) <= 1e-5


@pytest.mark.parametrize("name", [*MODELS, *CONTAINER, "named"])
def test_the_row_recorded_at_deployment_is_answered_as_it_was(server, exports, name):
    prober, version = Prober(0.01), (name, "1")

    def probed():
        prober.look(server, server.ready_versions())
        return prober.probes[version]

    first = probed().right
    harness.wait_for(lambda: probed().right > first or probed().fault, "an answer")
    assert probed().fault == ""


@pytest.mark.parametrize("name", CONTAINER)
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


def test_an_id_outside_its_table_gives_no_number_in_the_container(server, exports):
    request = exports["container_dlrm_onnx"].example_requests(4, fixed_shapes=True)[0]
    request["categorical"][2, 0] = 5
    with server.endpoint("container_dlrm_onnx") as endpoint:
        logit = endpoint.predict(request)["logit"][:, 0]
    assert np.isnan(logit).tolist() == [False, False, True, False]


def test_the_core_enforces_the_configuration_for_the_container(server, exports):
    rows = {"numerical": np.zeros((65, 3), np.float32), "categorical": np.zeros((65, 4), np.int64)}
    with server.endpoint("container_dlrm_onnx") as own, pytest.raises(EndpointError, match="64"):
        own.send(rows)
