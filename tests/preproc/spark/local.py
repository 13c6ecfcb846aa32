# SPDX-License-Identifier: Apache-2.0
"""A Spark in this process for a module's tests: runs find it and leave it open."""

import contextlib
from collections.abc import Iterator

import pytest

from preproc.spark import session as spark_session
from preproc.spark.runner import SparkRunner
from preproc.spark.settings import SparkSettings
from tests.harness import SHORT_LIVED_JAVA
from tests.tools import require


@contextlib.contextmanager
def local_spark() -> Iterator[SparkRunner]:
    """Starts Spark on two cores, skips where it is missing."""
    require("Spark")
    conf = {"shuffle.partitions": "2", "autoBroadcastJoinThreshold": "-1"}  # the hints decide
    settings = SparkSettings(
        master="local[2]", spark_conf=tuple((f"spark.sql.{k}", v) for k, v in conf.items())
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAVA_TOOL_OPTIONS", SHORT_LIVED_JAVA)
        with spark_session.connect(settings) as runner:
            yield runner
