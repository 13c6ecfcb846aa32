# SPDX-License-Identifier: Apache-2.0
"""Both models in the formats that the bundled server runs, beside their checkpoints."""

import itertools

import numpy as np
import pytest

from bert4rec.serve.export import Bert4RecExport
from dlrm.serve.export import DlrmExport
from recsys.serve.client.connection import Endpoint, EndpointError
from recsys.serve.server.process import ServerSettings, TritonServer
from tests.recsys.serve.checkpoints import (
    NUM_ITEMS_IN_CATALOGUE,
    bert4rec_checkpoint,
    dlrm_checkpoint,
)
from tests.triton.conftest import deploy

pytestmark = pytest.mark.triton_server

TOP_K = 5
MODELS = {
    "dlrm_eager": 1e-6,
    "dlrm_torchscript": 1e-5,
    "dlrm_int8": 0.1,
    "bert4rec_eager": 1e-5,
    "bert4rec_torchscript": 1e-5,
    "bert4rec_onnx": 1e-5,
}
"""Each with the largest difference of an answer that recsys.serve.parity allows it."""
EXPORTED = ("bert4rec_torchscript", "bert4rec_onnx")
"""Networks of histories with a fixed number of places."""


@pytest.fixture(scope="module")
def exports(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoints")
    return {
        "dlrm": DlrmExport(dlrm_checkpoint(folder / "dlrm")[0]),
        "bert4rec": Bert4RecExport(bert4rec_checkpoint(folder / "bert4rec")[0], TOP_K),
    }


@pytest.fixture(scope="module")
def server(exports, tmp_path_factory):
    folder = tmp_path_factory.mktemp("served")
    for name in MODELS:
        kind, _, variant = name.partition("_")
        flag = "--quantize=int8" if variant == "int8" else f"--format={variant}"
        arguments = [f"--name={name}", flag, f"--top_k={TOP_K}", "--warmup=4"]
        deploy(exports[kind].path, folder / "models", *arguments)
    with TritonServer(ServerSettings(repository=folder / "models"), folder / "log") as server:
        server.wait_ready()
        yield server


@pytest.mark.parametrize("protocol", ["grpc", "http"])
@pytest.mark.parametrize("name", MODELS)
def test_answers_are_those_of_the_checkpoint(server, exports, name, protocol):
    export = exports[name.partition("_")[0]]
    requests = export.example_requests(64, fixed_shapes=name in EXPORTED)
    url = server.grpc_url if protocol == "grpc" else server.http_url
    with Endpoint(url, name, protocol=protocol) as endpoint:
        if protocol == "grpc" and "bert4rec" in name:
            assert endpoint.signature.input("exclude_seen").optional == (name not in EXPORTED)
        limit = endpoint.max_batch_size
        answers = [endpoint.predict({k: v[:limit] for k, v in r.items()}) for r in requests]
    assert export.largest_difference(requests, answers) <= MODELS[name]


@pytest.mark.parametrize("name", EXPORTED)
def test_an_exported_network_answers_any_number_of_short_and_full_histories(server, exports, name):
    export = exports["bert4rec"]
    generator = np.random.default_rng(0)
    with Endpoint(server.grpc_url, name) as endpoint:
        (places,) = endpoint.signature.input("history").shape
        items = generator.integers(1, NUM_ITEMS_IN_CATALOGUE + 1, (64, places))
        for rows, length, excluded in itertools.product((1, 2, 64), (1, places), (True, False)):
            request = {
                "history": np.where(np.arange(places) < length, items[:rows], 0),
                "exclude_seen": np.full((rows, 1), excluded),
            }
            answer = endpoint.predict(request)
            assert answer["items"].shape == (rows, TOP_K)
            assert export.largest_difference([request], [answer]) <= MODELS[name]
        for history, message in (
            (np.zeros((1, places), np.int64), "row 0: holds no item"),
            (items[:1] + NUM_ITEMS_IN_CATALOGUE, r"is not in \[0, 51\)"),
            (items[:1, 1:], "unexpected shape for input 'history'"),
        ):
            with pytest.raises(EndpointError, match=message):
                endpoint.send({"history": history, "exclude_seen": np.array([[True]])})


def test_histories_of_several_lengths_and_bad_ones(server, exports):
    with Endpoint(server.grpc_url, "bert4rec_eager") as endpoint:
        # Without exclude_seen, which may be left out, what was seen is not recommended again.
        found = endpoint.predict({"history": np.array([[3, 4, 5]], np.int64)})
        assert not set(found["items"][0]) & {3, 4, 5}
        seen = endpoint.predict(
            {"history": np.array([[3, 4, 5]], np.int64), "exclude_seen": np.array([[False]])}
        )
        assert seen["scores"][0, 0] >= found["scores"][0, 0]
        for history, message in (
            ([[3, NUM_ITEMS_IN_CATALOGUE + 1]], r"row 0, feature 1: 51 is not in \[0, 51\)"),
            ([[3, 1], [0, 0]], "row 1: holds no item"),
            ([[-1]], r"-1 is not in \[0, 51\)"),
        ):
            with pytest.raises(EndpointError, match=message):
                endpoint.predict({"history": np.array(history, np.int64)})
        assert endpoint.predict({"history": np.array([[3, 4, 5]], np.int64)})["items"].shape == (
            1,
            TOP_K,
        )
