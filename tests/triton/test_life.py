# SPDX-License-Identifier: Apache-2.0
"""The whole life of a server under load: deployments, a rollback, kills and a damaged model."""

import os
import re
import signal
import time

import numpy as np
import pytest

from recsys.serve.client.connection import Endpoint, EndpointError
from recsys.serve.server.instances import find_instances
from tests import harness
from tests.triton.test_reload import Flow
from tests.triton.test_supervisor import serving
from tests.triton.tiny_model import write_version

pytestmark = [pytest.mark.triton_server, pytest.mark.release]

OUTAGE_S = 120
"""Longest time from a kill to the last failure, on a machine that does much else."""


class Clients(Flow):
    """Clients that go on after a failure, whose time they keep."""

    def _ask(self, arguments, answers):
        while not self._stop.is_set():
            try:
                with Endpoint(*arguments, timeout_s=10) as endpoint:
                    while not self._stop.is_set():
                        answers.append(endpoint.predict(self._request)["logit"])
                        time.sleep(0.05)
            except EndpointError:
                self.failures.append(time.monotonic())
                time.sleep(0.2)


def test_a_whole_life_has_no_wrong_answer_and_fails_after_kills_alone(generations, tmp_path):
    repository, kills, reasons = tmp_path / "models", [], []

    def deployer(*arguments):
        where = ("triton/deployer.py", f"--repository={repository}")
        return harness.python(*where, *arguments).stdout

    def deploy(generation):
        deployer(f"--checkpoint={generations.checkpoints[generation]}", "--instances=2")

    deploy(0)
    with (
        serving(repository, "--poll_secs=1") as served,
        Clients([(served.grpc, "dlrm")] * 3, generations.request) as clients,
    ):

        def wait_for(version):
            def serves():
                code, body = served.health("/dlrm")
                return code == 200 and body["models"]["dlrm"] == [version]

            harness.wait_for(serves, f"version {version}: {served.said}", 300)

        def kill(pid, reason):
            kills.append(time.monotonic())
            reasons.append(reason)
            os.kill(pid, signal.SIGKILL)
            served.wait_for_restart(len(kills))

        write_version(repository, "broken", 1, 2.0, "raise ValueError('no')")
        harness.wait_for(lambda: served.health()[1]["status"] == "degraded", "broken")
        deploy(1)
        wait_for(2)
        rolled_back = deployer("--name=dlrm", "--rollback")
        assert re.search(r"-> 1\b", rolled_back)
        wait_for(1)
        deploy(2)
        wait_for(3)
        instances = find_instances(served.server_pid)
        # Not one of a version that another has just replaced: nobody misses that.
        newest = ("dlrm", "3")
        instance = next(i for i in instances if (i.model, i.version_folder.name) == newest)
        kill(instance.pid, f"instance {instance.name} (process {instance.pid}) died")
        wait_for(3)
        kill(served.server_pid, "the server ended with signal SIGKILL")
        wait_for(3)
        deploy(0)
        wait_for(4)
        assert [reason.partition(" ")[2] for reason in served.health()[1]["restarts"]] == reasons
        assert served.health("/broken")[0] == 503

    answers = [logit for of_client in clients.answers for logit in of_client]
    assert answers
    versions = generations.logits
    assert all(any(np.allclose(a, v, atol=1e-6) for v in versions) for a in answers)
    after = [min((t - k for k in kills if k <= t), default=None) for t in clients.failures]
    assert None not in after
    assert max(after, default=0) < OUTAGE_S
