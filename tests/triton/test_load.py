# SPDX-License-Identifier: Apache-2.0
"""Two minutes of the load program: nothing is wrong or lost while versions change and die."""

import json

import pytest

from tests import harness
from tests.tools import needs

pytestmark = [
    pytest.mark.triton_server,
    pytest.mark.release,
    needs("compiled Criteo kernel", "compiled Triton backend"),
]


def test_mixed_requests_are_answered_or_refused_while_versions_change_and_die(tmp_path):
    output = tmp_path / "figures.json"
    flags = ("--minutes=2", "--rate=30", "--recovery_s=240", f"--output={output}")
    harness.python("-W", "ignore", "-m", "tests.load", *flags)
    figures = json.loads(output.read_text())
    outcomes = figures["outcomes"]
    assert figures["faults"] == []
    assert (outcomes["wrong"], outcomes["lost"]) == (0, 0)
    assert min(outcomes["right"], outcomes["refused"]) > 100
    assert sum(outcomes.values()) == figures["requests"]
    assert figures["recoveries"]
    assert {"deploy", "apply a delta", "roll back"} & figures["events"].keys()
    assert figures["small_latency_ms"]["all"]["count"] > 100
    assert {"server", "instances", "supervisor"} == figures["memory"].keys()
