# SPDX-License-Identifier: Apache-2.0
"""The pause before a server is started again."""

import pytest

from recsys.serve.server.supervisor import restart_pause


@pytest.mark.parametrize(
    ("restarts", "pause"),
    [
        ([100], 0),
        ([100, 160], 0),  # it has served meanwhile
        ([0, 100, 159], 1),
        ([0, 1, 2], 3),
        ([0, 10, 20, 30], 7),
        ([0, 1, 2, 3, 100, 101], 1),
        (range(0, 5000, 35), 30),
    ],
)
def test_only_restarts_that_follow_each_other_wait(restarts, pause):
    assert restart_pause([*restarts]) == pause
