# SPDX-License-Identifier: Apache-2.0
"""A server that is killed at random moments is started again and answers as before."""

import pytest

from tests import harness
from tests.tools import needs

pytestmark = [pytest.mark.triton_server, pytest.mark.release, needs("compiled Criteo kernel")]


def test_killed_servers_answer_as_before_and_leave_nothing():
    done = harness.python("-m", "tests.kills", "--kills=6", "serve", status=None)
    assert "skipped" not in done.stdout
    assert done.stdout.endswith("\n0 violations\n"), done.stdout + done.stderr
