# SPDX-License-Identifier: Apache-2.0
"""The native backend on a real server, beside the Python backend on the same server."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from dlrm.model.weights import OpenedCheckpoint
from recsys.serve.client.connection import Endpoint, EndpointError, predict_in_order
from recsys.serve.server.instances import find_instances
from recsys.serve.server.process import ServerSettings, TritonServer
from tests.tools import needs
from tests.triton.conftest import deploy
from tests.triton.test_dlrm_served import BAD, MAX_BATCH_SIZE, changed, draw, with_value

pytestmark = [
    pytest.mark.triton_server,
    needs("compiled Triton backend"),
]

UNBATCHED = ("--max_batch_size=0", "--nodynamic_batching")
MODELS = {
    "python": (),
    "native": ("--backend=native", "--warmup=8"),
    "python_unbatched": UNBATCHED,
    "native_unbatched": ("--backend=native", "--instances=2", "--threads=2", *UNBATCHED),
}


@pytest.fixture(scope="module")
def server(dlrm_checkpoint, tmp_path_factory):
    folder = tmp_path_factory.mktemp("served")
    for name, flags in MODELS.items():
        largest = f"--max_batch_size={MAX_BATCH_SIZE}"
        deploy(dlrm_checkpoint, folder / "models", f"--name={name}", largest, *flags)
    with TritonServer(ServerSettings(repository=folder / "models"), folder / "log") as server:
        server.wait_ready()
        yield server


def open_endpoint(server, model, protocol="grpc"):
    url = server.grpc_url if protocol == "grpc" else server.http_url
    return Endpoint(url, model, protocol=protocol)


@pytest.fixture(scope="module")
def offline(dlrm_checkpoint):
    model = OpenedCheckpoint.open(dlrm_checkpoint).load()

    @torch.inference_mode()
    def answer(request):
        logits = model(*(torch.from_numpy(request[n]) for n in ("numerical", "categorical")))
        return logits.numpy()[:, None]

    return answer


@pytest.mark.parametrize("protocol", ["grpc", "http"])
@pytest.mark.parametrize("model", ["native", "native_unbatched"])
def test_answers_equal_the_checkpoint(server, offline, model, protocol):
    with open_endpoint(server, model, protocol) as endpoint:
        for rows in (1, 2, 9, 64, MAX_BATCH_SIZE):
            request = draw(rows, rows)
            answer, logits = endpoint.predict(request), offline(request)
            np.testing.assert_allclose(answer["logit"], logits, rtol=0, atol=1e-5)
            probabilities = 1 / (1 + np.exp(-logits))
            np.testing.assert_allclose(answer["probability"], probabilities, rtol=0, atol=1e-5)


def refusal(server, model, request, protocol):
    """Returns the status and the words of a refusal, without the name of the model."""
    with open_endpoint(server, model, protocol) as endpoint:
        with pytest.raises(EndpointError) as refused:
            endpoint.send(request)
        words = str(refused.value).partition(": ")[2].replace(model, "MODEL")
        return refused.value.status, words


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_bad_requests_get_the_words_of_the_python_backend(server, protocol):
    for case, (request, from_server, _) in BAD.items():
        status, words = refusal(server, "native", request, protocol)
        expected_status, expected = refusal(server, "python", request, protocol)
        assert status == expected_status
        if "output" in from_server:  # which number an overflow ends in depends on the order of sums
            words, expected = words.partition(":")[0], expected.partition(":")[0]
        assert words == expected, case


def test_rows_that_differ_get_the_words_of_the_python_backend(server):
    request = changed(numerical=draw(2)["numerical"])
    native, python = (
        refusal(server, f"{name}_unbatched", request, "grpc") for name in ("native", "python")
    )
    assert native == python
    assert "inputs differ in their number of rows: numerical 2, categorical 4" in native[1]


def test_a_bad_request_does_not_harm_those_it_is_put_together_with(server, offline):
    bad = with_value("categorical", 1, 0, -1)
    requests = [bad if i % 3 == 0 else draw(1 + i % 7, i) for i in range(120)]
    with open_endpoint(server, "native") as endpoint:
        before = endpoint.times()

        def answer(request):
            with endpoint.again() as own:
                try:
                    return own.send(request)["logit"]
                except EndpointError as error:
                    return error

        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(answer, requests))
        times = endpoint.times().since(before)
    for request, found in zip(requests, answers, strict=True):
        if request is bad:
            assert "row 1, feature 0" in str(found)
        else:
            np.testing.assert_allclose(found, offline(request), rtol=0, atol=1e-5)
    good = [request for request in requests if request is not bad]
    assert times.requests == len(good)
    assert times.rows == sum(len(request["numerical"]) for request in good)
    assert 0 < times.executions <= len(requests)
    assert times.compute_s > 0


def test_instances_work_at_a_time_and_without_processes_of_their_own(server, offline):
    requests = [draw(200, i) for i in range(40)]
    with open_endpoint(server, "native_unbatched") as endpoint:
        answers = list(predict_in_order(endpoint, requests, concurrency=4))
    for request, found in zip(requests, answers, strict=True):
        np.testing.assert_allclose(found["logit"], offline(request), rtol=0, atol=1e-5)
    assert {instance.model for instance in find_instances(server.pid)} == {
        *("python", "python_unbatched")
    }


def test_a_client_may_ask_for_one_output(server, offline):
    import tritonclient.grpc as grpc

    request = draw(3)
    inputs = []
    for name, array in request.items():
        inputs.append(
            grpc.InferInput(name, array.shape, "FP32" if name == "numerical" else "INT64")
        )
        inputs[-1].set_data_from_numpy(array)
    with grpc.InferenceServerClient(server.grpc_url) as client:
        outputs = [grpc.InferRequestedOutput("logit")]
        answer = client.infer("native", inputs, outputs=outputs)
    np.testing.assert_allclose(answer.as_numpy("logit"), offline(request), rtol=0, atol=1e-5)
    assert answer.as_numpy("probability") is None


def test_a_version_that_does_not_load_leaves_the_server_and_names_its_file(
    dlrm_checkpoint, tmp_path
):
    models = tmp_path / "models"
    for name in ("good", "damaged"):
        deploy(dlrm_checkpoint, models, f"--name={name}", "--backend=native")
    weights = models / "damaged" / "1" / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with TritonServer(ServerSettings(repository=models), tmp_path / "log") as server:
        server.wait_ready()
        states = {model["name"]: model for model in server.models()}
        assert states["good"]["state"] == "READY"
        assert states["damaged"]["state"] == "UNAVAILABLE"
        assert "weights.safetensors" in states["damaged"]["reason"]
        with open_endpoint(server, "good") as endpoint:
            assert endpoint.predict(draw(2))["logit"].shape == (2, 1)
        server.unload("good")
        server.load("good")
        with open_endpoint(server, "good") as endpoint:
            assert endpoint.predict(draw(2))["logit"].shape == (2, 1)
