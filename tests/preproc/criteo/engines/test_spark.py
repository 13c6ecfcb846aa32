# SPDX-License-Identifier: Apache-2.0
"""The Spark engine alone: its limits and interruptions; one local session for all."""

import pytest

from preproc.criteo.engines.native import run as native
from preproc.files.errors import PreprocError
from preproc.spark.settings import SparkSettings
from tests.preproc.criteo.rows import assert_same, run, stopped, write_days
from tests.tools import needs

pytestmark = [
    pytest.mark.timeout(900),  # a loaded machine; none takes more than a minute on a quiet one
    needs("Spark", "compiled Criteo kernel"),
    pytest.mark.usefixtures("spark_session"),
]


def spark(unit_bytes: int | None = None) -> dict[str, object]:
    """Returns the fields of a job on the session."""
    conf = (("spark.sql.files.maxPartitionBytes", str(unit_bytes)),) if unit_bytes else ()
    return {"spark": SparkSettings(spark_conf=conf)}


def test_dictionaries_that_do_not_fit_an_executor(tmp_path, monkeypatch):
    days = write_days(tmp_path / "days", rows=100)
    with pytest.raises(PreprocError, match=r"`memory_limit` 30\.0 MiB is too small"):
        run(days, tmp_path / "made", "spark", memory_limit=30 * 2**20, **spark())


def test_failed_kernel_run_continues(tmp_path):
    """Stops after the scan; the units that are there are taken as they are."""
    days = write_days(tmp_path / "days", rows=200)
    fields = {"work_dir": tmp_path / "work", **spark(30_000)}
    with stopped(native, "merge"):
        run(days, tmp_path / "made", "spark", **fields)
    before = {p: p.stat().st_ino for p in (tmp_path / "work").rglob("*.json")}
    assert len(before) > 5
    made = run(days, tmp_path / "made", "spark", **fields)
    assert {p: p.stat().st_ino for p in before} == before
    assert not list((tmp_path / "work").rglob("attempt-*"))
    assert_same(made, run(days, tmp_path / "native"))
