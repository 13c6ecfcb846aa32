# SPDX-License-Identifier: Apache-2.0
"""A log of three days; Spark and NVTabular, started once: that takes longer than most tests."""

from pathlib import Path

import pytest

from preproc.nvtabular.process import NvtabularProcess
from preproc.spark import session
from preproc.spark.settings import SparkSettings
from preproc.synthetic import rows as planted_rows
from tests.harness import SHORT_LIVED_JAVA
from tests.preproc.clicks.rows import write_days
from tests.tools import require

LOCAL_SPARK = SparkSettings(
    master="local[2]",
    spark_conf=(
        ("spark.sql.shuffle.partitions", "2"),
        ("spark.sql.autoBroadcastJoinThreshold", "-1"),  # the hints decide
    ),
)
"""A Spark on two cores in this process."""


def nvtabular_on_cpu(log: Path) -> NvtabularProcess:
    return NvtabularProcess(None, "cpu", 4 * 2**30, 2, log)


@pytest.fixture(scope="session")
def days(tmp_path_factory) -> Path:
    """Three days of 701, 714 and 727 good rows, which no test changes."""
    return write_days(tmp_path_factory.mktemp("days"), rows=701)


@pytest.fixture
def rough_calibration(monkeypatch) -> None:
    """A planted model from few rows, in little time; for tests that do not look at its AUC."""
    monkeypatch.setattr(planted_rows, "CALIBRATION_ROWS", 4096)


@pytest.fixture(scope="session")
def spark_session():
    """A Spark on two cores in this process, which every run finds and leaves open."""
    require("Spark")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAVA_TOOL_OPTIONS", SHORT_LIVED_JAVA)
        with session.connect(LOCAL_SPARK) as runner:
            yield runner


@pytest.fixture(scope="session")
def nvtabular_process(tmp_path_factory):
    """An NVTabular on the CPU, for runs that `environment.share` lets use it."""
    log = tmp_path_factory.mktemp("nvtabular") / "nvtabular.log"
    with nvtabular_on_cpu(log) as process:
        yield process
