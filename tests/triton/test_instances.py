# SPDX-License-Identifier: Apache-2.0
"""Loads of a running server: one for each change, and new instances for those that died."""

import contextlib
import itertools
import os
import signal
from pathlib import Path

import numpy as np
import pytest

from recsys.serve.client.connection import Endpoint, EndpointError
from recsys.serve.server.instances import find_instances
from recsys.serve.server.models import Models
from recsys.serve.versions.policy import with_policy
from tests import harness
from tests.tools import needs
from tests.triton.conftest import Server, deploy
from tests.triton.test_reload import Flow
from tests.triton.test_supervisor import POLL_FAILED, serving
from tests.triton.tiny_model import write_version

pytestmark = [pytest.mark.triton_server, pytest.mark.slow]


def instances_of(served, model):
    return [i for i in find_instances(served.server_pid) if i.model == model]


def threads_of(served):
    return sum(1 for _ in Path(f"/proc/{served.server_pid}/task").iterdir())


def ask(served, model, timeout_s=60):
    with Endpoint(served.http, model, timeout_s=timeout_s) as endpoint:
        return endpoint.predict({"x": np.ones((1, 2), np.float32)})["y"].tolist()


@needs("compiled Triton backend")
@pytest.mark.parametrize("protocols", [[], ["--grpc_port=0"]], ids=["http", "both"])
def test_an_instance_that_dies_takes_no_other_model_away(generations, tmp_path, protocols):
    repository = tmp_path / "models"
    deploy(generations.checkpoints[0], repository, "--backend=native")
    write_version(repository, "tiny", 1, 2.0, instances=2)
    write_version(repository, "other", 1, 3.0)
    with serving(repository, *protocols) as served:
        server, (other,) = served.server_pid, instances_of(served, "other")
        replaced, threads = set(), threads_of(served)
        with Flow([(served.http, "dlrm")] * 3, generations.request) as flow:
            for number, deadly in enumerate((signal.SIGKILL, signal.SIGSTOP), 1):
                now = [i for i in instances_of(served, "tiny") if i.pid not in replaced]
                assert len(now) == 2
                replaced |= {i.pid for i in now}
                hit = now[0]
                os.kill(hit.pid, deadly)
                for _ in range(4):  # the dead one may keep one
                    with contextlib.suppress(EndpointError):
                        ask(served, "tiny", timeout_s=1)
                served.wait_for(f"restart {number}", hit.name, hit.pid)
                assert served.health()[0] == 200
                served.wait_for_answers("tiny")
                assert [ask(served, "tiny") for _ in range(6)] == [[[2.0, 2.0]]] * 6
                flow.wait_for_more()
            assert ask(served, "other") == [[3.0, 3.0]]
        assert flow.failures == []
        assert generations.of(flow.answers[0]) == [0]
        assert (served.server_pid, instances_of(served, "other")) == (server, [other])
        served.wait_for_status("ok")
        assert len(served.health()[1]["restarts"]) == 2
        harness.wait_for(
            lambda: not replaced & {i.pid for i in instances_of(served, "tiny")}, "their end"
        )
        # Triton has some 70 for each instance, and would keep those of the dead.
        harness.wait_for(lambda: threads_of(served) < threads + 40, "the end of their threads")
        assert [ask(served, "tiny") for _ in range(6)] == [[[2.0, 2.0]]] * 6
        assert len(served.health()[1]["restarts"]) == 2


@needs("compiled Triton backend")
def test_a_version_that_fails_is_loaded_and_told_once_for_each_change(generations, tmp_path):
    repository, log = tmp_path / "models", tmp_path / "log"
    for checkpoint in generations.checkpoints[:2]:
        deploy(checkpoint, repository, "--backend=native")
    with (repository / "dlrm" / "2" / "weights.safetensors").open("r+b") as weights:
        weights.seek(-64, os.SEEK_END)
        weights.write(b"damaged")
    gone = "raise ValueError(f'weights are gone {id(self)} {__import__(\"os\").getpid()}')"
    write_version(repository, "tiny", 1, 2.0)
    write_version(repository, "broken", 1, 2.0)
    write_version(repository, "broken", 2, 2.0, gone)
    with serving(repository, "--poll_secs=1", f"--log_file={log}") as served:
        names = (f"seen{number}" for number in itertools.count())

        def look():
            """Waits for two looks at the repository."""
            for name in itertools.islice(names, 2):
                write_version(repository, name, 1, 2.0)
                served.wait_for(f"{name} version 1")

        def told():
            logged = log.read_text()
            return [
                [len(served.telling(f"{name} version 2")) for name in ("broken", "dlrm")],
                [logged.count(f"failed to load '{name}' version 2") for name in ("broken", "dlrm")],
            ]

        look()
        assert told() == [[1, 1], [1, 1]]
        write_version(repository, "broken", 3, 2.0, gone)
        served.wait_for("broken version 3", "weights are gone")
        look()
        assert told() == [[1, 1], [1, 1]]
        assert len(served.telling("broken version 3")) == 1
        config = repository / "broken" / "config.pbtxt"
        config.write_text(with_policy(config.read_text(), "specific:1"))
        served.wait_for("broken version 1")
        look()
        assert told() == [[1, 1], [1, 1]]
        assert served.health("/broken")[0] == 200
        assert list(served.health()[1]["failures"]) == ["dlrm version 2"]
        with pytest.raises(EndpointError):
            ask(served, "dlrm")
        config.write_text("backend: [")
        served.wait_for("broken", POLL_FAILED)
        look()
        assert len(served.telling("broken", POLL_FAILED)) == 1
        assert log.read_text().count("Poll failed for model directory 'broken'") == 1
        assert ask(served, "broken") == [[2.0, 2.0]]


def test_a_model_that_is_being_copied_is_loaded_once_the_copy_has_ended(tmp_path):
    """Each look finds some more of it: a version of a new model, then the next one."""
    made, served = tmp_path / "made" / "copied", tmp_path / "models" / "copied"
    served.parent.mkdir()
    with Server(tmp_path, poll_secs=1, threads=1) as server:
        models = Models(server)

        def look():
            models.look(1e-9)
            return list(models.loading)

        def is_loaded():
            models.end_loads()
            return not models.loading and server.is_ready("copied")

        for version, factor in ((1, 2.0), (2, 3.0)):
            write_version(tmp_path / "made", "copied", version, factor)
            for source in (made / "config.pbtxt", made / str(version) / "model.py"):
                target = served / source.relative_to(made)
                if target.exists():
                    continue
                target.parent.mkdir(parents=True, exist_ok=True)
                content = source.read_bytes()
                for end in (0, len(content) // 2, len(content)):
                    target.write_bytes(content[:end])
                    assert look() == []
                    assert server.is_ready("copied") == (version == 2)
            assert look() == ["copied"]
            harness.wait_for(is_loaded, f"version {version}")
            with server.endpoint("copied") as endpoint:
                answer = endpoint.predict({"x": np.ones((1, 2), np.float32)})
            assert answer["y"].tolist() == [[factor, factor]]
        assert look() == []
        models.observe({})
        assert models.failures == {}
