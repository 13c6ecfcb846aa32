# SPDX-License-Identifier: Apache-2.0
"""Versions of a model on a polled server: kept settings, pins, roll-back, two side by side."""

import json
import re

import numpy as np
import pytest

from dlrm.serve.export import DlrmExport
from recsys.serve.client.connection import Endpoint
from recsys.serve.config_pbtxt import parse_config
from tests import harness
from tests.recsys.serve.checkpoints import logits_of
from tests.tools import needs
from tests.triton.conftest import deploy
from tests.triton.test_reload import Flow, kill_while_staging
from tests.triton.tiny_model import write_version

pytestmark = pytest.mark.triton_server


def wait_for_versions(server, model, *versions):
    harness.wait_for(
        lambda: [v for v in (1, 2, 3) if server.is_ready(model, v)] == [*versions],
        f"versions {versions} of {model}",
    )


@needs("compiled Triton backend")
def test_a_polled_server_rolls_back_and_serves_the_next_deployment(
    polled, generations, change, tmp_path
):
    """Of which a deployer that is killed on its way shows nothing."""
    name, folder = "rolled", polled.repository
    for checkpoint in generations.checkpoints[:2]:
        flags = (f"--name={name}", "--backend=native", "--max_queue_delay_us=50")
        deploy(checkpoint, folder, *flags)
    wait_for_versions(polled, name, 2)
    with Flow([(polled.http_url, name)] * 2, generations.request) as flow:
        flow.wait_for_more()
        said = change("--rollback", f"--name={name}", repository=folder)
        harness.assert_tells(said, name, "version 2 -> 1", "--version_policy")
        wait_for_versions(polled, name, 1)
        flow.wait_for_more()
        said = change("--rollback", f"--name={name}", repository=folder, status=2)
        harness.assert_tells(said, folder / name, 1)
        last = generations.checkpoints[2]
        kill_while_staging(folder, f"--name={name}", f"--checkpoint={last}")
        # A model that is moved there now is seen by the next look, as the killed one would be.
        write_version(tmp_path, "moved", 1, 2.0)
        (tmp_path / "moved").rename(folder / "moved")
        harness.wait_for(lambda: polled.is_ready("moved"), "a look")
        flow.wait_for_more()
        deploy(last, folder, f"--name={name}")
        wait_for_versions(polled, name, 3)
        flow.wait_for_more()
        for flag, version in (("--rollback", 2), ("--version_policy=latest:1", 3)):
            change(flag, f"--name={name}", repository=folder)
            wait_for_versions(polled, name, version)
            flow.wait_for_more()
    assert flow.failures == []
    assert [generations.of(answers) for answers in flow.answers] == [[1, 0, 2, 1, 2]] * 2
    loaded = re.findall(rf'"loading: {name}:(\d+)"', polled.log.file.read_text())
    assert loaded[-4:] == ["1", "3", "2", "3"]
    assert "delay_microseconds: 50" in (folder / name / "config.pbtxt").read_text()


@needs("compiled Triton backend")
def test_two_versions_side_by_side_and_a_pin(polled, generations, change, ask, tmp_path):
    name, folder = "pinned", polled.repository
    for checkpoint in generations.checkpoints[:2]:
        flags = (f"--name={name}", "--backend=native", "--version_policy=latest:2")
        deploy(checkpoint, folder, *flags)
    wait_for_versions(polled, name, 1, 2)
    for version, expected in (("1", 0), ("2", 1), ("", 1)):
        with Endpoint(polled.http_url, name, version) as endpoint:
            answer = endpoint.predict(generations.request)["logit"]
        np.testing.assert_allclose(answer, generations.logits[expected], atol=1e-6)
    exports = [DlrmExport(checkpoint) for checkpoint in generations.checkpoints[:2]]
    check_canary(
        exports,
        tmp_path,
        lambda *flags, **status: ask(*(f"--model={name}", *flags), url=polled.http_url, **status),
    )
    output = change("--version_policy=specific:1", f"--name={name}", repository=folder)
    harness.assert_tells(output, "--version_policy: latest:2 -> specific:1", name, "version 1")
    wait_for_versions(polled, name, 1)
    last = f"--checkpoint={generations.checkpoints[2]}"
    output = change(last, f"--name={name}", repository=folder)  # the pin is kept
    harness.assert_tells(output.splitlines()[-1], "--version_policy specific:1", "version 1")
    change("--version_policy=all", f"--name={name}", repository=folder)
    wait_for_versions(polled, name, 1, 2, 3)


def check_canary(exports, folder, ask):
    """Sends 200 requests of one row, a fifth of them to version 2, twice."""
    batches = exports[0].example_requests(200, fixed_shapes=False)
    names = ("numerical", "categorical")
    rows = {n: np.concatenate([batch[n] for batch in batches])[:200] for n in names}
    requests = [{n: rows[n][i : i + 1] for n in names} for i in range(200)]
    file = folder / "requests.jsonl"
    file.write_text("".join(json.dumps({n: r[n].tolist() for n in names}) + "\n" for r in requests))

    def versions(fraction, version, **status):
        canary = (f"--canary={fraction}", f"--canary_version={version}")
        return ask(f"--request={file}", *canary, **status)

    first, again = versions(0.2, 2), versions(0.2, 2)
    assert first == again
    answers = [json.loads(line) for line in first.splitlines()]
    of_second = [answer.pop("model_version") == 2 for answer in answers]
    assert 20 < sum(of_second) < 60
    for answer, request, second in zip(answers, requests, of_second, strict=True):
        expected = logits_of(exports[1 if second else 0].model, request)
        np.testing.assert_allclose(answer["logit"], expected, atol=1e-5)
    assert {json.loads(line)["model_version"] for line in versions(1, 1).splitlines()} == {1}
    assert "version 3" in versions(0.1, 3, status=2)


def test_deploying_again_keeps_the_settings_and_prints_what_changes(generations, tmp_path, change):
    first = ("--max_batch_size=64", "--instances=2", "--preferred_batch_sizes=8,16", "--threads=1")
    deploy(generations.checkpoints[0], tmp_path / "models", *first, "--out_of_range=zero")
    file = tmp_path / "models" / "dlrm" / "config.pbtxt"
    before = file.read_text()
    again = f"--checkpoint={generations.checkpoints[1]}"
    output = change(again)
    assert file.read_text() == before
    assert "->" not in output
    line = output.splitlines()[0]
    lasting = ("max_batch_size 64", "preferred_batch_sizes 8,16", "instances 2", "threads 1")
    harness.assert_tells(line, *(f"--{setting}" for setting in (*lasting, "out_of_range zero")))
    assert line.count("--") == 5
    assert '"out_of_range": "zero"' in (file.parent / "2" / "deployment.json").read_text()
    output = change(again, "--instances=1", "--threads=1")
    changed, kept, *_ = output.splitlines()
    assert changed == "--instances: 2 -> 1"
    assert sorted(re.findall(r"--(\w+) ", kept)) == [
        *("max_batch_size", "out_of_range", "preferred_batch_sizes")
    ]
    message = parse_config(file.read_text(), "config.pbtxt")
    assert (message.max_batch_size, message.instance_group[0].count) == (64, 1)
    assert list(message.dynamic_batching.preferred_batch_size) == [8, 16]
    file.write_text(file.read_text().replace("max_batch_size: 64", "max_batch_size: 65"))
    delay, edited, served = change("--max_queue_delay_us=5").splitlines()
    assert delay == "--max_queue_delay_us: 0 -> 5"
    harness.assert_tells(edited, file, "max_batch_size: 65")
    harness.assert_tells(served, "dlrm", "version 3")


@pytest.mark.parametrize(
    ("arguments", "facts"),
    [
        (["--version_policy=latest:9999999999"], ["latest:9999999999", "latest:N", "all"]),
        (["--version_policy=latest:0"], ["latest:0", "latest:N", "all"]),
        (["--version_policy=specific:1,9"], ["specific:1,9", "version 9", 1]),
        (["--rollback", "--instances=2"], ["--rollback", "--repository", "--name"]),
        (["--rollback", "--name=other"], ["--name other", "dlrm"]),
        (["--format=onnx"], ["--checkpoint", "--format"]),
        ([], ["--checkpoint"]),
    ],
)
def test_changes_that_are_refused(generations, tmp_path, change, arguments, facts):
    deploy(generations.checkpoints[0], tmp_path / "models")
    before = (tmp_path / "models" / "dlrm" / "config.pbtxt").read_text()
    harness.assert_tells(change(*arguments, status=2), *facts)
    assert (tmp_path / "models" / "dlrm" / "config.pbtxt").read_text() == before
