# SPDX-License-Identifier: Apache-2.0
"""Instances of a model share its tables: the second costs little more than its Python."""

import numpy as np
import pytest

from benchmark.processes import process_memory
from recsys.serve.client.connection import predict_in_order
from recsys.serve.server.instances import find_instances
from tests.recsys.serve.checkpoints import NUM_NUMERICAL, dlrm_checkpoint

pytestmark = pytest.mark.triton_server

TABLE_SIZES = (1 << 18,) * 4
DIM = 128
TABLES = sum(TABLE_SIZES) * DIM * 4
"""Bytes of all tables, 512 MiB."""


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
