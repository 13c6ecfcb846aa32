# SPDX-License-Identifier: Apache-2.0
"""The Spark engine alone: its modes' limits, joins and interruptions; one local session for all."""

import dataclasses

import pytest

from preproc.criteo.engines.native import run as native
from preproc.criteo.engines.spark import dataframe as spark_dataframe
from preproc.criteo.engines.spark import rows as spark_rows
from preproc.criteo.engines.spark.row_numbers import UnitRows
from preproc.criteo.job import semantics_of
from preproc.files.errors import PreprocError
from preproc.spark.settings import SparkSettings
from tests.preproc.criteo.rows import assert_same, run, stopped, write_days
from tests.tools import needs

pytestmark = [
    pytest.mark.timeout(900),  # a loaded machine; none takes more than a minute on a quiet one
    needs("Spark", "compiled Criteo kernel"),
    pytest.mark.usefixtures("spark_session"),
]


def spark(mode: str, unit_bytes: int | None = None) -> dict[str, object]:
    """Returns the fields of a job on the session."""
    conf = (("spark.sql.files.maxPartitionBytes", str(unit_bytes)),) if unit_bytes else ()
    return {"spark": SparkSettings(spark_mode=mode, spark_conf=conf)}


def test_dictionaries_that_do_not_fit_an_executor(tmp_path, monkeypatch):
    days = write_days(tmp_path / "days", rows=100)
    with pytest.raises(PreprocError, match=r"`memory_limit` 30\.0 MiB is too small"):
        run(days, tmp_path / "made", "spark", memory_limit=30 * 2**20, **spark("kernel"))


def test_failed_kernel_run_continues(tmp_path):
    """Stops after the scan; the units that are there are taken as they are."""
    days = write_days(tmp_path / "days", rows=200)
    fields = {"work_dir": tmp_path / "work", **spark("kernel", 30_000)}
    with stopped(native, "merge"):
        run(days, tmp_path / "made", "spark", **fields)
    before = {p: p.stat().st_ino for p in (tmp_path / "work").rglob("*.json")}
    assert len(before) > 5
    made = run(days, tmp_path / "made", "spark", **fields)
    assert {p: p.stat().st_ino for p in before} == before
    assert not list((tmp_path / "work").rglob("attempt-*"))
    assert_same(made, run(days, tmp_path / "native"))


def test_interrupted_dataframe_run_continues(tmp_path, monkeypatch):
    """Ctrl-C in the second unit; rows, dictionaries and the first unit are not made again."""
    monkeypatch.setattr(spark_rows, "UNIT_BYTES", 60_000)  # two units
    days = write_days(tmp_path / "days", rows=100)
    semantics = dataclasses.replace(semantics_of("dlrm"), frequency_limit=2)
    expected = run(days, tmp_path / "native", semantics=semantics)
    kept = sorted(rows - 1 for rows in expected.cardinalities)
    assert kept[-4] < kept[-3]
    monkeypatch.setattr(spark_dataframe, "BROADCAST_CATEGORIES", kept[-4])  # three joins shuffle
    fields = {"semantics": semantics, "work_dir": tmp_path / "work", **spark("dataframe")}
    encoded, keys, joins = spark_dataframe._encoded, [], []

    def interrupt(runner: object, unit: UnitRows, *rest: object) -> object:
        keys.append(unit.key)
        if len(keys) == 2:
            raise KeyboardInterrupt
        table = encoded(runner, unit, *rest)
        plan = table._jdf.queryExecution().executedPlan().toString()
        joins.append((plan.count("SortMergeJoin"), plan.count("BroadcastHashJoin")))
        return table

    monkeypatch.setattr(spark_dataframe, "_encoded", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run(days, tmp_path / "made", "spark", **fields)
    before = {p: p.stat().st_ino for p in (tmp_path / "work").rglob("*.parquet")}
    assert before
    made = run(days, tmp_path / "made", "spark", **fields)
    assert {p: p.stat().st_ino for p in before} == before
    first, second = keys[:2]
    assert keys == [first, second, second]
    assert joins == [(3, 23)] * 2
    assert_same(made, expected)
