# SPDX-License-Identifier: Apache-2.0
"""The Spark engine in both modes makes the native engine's bytes; one local session for all."""

import dataclasses
import gzip
import json
from pathlib import Path

import pytest

from preproc.criteo import columns
from preproc.criteo.engines.native.kernel import binding
from preproc.criteo.engines.spark import dataframe as spark_dataframe
from preproc.criteo.engines.spark import rows as spark_rows
from preproc.criteo.engines.spark.row_numbers import UnitRows
from preproc.criteo.job import PRESETS, CriteoJob, semantics_of
from preproc.criteo.pipeline import prepare
from preproc.criteo.rules import REJECT_REASONS
from preproc.files.errors import PreprocError, TooManyRejectedRowsError
from preproc.spark.settings import SPARK_MODES, SparkSettings
from recsys.data.manifest import Manifest
from tests.preproc.criteo.rows import good_text, run, write_days, write_real_rows
from tests.preproc.spark.local import local_spark

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(900),  # a loaded machine; none takes more than a minute on a quiet one
    pytest.mark.skipif(not binding.is_built(), reason="no C++ compiler"),
]

CONFORMANCE = Path(__file__).parents[2] / "conformance"
EXPECTED = json.loads((CONFORMANCE / "expected.json").read_text())


@pytest.fixture(scope="module", autouse=True)
def session():
    with local_spark() as runner:
        yield runner


@pytest.fixture(scope="module")
def work(tmp_path_factory) -> Path:
    """Runs on the same input share their validated rows."""
    return tmp_path_factory.mktemp("work")


def spark(mode: str, unit_bytes: int | None = None) -> dict[str, object]:
    """Returns the fields of a job on the session."""
    conf = (("spark.sql.files.maxPartitionBytes", str(unit_bytes)),) if unit_bytes else ()
    return {"spark": SparkSettings(spark_mode=mode, spark_conf=conf)}


def assert_same(made: Manifest, expected: Manifest) -> None:
    assert made.files == expected.files
    assert (made.rows, made.positives) == (expected.rows, expected.positives)
    assert (made.rejected, made.source_files) == (expected.rejected, expected.source_files)


@pytest.mark.parametrize(
    ("mode", "preset"),
    [
        *(("kernel", preset) for preset in PRESETS.names()),
        ("dataframe", "dlrm"),
        ("dataframe", "mlperf"),
    ],
)
def test_engine_makes_the_recorded_bytes(tmp_path, work, mode, preset):
    job = CriteoJob(
        input=CONFORMANCE,
        output=tmp_path / "dataset",
        semantics=semantics_of(preset),
        preset=preset,
        engine="spark",
        max_bad_fraction=0.2,
        work_dir=work / mode,
        **spark(mode, 50_000),
    )
    manifest = Manifest.load(prepare(job))
    expected = EXPECTED[preset]
    assert (manifest.rejected, manifest.rows) == (expected["rejected"], expected["rows"])
    checksums = {name: entry["xxh3_128"] for name, entry in manifest.files.items()}
    different = [n for n in expected["files"] if checksums.get(n) != expected["files"][n]]
    assert different == []
    assert checksums.keys() == expected["files"].keys()
    assert (manifest.engine["name"], manifest.engine["mode"]) == ("spark", mode)


def odd_days(folder: Path) -> Path:
    """Days as they may come: CRLF, gzip by magic alone, bad rows, no last line end."""
    folder.mkdir()
    plain = good_text(150, seed=1).replace(b"\n", b"\r\n")
    lines = good_text(140, seed=2).split(b"\n")
    lines[0] = b"1\tbad"
    lines[17] = b"\xff" + lines[17] + b"\r"
    lines[100] = lines[100] + b"\r\r"  # one CR belongs to the line end, the other to the row
    lines[101] = b""
    lines[102] = lines[102].replace(b"\t", b"\t99999999999", 1)
    lines[138] = b"\xe2\r"
    packed = b"\n".join(lines)
    last = b"\n".join([good_text(71, seed=3).rstrip(b"\n"), b"2" + b"\t" * 39])
    (folder / "day_0.tsv").write_bytes(plain)
    (folder / "day_1").write_bytes(gzip.compress(packed[:9999]) + gzip.compress(packed[9999:]))
    (folder / "day_2").write_bytes(last)
    return folder


@pytest.mark.parametrize("mode", SPARK_MODES)
def test_odd_spelling_fractions_shuffle_and_parquet(tmp_path, mode, monkeypatch):
    monkeypatch.setattr(spark_rows, "UNIT_BYTES", 45_000)  # two units
    days = odd_days(tmp_path / "days")
    semantics = dataclasses.replace(
        semantics_of("dlrm"),
        frequency_limit=2,
        split_fractions=(0.61, 0.2, 0.19),
        dictionary_days="train",
        shuffle_seed=7,
    )
    fields = {"semantics": semantics, "format": ("split", "parquet")}
    expected = run(days, tmp_path / "native", **fields)
    assert sum(expected.rejected.values()) == 7
    assert sum(expected.rejected[r] > 0 for r in REJECT_REASONS) >= 3
    kept = sorted(rows - 1 for rows in expected.cardinalities)
    assert kept[-4] < kept[-3]
    monkeypatch.setattr(spark_dataframe, "BROADCAST_CATEGORIES", kept[-4])  # three joins shuffle
    plans = []
    encoded = spark_dataframe._encoded

    def with_plan(*args: object) -> object:
        table = encoded(*args)
        plans.append(table._jdf.queryExecution().executedPlan().toString())
        return table

    monkeypatch.setattr(spark_dataframe, "_encoded", with_plan)
    made = run(days, tmp_path / "made", "spark", **fields, **spark(mode, 20_000))
    assert_same(made, expected)
    if mode == "dataframe":
        joins = [(p.count("SortMergeJoin"), p.count("BroadcastHashJoin")) for p in plans]
        assert joins == [(3, 23)] * 2


@pytest.mark.parametrize("mode", SPARK_MODES)
def test_real_rows(tmp_path, real_data, mode):
    source = write_real_rows(real_data, tmp_path / "train.txt")
    fields = {"semantics": semantics_of("kaggle"), "max_bad_fraction": 0.0}
    made = run(source, tmp_path / "made", "spark", **fields, **spark(mode, 100_000))
    assert_same(made, run(source, tmp_path / "native", **fields))


@pytest.mark.parametrize("mode", SPARK_MODES)
def test_too_many_bad_rows_and_then_enough(tmp_path, mode):
    days = write_days(tmp_path / "days", rows=150)
    text = (days / "day_0").read_bytes().split(b"\n")
    for line in range(20, 29):
        text[line] = b"bad row"
    (days / "day_0").write_bytes(b"\n".join(text))
    with pytest.raises(TooManyRejectedRowsError, match=r"9 bad rows.*\n.*day_0, line 21, byte"):
        run(days, tmp_path / "made", "spark", max_bad_fraction=1e-3, **spark(mode))
    assert not (tmp_path / "made").exists()
    made = run(days, tmp_path / "made", "spark", max_bad_fraction=0.5, **spark(mode))
    assert made.rejected["columns"] == 9
    assert sorted(p.name for p in tmp_path.iterdir()) == ["days", "made"]


@pytest.mark.parametrize("mode", SPARK_MODES)
def test_damaged_gzip_names_the_file(tmp_path, mode):
    days = write_days(tmp_path / "days", rows=200)
    packed = gzip.compress((days / "day_1").read_bytes())
    (days / "day_1").write_bytes(packed[: len(packed) // 2])
    with pytest.raises(PreprocError, match=r"day_1: .*(damaged|end early|cannot read)"):
        run(days, tmp_path / "made", "spark", **spark(mode))


def test_line_without_an_end(tmp_path):
    days = write_days(tmp_path / "days", rows=50)
    with (days / "day_1").open("ab") as file:
        file.write(b"1" * (2**20 + 1) + b"\n")
    for mode in SPARK_MODES:
        with pytest.raises(PreprocError, match=r"day_1: the line at byte \d+ is longer"):
            run(days, tmp_path / "made", "spark", **spark(mode))


def test_byte_order_mark(tmp_path):
    days = write_days(tmp_path / "days", rows=50)
    (days / "day_1").write_bytes(b"\xef\xbb\xbf" + good_text(50, seed=1))
    with pytest.raises(PreprocError, match=r"day_1: begins with a UTF-8 byte order mark"):
        run(days, tmp_path / "made", "spark", **spark("dataframe"))
    made = run(days, tmp_path / "kernel", "spark", **spark("kernel"))
    assert_same(made, run(days, tmp_path / "native"))


def test_dictionaries_that_do_not_fit_an_executor(tmp_path, monkeypatch):
    days = write_days(tmp_path / "days", rows=100)
    with pytest.raises(PreprocError, match=r"`memory_limit` 30\.0 MiB is too small"):
        run(days, tmp_path / "made", "spark", memory_limit=30 * 2**20, **spark("kernel"))


def test_failed_kernel_run_continues(tmp_path, monkeypatch):
    """Stops after the scan; the units that are there are taken as they are."""
    days = write_days(tmp_path / "days", rows=200)
    fields = {"work_dir": tmp_path / "work", **spark("kernel", 30_000)}

    def stop(*args: object) -> None:
        raise PreprocError("stop")

    with monkeypatch.context() as patch:
        patch.setattr("preproc.criteo.engines.native.run.merge", stop)
        with pytest.raises(PreprocError, match="stop"):
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
    fields = {"work_dir": tmp_path / "work", **spark("dataframe")}
    encoded, keys = spark_dataframe._encoded, []

    def interrupt(runner: object, unit: UnitRows, *rest: object) -> object:
        keys.append(unit.key)
        if len(keys) == 2:
            raise KeyboardInterrupt
        return encoded(runner, unit, *rest)

    monkeypatch.setattr(spark_dataframe, "_encoded", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run(days, tmp_path / "made", "spark", **fields)
    before = {p: p.stat().st_ino for p in (tmp_path / "work").rglob("*.parquet")}
    assert before
    made = run(days, tmp_path / "made", "spark", **fields)
    assert {p: p.stat().st_ino for p in before} == before
    first, second = keys[:2]
    assert keys == [first, second, second]
    assert_same(made, run(days, tmp_path / "native"))


def test_staging_of_another_boot_is_encoded_again(tmp_path, monkeypatch):
    days = write_days(tmp_path / "days", rows=60)

    def stop(*args: object) -> None:
        raise PreprocError("stop")

    with monkeypatch.context() as patch:
        patch.setattr("preproc.criteo.dictionaries.Dictionaries.copy_to", stop)
        with pytest.raises(PreprocError, match="stop"):
            run(days, tmp_path / "made", "spark", **spark("kernel"))
    monkeypatch.setattr(columns, "boot_id", lambda: "another boot")
    made = run(days, tmp_path / "made", "spark", **spark("kernel"))
    assert_same(made, run(days, tmp_path / "native"))
