# SPDX-License-Identifier: Apache-2.0
"""Both models in every format, beside their checkpoints.

Repositories for NVIDIA's container are taken unchanged by the bundled server with stand-in
backends. Its core reads and enforces the configuration; what runs the file is the library that
NVIDIA's backend wraps, in a stand-in (see stand_in_backend.py). The backends are not tested.
"""

import itertools
from pathlib import Path

import numpy as np
import pytest

from bert4rec.serve.export import Bert4RecExport
from dlrm.serve.export import DlrmExport
from recsys.serve.client.connection import EndpointError
from recsys.serve.server.probe import Prober
from tests import harness
from tests.bert4rec.conftest import NUM_ITEMS

pytestmark = [pytest.mark.triton_server, pytest.mark.usefixtures("recommenders")]

TOP_K = 10
FLAGS = {
    "dlrm_torchscript": ("--format=torchscript", "--warmup=4"),
    "dlrm_int8": ("--quantize=int8",),
    "bert4rec_onnx": ("--format=onnx",),
}
"""Models besides those of all tests."""
MODELS = {
    "dlrm_torchscript": 1e-5,
    "dlrm_int8": 0.1,
    "bert4rec": 1e-5,
    "exported": 1e-5,
    "bert4rec_onnx": 1e-5,
}
"""Each with the largest difference of an answer that a deployment allows it."""
EXPORTED = ("exported", "bert4rec_onnx")
"""Networks of histories with a fixed number of places."""
CONTAINER = {
    "container_dlrm_pt": ("--backend=pytorch",),
    "container_dlrm_onnx": ("--backend=onnx",),
    "container_bert4rec_pt": ("--backend=pytorch", "--preferred_batch_sizes=4,8"),
}
"""Models for NVIDIA's container."""


@pytest.fixture(scope="module")
def exports(server, dlrm_run, bert4rec_run):
    for backend in ("pytorch", "onnxruntime"):
        server.add_backend(backend, Path(__file__).with_name("stand_in_backend.py"))
    dlrm, bert4rec = DlrmExport(dlrm_run), Bert4RecExport(bert4rec_run, TOP_K)
    opened = {name: dlrm if "dlrm" in name else bert4rec for name in (*MODELS, *CONTAINER)}
    for_container = ("--target=container", "--max_batch_size=64")
    for name, flags in FLAGS.items():
        server.serve(name, opened[name].path, *flags)
    for name, flags in CONTAINER.items():
        server.serve(name, opened[name].path, *for_container, *flags)
    return opened


@pytest.mark.parametrize("protocol", ["grpc", "http"])
@pytest.mark.parametrize("name", MODELS)
def test_answers_are_those_of_the_checkpoint(server, exports, name, protocol):
    requests = exports[name].example_requests(64, fixed_shapes=name in EXPORTED)
    with server.endpoint(name, protocol) as endpoint:
        if protocol == "grpc" and "dlrm" not in name:
            assert endpoint.signature.input("exclude_seen").optional == (name not in EXPORTED)
        answers = [endpoint.predict(request) for request in requests]
    assert exports[name].largest_difference(requests, answers) <= MODELS[name]


@pytest.mark.parametrize("name", [*MODELS, *CONTAINER, "named"])
def test_the_row_recorded_at_deployment_is_answered_as_it_was(server, exports, name):
    prober, version = Prober(0.01), (name, "1")

    def last_right():
        prober.look(server, [version])
        return prober.right[version]

    first = last_right()
    harness.wait_for(lambda: last_right() > first or prober.faults, "an answer")
    assert prober.faults == {}


@pytest.mark.parametrize("name", EXPORTED)
def test_an_exported_network_answers_any_number_of_short_and_full_histories(server, exports, name):
    generator = np.random.default_rng(0)
    with server.endpoint(name) as endpoint:
        (places,) = endpoint.signature.input("history").shape
        items = generator.integers(1, NUM_ITEMS + 1, (16, places))
        for rows, length, excluded in itertools.product((1, 2, 16), (1, places), (True, False)):
            request = {
                "history": np.where(np.arange(places) < length, items[:rows], 0),
                "exclude_seen": np.full((rows, 1), excluded),
            }
            answer = endpoint.predict(request)
            assert answer["items"].shape == (rows, TOP_K)
            assert exports[name].largest_difference([request], [answer]) <= MODELS[name]
        for history, message in (
            (np.zeros((1, places), np.int64), "row 0: holds no item"),
            (items[:1] + NUM_ITEMS, r"is not in \[0, 41\)"),
            (items[:1, 1:], "unexpected shape for input 'history'"),
        ):
            with pytest.raises(EndpointError, match=message):
                endpoint.send({"history": history, "exclude_seen": np.array([[True]])})


def test_histories_of_several_lengths_and_bad_ones(server):
    with server.endpoint("bert4rec") as endpoint:
        # Without exclude_seen, which may be left out, what was seen is not recommended again.
        found = endpoint.predict({"history": np.array([[3, 4, 5]], np.int64)})
        assert not set(found["items"][0]) & {3, 4, 5}
        seen = endpoint.predict(
            {"history": np.array([[3, 4, 5]], np.int64), "exclude_seen": np.array([[False]])}
        )
        assert seen["scores"][0, 0] >= found["scores"][0, 0]
        for history, message in (
            ([[3, NUM_ITEMS + 1]], r"row 0, feature 1: 41 is not in \[0, 41\)"),
            ([[3, 1], [0, 0]], "row 1: holds no item"),
            ([[-1]], r"-1 is not in \[0, 41\)"),
        ):
            with pytest.raises(EndpointError, match=message):
                endpoint.predict({"history": np.array(history, np.int64)})
        again = endpoint.predict({"history": np.array([[3, 4, 5]], np.int64)})
        np.testing.assert_array_equal(again["items"], found["items"])


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
    rows = {"INPUT__0": np.zeros((65, 3), np.float32), "INPUT__1": np.zeros((65, 4), np.int64)}
    with server.endpoint("container_dlrm_pt") as endpoint, pytest.raises(EndpointError, match="64"):
        endpoint.send(rows)
