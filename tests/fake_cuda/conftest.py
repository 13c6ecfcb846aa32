# SPDX-License-Identifier: Apache-2.0
"""What the tests on the fake device share."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fake_cuda.device import fake_cuda, is_loaded
from tests.fake_cuda.ranks import write_split


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks every test here."""
    for item in items:
        if __package__ in item.module.__name__:
            item.add_marker(pytest.mark.fake_cuda)


@pytest.fixture(autouse=True)
def fake_device():
    """Runs the test with a CUDA device and fake tensors."""
    assert is_loaded(), "start these tests with: make test-fake-cuda"
    import torch._dynamo  # noqa: F401  (flash attention imports it: before classes are replaced)

    with fake_cuda():
        yield


@pytest.fixture(scope="session")
def split_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Path]:
    """Returns a function that makes a dataset with so many training rows."""
    written: dict[int, Path] = {}

    def split(rows: int) -> Path:
        if rows not in written:
            written[rows] = write_split(tmp_path_factory.mktemp("split"), rows)
        return written[rows]

    return split
