# SPDX-License-Identifier: Apache-2.0
"""Both models in the formats that the bundled server runs, beside their checkpoints."""

import itertools

import numpy as np
import pytest

from bert4rec.serve.export import Bert4RecExport
from dlrm.serve.export import DlrmExport
from recsys.serve.client.connection import EndpointError
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


@pytest.fixture(scope="module")
def exports(server, dlrm_run, bert4rec_run):
    runs = {"dlrm": dlrm_run, "bert4rec": bert4rec_run}
    for name, flags in FLAGS.items():
        server.serve(name, runs[name.partition("_")[0]], *flags)
    dlrm, bert4rec = DlrmExport(dlrm_run), Bert4RecExport(bert4rec_run, TOP_K)
    return {name: dlrm if name.startswith("dlrm") else bert4rec for name in MODELS}


@pytest.mark.parametrize("protocol", ["grpc", "http"])
@pytest.mark.parametrize("name", MODELS)
def test_answers_are_those_of_the_checkpoint(server, exports, name, protocol):
    requests = exports[name].example_requests(64, fixed_shapes=name in EXPORTED)
    with server.endpoint(name, protocol) as endpoint:
        if protocol == "grpc" and "dlrm" not in name:
            assert endpoint.signature.input("exclude_seen").optional == (name not in EXPORTED)
        answers = [endpoint.predict(request) for request in requests]
    assert exports[name].largest_difference(requests, answers) <= MODELS[name]


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
