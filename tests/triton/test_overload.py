# SPDX-License-Identifier: Apache-2.0
"""A server with more work than it can do refuses what waits for too long, and says why."""

import importlib
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from dlrm.serve.export import DlrmExport
from recsys.serve.client.connection import Endpoint, EndpointError, OverloadedError
from tests import harness
from tests.recsys.serve.checkpoints import dlrm_checkpoint
from tests.tools import needs
from tests.triton.conftest import deployer

pytestmark = [pytest.mark.triton_server, needs("compiled Triton backend")]

ROWS, CLIENTS = 1024, 24


@pytest.fixture(scope="module")
def request_(server, tmp_path_factory):
    """A request of ROWS rows, for which the model "slow" takes long."""
    folder = tmp_path_factory.mktemp("overload")
    checkpoint, _ = dlrm_checkpoint(folder / "checkpoint", top_mlp_sizes=[2048, 1024, 1])
    flags = (f"--max_batch_size={ROWS}", "--verify=8", "--backend=native")
    server.serve("slow", checkpoint, *flags)
    requests = DlrmExport(checkpoint).example_requests(ROWS, fixed_shapes=False)
    return {n: np.concatenate([r[n] for r in requests]) for n in ("numerical", "categorical")}


def outcome(endpoint, request, started):
    """Asks at once; returns the error, if any, and the seconds since the start."""
    with Endpoint(*endpoint) as own:
        try:
            own.predict(request)
        except EndpointError as error:
            return error, time.monotonic() - started
    return None, time.monotonic() - started


def ask_at_once(endpoint, request):
    started = time.monotonic()
    with ThreadPoolExecutor(CLIENTS) as pool:
        return list(pool.map(lambda _: outcome(endpoint, request, started), range(CLIENTS)))


def configure(server, *flags):
    assert deployer(server.repository, "--name=slow", *flags) == 0
    server.load("slow")


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_requests_above_the_queue_s_size_are_refused_at_once(server, request_, protocol):
    configure(server, "--max_queue_size=2", "--timeout_us=0")
    url = server.grpc_url if protocol == "grpc" else server.http_url
    outcomes = ask_at_once((url, "slow", "", protocol), request_)
    refused = [pair for pair in outcomes if pair[0]]
    assert 0 < len(refused) < CLIENTS
    for error, _ in refused:
        assert isinstance(error, OverloadedError)
        harness.assert_tells(str(error), "`max_queue_size`")
    assert min(after for _, after in refused) < max(after for error, after in outcomes if not error)


def test_requests_that_wait_for_too_long_are_refused(server, request_):
    configure(server, "--max_queue_size=0", "--timeout_us=0")
    unlimited = ask_at_once((server.http_url, "slow"), request_)
    assert not any(error for error, _ in unlimited)
    whole = max(after for _, after in unlimited)
    configure(server, f"--timeout_us={round(whole / 10 * 1e6)}")
    outcomes = ask_at_once((server.http_url, "slow"), request_)
    refused = [pair for pair in outcomes if pair[0]]
    assert 0 < len(refused) < CLIENTS
    for error, _ in refused:
        assert isinstance(error, OverloadedError)
        harness.assert_tells(str(error), "`timeout_us`")


def test_a_request_s_own_timeout_holds(server, request_):
    """That of the protocol, which servers with a bounded queue read."""
    configure(server, "--max_queue_size=0", f"--timeout_us={600 * 1_000_000}")
    library = importlib.import_module("tritonclient.http")
    refused = importlib.import_module("tritonclient.utils").InferenceServerException
    one = []
    for name, array in request_.items():
        tensor = library.InferInput(
            name, [1, *array.shape[1:]], "FP32" if name == "numerical" else "INT64"
        )
        tensor.set_data_from_numpy(array[:1])
        one.append(tensor)
    with (
        server.endpoint("slow") as endpoint,
        library.InferenceServerClient(server.http_url) as client,
        ThreadPoolExecutor(1) as pool,
    ):
        answered = endpoint.times().requests
        flood = pool.submit(ask_at_once, (server.http_url, "slow"), request_)
        harness.wait_for(lambda: endpoint.times().requests > answered, "the first answer")
        with pytest.raises(refused) as late:
            client.infer("slow", one, timeout=100_000)
        assert "timeout" in str(late.value)
        others_wait = not flood.done()
        outcomes = flood.result()
        # The native backend counts a request after it was answered.
        harness.wait_for(lambda: endpoint.times().requests >= answered + CLIENTS, "the count")
        assert endpoint.times().requests == answered + CLIENTS
    assert not any(error for error, _ in outcomes)
    assert others_wait  # seconds would depend on what else this machine does
