# SPDX-License-Identifier: Apache-2.0
"""Versions of a model on a polled server: kept settings, pins, roll-back, two side by side."""

import json

import numpy as np
import pytest

from dlrm.serve.export import DlrmExport
from recsys.serve.client.connection import Endpoint
from recsys.serve.config_pbtxt import parse_config
from recsys.serve.server.process import ServerSettings, TritonServer
from tests import harness
from tests.recsys.serve.checkpoints import dlrm_checkpoint
from tests.triton.conftest import deploy, run, script
from tests.triton.test_reload import Flow, offline, wait_until

pytestmark = pytest.mark.triton_server


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoints")
    return [
        dlrm_checkpoint(folder / str(i), top_mlp_sizes=[width, 1])[0]
        for i, width in enumerate((16, 24, 32))
    ]


@pytest.fixture
def deployer(tmp_path, capsys):
    """Runs the deployer without a checkpoint; returns its status and what it prints."""

    def run(*arguments):
        capsys.readouterr()
        arguments = (f"--repository={tmp_path / 'models'}", *arguments)
        status = harness.call(script("deployer"), *arguments)
        output = capsys.readouterr()
        return status, output.out + output.err

    return run


def test_a_polled_server_rolls_back_and_serves_the_next_deployment(checkpoints, tmp_path, deployer):
    repository, log = tmp_path / "models", tmp_path / "log"
    exports = [DlrmExport(checkpoint) for checkpoint in checkpoints]
    (request,) = exports[0].example_requests(4, fixed_shapes=False)
    expected = [offline(export, request) for export in exports]
    for checkpoint in checkpoints[:2]:
        deploy(checkpoint, repository, "--max_queue_delay_us=50")
    with TritonServer(ServerSettings(repository=repository, poll_secs=1), log) as server:
        server.wait_ready()

        def only(version):
            wait_until(
                lambda: (
                    [server.is_ready("dlrm", v) for v in (1, 2, 3)]
                    == [v == version for v in (1, 2, 3)]
                )
            )

        only(2)
        with Flow([(server.grpc_url, "dlrm")] * 2, request) as flow:
            flow.wait_for_more()
            assert deployer("--rollback") == (
                0, "dlrm: version 2 -> 1, until the next deployment or --version_policy\n"
            )  # fmt: skip
            only(1)
            flow.wait_for_more()
            assert deployer("--rollback") == (2, f"error: {repository}/dlrm: no version before 1\n")
            deploy(checkpoints[2], repository)
            only(3)
            flow.wait_for_more()
            assert deployer("--rollback")[0] == 0
            only(2)
            flow.wait_for_more()
            assert deployer("--version_policy=latest:1")[0] == 0
            only(3)
            flow.wait_for_more()
        assert flow.failures == []
    for answers in flow.answers:
        order = [
            next(i for i, e in enumerate(expected) if np.allclose(answer, e, atol=1e-6))
            for answer in answers
        ]
        changes = [i for i, before in zip(order, [None, *order], strict=False) if i != before]
        assert changes == [1, 0, 2, 1, 2]
    assert "delay_microseconds: 50" in (repository / "dlrm" / "config.pbtxt").read_text()


def test_two_versions_side_by_side_and_a_pin(checkpoints, tmp_path, deployer):
    repository = tmp_path / "models"
    exports = [DlrmExport(checkpoint) for checkpoint in checkpoints]
    (request,) = exports[0].example_requests(4, fixed_shapes=False)
    for checkpoint in checkpoints[:2]:
        deploy(checkpoint, repository, "--version_policy=latest:2")
    settings = ServerSettings(repository=repository, poll_secs=1)
    with TritonServer(settings, tmp_path / "log") as server:
        server.wait_ready()
        for version, export in ((1, exports[0]), (2, exports[1]), ("", exports[1])):
            with Endpoint(server.grpc_url, "dlrm", str(version)) as endpoint:
                answer = endpoint.predict(request)["logit"]
            np.testing.assert_allclose(answer, offline(export, request), atol=1e-6)
        check_canary(server, tmp_path, exports)
        status, output = deployer("--version_policy=specific:1")
        assert status == 0
        assert output == ("--version_policy: latest:2 -> specific:1\ndlrm: serves version 1\n")
        wait_until(lambda: server.is_ready("dlrm", 1) and not server.is_ready("dlrm", 2))
        status, output = deployer(f"--checkpoint={checkpoints[2]}")  # the pin is kept
        assert "It is not served: --version_policy specific:1 chooses version 1\n" in output
        assert deployer("--version_policy=all")[0] == 0
        wait_until(lambda: all(server.is_ready("dlrm", version) for version in (1, 2, 3)))


def check_canary(server, folder, exports):
    """Sends 200 requests of one row, a fifth of them to version 2, twice."""
    batches = exports[0].example_requests(200, fixed_shapes=False)
    names = ("numerical", "categorical")
    rows = {n: np.concatenate([batch[n] for batch in batches])[:200] for n in names}
    requests = [{n: rows[n][i : i + 1] for n in names} for i in range(200)]
    file = folder / "requests.jsonl"
    file.write_text("".join(json.dumps({n: r[n].tolist() for n in names}) + "\n" for r in requests))
    client = ("triton/client.py", f"--url={server.grpc_url}", f"--request={file}")
    canary = ("--canary=0.2", "--canary_version=2")
    first, again = (run(*client, *canary) for _ in range(2))
    assert first == again
    answers = [json.loads(line) for line in first.splitlines()]
    of_second = [answer.pop("model_version") == 2 for answer in answers]
    assert 20 < sum(of_second) < 60
    for answer, request, second in zip(answers, requests, of_second, strict=True):
        expected = offline(exports[1 if second else 0], request)
        np.testing.assert_allclose(answer["logit"], expected, atol=1e-5)
    all_of_them = run(*client, "--canary=1", "--canary_version=1")
    assert {json.loads(line)["model_version"] for line in all_of_them.splitlines()} == {1}
    refused = harness.python(*client, "--canary=0.1", "--canary_version=3", status=2)
    assert "version 3" in refused.stderr


def test_deploying_again_keeps_the_settings_and_prints_what_changes(
    checkpoints, tmp_path, deployer
):
    first = ("--max_batch_size=64", "--instances=2", "--preferred_batch_sizes=8,16", "--threads=1")
    deploy(checkpoints[0], tmp_path / "models", *first, "--out_of_range=zero")
    file = tmp_path / "models" / "dlrm" / "config.pbtxt"
    before = file.read_text()
    status, output = deployer(f"--checkpoint={checkpoints[1]}")
    assert (status, file.read_text()) == (0, before)
    assert "->" not in output
    lasting = "--max_batch_size 64, --preferred_batch_sizes 8,16, --instances 2, --threads 1"
    (line,) = (line for line in output.splitlines() if line.startswith("Kept from the deployment"))
    assert sorted(line.partition(": ")[2].replace("8,16", "8;16").split(", ")) == sorted(
        [*lasting.replace("8,16", "8;16").split(", "), "--out_of_range zero"]
    )
    assert '"out_of_range": "zero"' in (file.parent / "2" / "deployment.json").read_text()
    status, output = deployer(f"--checkpoint={checkpoints[1]}", "--instances=1", "--threads=1")
    assert output.startswith("--instances: 2 -> 1\nKept from the deployment before: --")
    assert "--instances 2" not in output
    assert "--threads" not in output.partition("Checked: ")[0].replace("--threads:", "")
    message = parse_config(file.read_text(), "config.pbtxt")
    assert (message.max_batch_size, message.instance_group[0].count) == (64, 1)
    assert list(message.dynamic_batching.preferred_batch_size) == [8, 16]
    file.write_text(file.read_text().replace("max_batch_size: 64", "max_batch_size: 65"))
    status, output = deployer("--max_queue_delay_us=5")
    assert output.splitlines() == [
        "--max_queue_delay_us: 0 -> 5",
        f"{file}: not kept, give it as a flag: max_batch_size: 65",
        "dlrm: serves version 3",
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--version_policy=latest:0",), "must be latest:N, all, or specific: and versions"),
        (("--version_policy=specific:1,9",), "specific:1,9: there is no version 9, only 1"),
        (("--rollback", "--instances=2"), "--rollback takes --repository and --name alone"),
        (("--rollback", "--name=other"), "--name other: no such model; "),
        (("--format=onnx",), "--checkpoint is needed to change --format"),
        ((), "--checkpoint is needed"),
    ],
)
def test_changes_that_are_refused(checkpoints, tmp_path, deployer, arguments, message):
    deploy(checkpoints[0], tmp_path / "models")
    before = (tmp_path / "models" / "dlrm" / "config.pbtxt").read_text()
    status, output = deployer(*arguments)
    assert status == 2
    assert message in output
    assert (tmp_path / "models" / "dlrm" / "config.pbtxt").read_text() == before
