# SPDX-License-Identifier: Apache-2.0
"""Ports of servers that start at the same time."""

import random
import subprocess
import sys

from recsys.serve.server.ports import free_ports

NAMES = ("http_port", "grpc_port", "metrics_port")
DRAW = f"""
import random
from recsys.serve.server.ports import free_ports
random.seed(7)
print(*free_ports("127.0.0.1", {NAMES!r}).values(), flush=True)
"""


def test_no_other_process_draws_a_port_before_its_server_listens():
    command, pipe = [sys.executable, "-c", DRAW], subprocess.PIPE
    waiting = [sys.executable, "-c", DRAW + "input()"]
    with subprocess.Popen(waiting, stdin=pipe, stdout=pipe, text=True) as other:
        theirs = {int(port) for port in other.stdout.readline().split()}
        random.seed(7)
        ours = set(free_ports("127.0.0.1", NAMES).values())
        third = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        other.communicate("\n")
    assert len(theirs) == len(ours) == 3
    assert not theirs & ours
    assert not {int(port) for port in third.split()} & (theirs | ours)
