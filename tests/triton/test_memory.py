# SPDX-License-Identifier: Apache-2.0
"""Instances of a model share its tables; servers and supervisors keep no memory without need."""

import json
import os
import random
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from benchmark.processes import process_memory
from recsys.serve.client.connection import keep_shared, predict_in_order
from recsys.serve.server.instances import find_instances
from tests import harness
from tests.recsys.serve.checkpoints import NUM_NUMERICAL, dlrm_checkpoint
from tests.triton.tiny_model import write_version

pytestmark = pytest.mark.triton_server

TABLE_SIZES = (1 << 18,) * 4
DIM = 128
TABLES = sum(TABLE_SIZES) * DIM * 4
"""Bytes of all tables, 512 MiB."""
HUGE = 8 << 20
"""Most bytes of a request."""


def test_two_instances_hold_the_tables_once(server, tmp_path):
    sizes = {"embedding_dim": DIM, "bottom_mlp_sizes": [16, DIM]}
    checkpoint, _ = dlrm_checkpoint(tmp_path / "checkpoint", TABLE_SIZES, **sizes)
    # Unbatched, so that both instances work at a time.
    name = server.serve("large", checkpoint, "--instances=2", "--verify=64", "--nodynamic_batching")

    def memory():
        instances = find_instances(server.pid)
        return [process_memory(i.pid) for i in instances if i.model == name]

    ids = np.arange(TABLE_SIZES[0], dtype=np.int64).reshape(-1, 4096)
    requests = [
        {
            "numerical": np.zeros((4096, NUM_NUMERICAL), np.float32),
            "categorical": np.ascontiguousarray(np.stack([part] * 4, axis=1)),
        }
        for part in ids
    ]
    idle = memory()
    assert len(idle) == 2
    with server.endpoint(name) as endpoint:
        for _ in range(10):
            for _ in predict_in_order(endpoint, requests, concurrency=4):
                pass
            found = memory()
            # Each has read (nearly) every row itself.
            if all(instance.rss > 0.95 * TABLES for instance in found):
                break
    server.unload(name)
    assert all(instance.rss > 0.95 * TABLES for instance in found)
    # What a process needs besides depends on the build of PyTorch, so the growth tells.
    of_own = sum(i.anonymous for i in found) - sum(i.anonymous for i in idle)
    assert of_own < 0.1 * TABLES
    # Pages come when they are read, once for both.
    grown = sum(i.pss for i in found) - sum(i.pss for i in idle)
    assert 0.8 * TABLES < grown < 1.2 * TABLES


def test_a_server_gives_the_memory_of_huge_requests_back(server):
    write_version(server.repository, "refuses", 1, 2.0)
    server.load("refuses")
    url = f"http://{server.http_url}/v2/models/refuses/infer"

    def send(number):
        """Sends more rows than the model takes."""
        rows = random.Random(number).randrange(1000, HUGE // 8)
        tensor = {"name": "x", "datatype": "FP32", "shape": [rows, 2]}
        headers = {"Content-Type": "application/json"}  # not a form
        if number % 2:
            body = json.dumps({"inputs": [tensor | {"data": [1] * (rows // 5)}]}).encode()
        else:
            tensor["parameters"] = {"binary_data_size": 8 * rows}
            head = json.dumps({"inputs": [tensor]}).encode()
            headers["Inference-Header-Content-Length"] = str(len(head))
            body = head + bytes(8 * rows)
        with pytest.raises(urllib.error.HTTPError):
            urllib.request.urlopen(
                urllib.request.Request(url, body, headers), timeout=harness.PATIENCE_S
            )

    before = process_memory(server.pid).anonymous
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(send, range(200)))
    # Without a fixed size of mapped blocks, 60 to 80 MiB stay.
    harness.wait_for(
        lambda: process_memory(server.pid).anonymous < before + 3 * HUGE, "freed memory"
    )
    server.unload("refuses")


def test_a_thread_that_asks_again_and_again_does_not_grow(server):
    """As the supervisor's probes do, for as long as a server runs."""
    write_version(server.repository, "probed", 1, 2.0)
    server.load("probed")

    def ask(times):
        for _ in range(times):
            with server.endpoint("probed") as endpoint:
                endpoint.predict({"x": np.ones((1, 2), np.float32)})
        return process_memory(os.getpid()).anonymous

    with ThreadPoolExecutor(1, initializer=keep_shared) as thread:
        before, after = (thread.submit(ask, times).result() for times in (50, 500))
    server.unload("probed")
    assert after - before < 3 << 20  # 500 x 14 KiB without `keep_shared`
