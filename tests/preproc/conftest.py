# SPDX-License-Identifier: Apache-2.0
"""Spark and NVTabular, started once: that takes longer than most of the tests that use them."""

import pytest

from tests.preproc.nvtabular import environment
from tests.preproc.spark.local import local_spark


@pytest.fixture(scope="session")
def spark_session():
    """A Spark in this process, which every run finds and leaves open."""
    with local_spark() as runner:
        yield runner


@pytest.fixture(scope="session")
def nvtabular_process(tmp_path_factory):
    """An NVTabular on the CPU, for runs that `environment.share` lets use it."""
    with environment.start(tmp_path_factory.mktemp("nvtabular")) as process:
        yield process
