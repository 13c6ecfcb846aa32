# SPDX-License-Identifier: Apache-2.0
"""The native backend on a real server, beside the Python backend on the same server."""

import numpy as np
import pytest

from dlrm.model.weights import OpenedCheckpoint
from recsys.serve.client.connection import EndpointError, predict_in_order
from recsys.serve.server.instances import find_instances
from tests.recsys.serve.checkpoints import logits_of
from tests.tools import needs
from tests.triton.conftest import deploy
from tests.triton.test_dlrm_served import FLAGS, changed, draw

pytestmark = [
    pytest.mark.triton_server,
    needs("compiled Triton backend"),
]

UNBATCHED = ("--max_batch_size=0", "--nodynamic_batching")
MODELS = FLAGS | {
    "dlrm_unbatched": UNBATCHED,
    "native_unbatched": ("--backend=native", "--instances=2", "--threads=2", *UNBATCHED),
}


@pytest.fixture(scope="module", autouse=True)
def models(server, dlrm_run):
    for name, flags in MODELS.items():
        server.serve(name, dlrm_run, *flags)


@pytest.fixture(scope="module")
def offline(dlrm_run):
    model = OpenedCheckpoint.open(dlrm_run).load()
    return lambda request: logits_of(model, request)


@pytest.mark.parametrize("model", ["dlrm_unbatched", "native_unbatched"])
def test_rows_that_differ_are_refused_by_either_backend(server, model):
    request = changed(numerical=draw(2)["numerical"])
    with server.endpoint(model) as endpoint, pytest.raises(EndpointError) as refused:
        endpoint.send(request)
    assert refused.value.status == "INVALID_ARGUMENT"
    assert "inputs differ in their number of rows: numerical 2, categorical 4" in str(refused.value)


def test_instances_work_at_a_time_and_without_processes_of_their_own(server, offline):
    requests = [draw(200, i) for i in range(40)] + [draw(rows, rows) for rows in (1, 9)]
    with server.endpoint("native_unbatched") as endpoint:
        answers = list(predict_in_order(endpoint, requests, concurrency=4))
    for request, found in zip(requests, answers, strict=True):
        np.testing.assert_allclose(found["logit"], offline(request), rtol=0, atol=1e-5)
    models = {instance.model for instance in find_instances(server.pid)}
    assert models & MODELS.keys() == {"dlrm", "dlrm_unbatched"}


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


def test_a_version_that_does_not_load_leaves_the_server_and_names_its_file(server, dlrm_run):
    deploy(dlrm_run, server.repository, "--name=damaged", "--backend=native")
    weights = server.repository / "damaged" / "1" / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(Exception, match=r"weights\.safetensors"):
        server.load("damaged")
    states = {model["name"]: model.get("state") for model in server.models()}
    assert states["damaged"] == "UNAVAILABLE"
    for again in (False, True):
        if again:
            server.unload("native")
            server.load("native")
        with server.endpoint("native") as endpoint:
            assert endpoint.predict(draw(2))["logit"].shape == (2, 1)
