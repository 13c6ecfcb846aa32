# SPDX-License-Identifier: Apache-2.0
"""Records of a made up benchmark, and PyTorch's threads as they were."""

import pytest
import torch

from benchmark.record import make_record


@pytest.fixture(autouse=True)
def threads():
    """Cases set the number of threads of their process."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def record(*samples, candidate="ours", metric="rows_per_s", rows=10, **changes):
    """Returns a record of a benchmark `speed` that gets faster."""
    options = {"unit": "", "direction": "higher", "config": {"rows": rows}} | changes
    return make_record("speed", candidate, metric, samples, **options)
