# SPDX-License-Identifier: Apache-2.0
"""Clients that give up waiting do not harm a server, nor the answers of the others.

`RECIPES_DEADLINES` sets how many answers they wait for, and how many requests they give up.
"""

import contextlib
import http.client
import json
import os
import random
import socket
import struct
import threading

import numpy as np
import pytest

from dlrm.serve.export import DlrmExport
from recsys.serve.client.connection import Endpoint, EndpointError
from tests import harness
from tests.recsys.serve.checkpoints import dlrm_checkpoint, logits_of
from tests.tools import needs
from tests.triton.conftest import deploy
from tests.triton.test_supervisor import serving

pytestmark = [pytest.mark.triton_server, pytest.mark.slow, needs("compiled Triton backend")]

ROWS, CLIENTS = 64, 16
LEAST = int(os.environ.get("RECIPES_DEADLINES", "3000"))
DEADLINES_S = (None, 0.001, 0.01, 0.03, 0.1, 0.3)
"""Of the clients in turn; those without one wait for every answer."""
RESET = struct.pack("ii", 1, 0)
"""Value of SO_LINGER that ends a connection by a reset."""


class Clients:
    """Threads that ask a model over HTTP; some by sockets of their own, some by our client."""

    def __init__(self, address, models, request, expected):
        self._address, self._models, self._request = address, models, request
        self._expected = expected
        self.refused, self.wrong = [], []
        self.counts = {"answered": 0, "dropped": 0}
        self._lock = threading.Lock()
        inputs = [
            {"name": n, "shape": a.shape, "datatype": t, "data": a.ravel().tolist()}
            for (n, a), t in zip(request.items(), ("FP32", "INT64"), strict=True)
        ]
        self._body = json.dumps({"inputs": inputs}).encode()

    def run(self, number):
        chance = random.Random(number)
        deadline = DEADLINES_S[number % len(DEADLINES_S)]
        ask = self._by_socket if number % 3 else self._by_client
        while min(self.counts.values()) < LEAST and not self.refused:
            model = chance.choice(self._models)
            logits = ask(model, deadline and deadline * chance.uniform(0.5, 1.5), chance)
            with self._lock:
                if logits is None:
                    self.counts["dropped"] += 1
                    continue
                self.counts["answered"] += 1
                if not np.allclose(np.ravel(logits), self._expected, atol=1e-5):
                    self.wrong.append((number, model))

    def _by_client(self, model, deadline, _):
        try:
            timeout_s = deadline or harness.PATIENCE_S
            with Endpoint(self._address, model, timeout_s=timeout_s) as endpoint:
                return endpoint.predict(self._request)["logit"]
        except EndpointError as error:
            if deadline is None or error.status != "DEADLINE_EXCEEDED":
                self.refused.append(str(error))
        return None

    def _by_socket(self, model, deadline, chance):
        timeout_s = deadline or harness.PATIENCE_S
        connection = http.client.HTTPConnection(self._address, timeout=timeout_s)
        with contextlib.closing(connection):
            try:
                connection.connect()
                if chance.random() < 0.5:
                    connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                connection.request("POST", f"/v2/models/{model}/infer", self._body)
                response = connection.getresponse()
                answer = json.loads(response.read())
            except TimeoutError:
                if deadline is None:
                    self.refused.append("no answer")
                return None
            except (OSError, http.client.HTTPException) as error:  # the server ended it
                self.refused.append(repr(error))
                return None
        if response.status != http.client.OK:
            self.refused.append(answer)
            return None
        (output,) = (o for o in answer["outputs"] if o["name"] == "logit")
        return output["data"]


def test_clients_that_drop_connections_over_http_end_no_server(tmp_path):
    checkpoint, model = dlrm_checkpoint(tmp_path / "checkpoint", top_mlp_sizes=[512, 256, 1])
    names = ("native", "python")
    for name in names:
        deploy(checkpoint, tmp_path / "models", f"--backend={name}", f"--name={name}", "--verify=8")
    (request,) = DlrmExport(checkpoint).example_requests(ROWS, fixed_shapes=False)
    with serving(tmp_path / "models") as served:
        server = served.server_pid
        clients = Clients(
            served.http.removeprefix("http://"), names, request, np.ravel(logits_of(model, request))
        )
        threads = [threading.Thread(target=clients.run, args=(i,)) for i in range(CLIENTS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        print(clients.counts)
        assert (clients.refused, clients.wrong) == ([], [])
        served.wait_for_status("ok")
        assert served.health()[1]["restarts"] == []
        assert served.server_pid == server
