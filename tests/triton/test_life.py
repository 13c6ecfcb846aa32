# SPDX-License-Identifier: Apache-2.0
"""The whole life of a server under load: deployments, rollbacks, kills and a damaged model.

LIFE=20,5,3,2 is the long one: deployments, rollbacks, kills of an instance and of the server.
"""

import itertools
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

DEPLOYMENTS, ROLLBACKS, INSTANCE_KILLS, SERVER_KILLS = map(
    int, os.environ.get("LIFE", "3,1,1,1").split(",")
)
OUTAGE_S = 120
"""Longest time from a kill to the last failure, on a machine that does much else."""


class Clients(Flow):
    """Clients that go on after a failure; each answer and failure has its time."""

    def _ask(self, arguments, answers):
        while not self._stop.is_set():
            try:
                with Endpoint(*arguments, timeout_s=10) as endpoint:
                    while not self._stop.is_set():
                        logit = endpoint.predict(self._request)["logit"]
                        answers.append((time.monotonic(), logit))
                        time.sleep(0.05)
            except EndpointError as error:
                self.failures.append((time.monotonic(), str(error)))
                time.sleep(0.2)


def test_a_whole_life_has_no_wrong_answer_and_fails_after_kills_alone(
    generations, tmp_path, capsys
):
    repository, checkpoints = tmp_path / "models", generations.checkpoints
    numbers = itertools.count()

    def deploy():
        number = next(numbers)
        checkpoint = checkpoints[number % len(checkpoints)]
        harness.python("triton/deployer.py", f"--checkpoint={checkpoint}",
                       f"--repository={repository}", "--instances=2")  # fmt: skip
        return number + 1

    def roll_back():
        arguments = (f"--repository={repository}", "--name=dlrm", "--rollback")
        said = harness.python("triton/deployer.py", *arguments)
        return int(re.search(r"-> (\d+)", said.stdout)[1])

    newest = deploy()
    kills, reasons = [], []
    with (
        serving(repository, "--poll_secs=1") as served,
        Clients([(served.grpc, "dlrm")] * 3, generations.request) as clients,
    ):

        def serves(version):
            code, body = served.health("/dlrm")
            return code == 200 and body["models"]["dlrm"] == [version]

        def wait_for(version):
            harness.wait_for(lambda: serves(version), f"version {version}: {served.said}", 300)

        def kill(pid, reason):
            kills.append(time.monotonic())
            reasons.append(reason)
            os.kill(pid, signal.SIGKILL)
            served.wait_for_restart(len(kills))

        def kill_server():
            kill(served.server_pid, "the server ended with signal SIGKILL")

        def kill_instance():
            # Not one of a version that another has just replaced: nobody misses that.
            instance = next(
                i
                for i in find_instances(served.server_pid)
                if (i.model, i.version_folder.name) == ("dlrm", str(newest))
            )
            kill(instance.pid, f"instance {instance.name} (process {instance.pid}) died")

        def damage():
            write_version(repository, "broken", 1, 2.0, "raise ValueError('no')")
            harness.wait_for(lambda: served.health()[1]["status"] == "degraded", "broken")

        rounds = itertools.zip_longest(
            range(DEPLOYMENTS - 1),
            [damage] + [None] * 2 + [kill_server] * SERVER_KILLS,
            [None] * 2 + [kill_instance] * INSTANCE_KILLS,
            [None] + [roll_back] * ROLLBACKS,
        )
        for deployment, *actions in rounds:
            if deployment is not None:
                newest = deploy()
                wait_for(newest)
            for action in filter(None, actions):
                version = action()
                wait_for(newest if version is None else version)
                newest = newest if version is None else version
        newest = deploy()
        wait_for(newest)
        assert [reason.partition(" ")[2] for reason in served.health()[1]["restarts"]] == reasons
        assert served.health("/broken")[0] == 503

    answers = [logit for of_client in clients.answers for _, logit in of_client]
    wrong = [
        logit
        for logit in answers
        if not any(np.allclose(logit, of_version, atol=1e-6) for of_version in generations.logits)
    ]
    assert wrong == []
    after = [min((t - k for k in kills if k <= t), default=None) for t, _ in clients.failures]
    assert None not in after
    assert max(after, default=0) < OUTAGE_S
    with capsys.disabled():
        print(
            f"\n{newest} versions, {ROLLBACKS} rollbacks, {reasons}: {len(answers)} "
            f"answers, {len(wrong)} wrong, {len(after)} failures, the last "
            f"{max(after, default=0):.1f} s "
            f"after a kill: {sorted({message for _, message in clients.failures})}"
        )
