# SPDX-License-Identifier: Apache-2.0
import json
import sys
from pathlib import Path

import pytest

from benchmark import preprocessing
from benchmark.processes import Usage
from benchmark.record import read_records
from preproc.criteo.__main__ import define_flags, job_from_flags
from preproc.synthetic.clicks import GeneratorConfig, generate


def run(tmp_path, *extra):
    return preprocessing.main(
        [
            *("--repeats=1", "--frequency_limit=3", f"--work_dir={tmp_path}"),
            *(f"--results={tmp_path / 'results.jsonl'}", *extra),
        ]
    )


def test_native_and_both_peers_give_the_same_bytes(tmp_path, capsys):
    # 4,006 rows: days of unequal sizes and an odd last day.
    assert run(tmp_path, "--rows=4006") == 0
    assert "all 84 files equal" in capsys.readouterr().out
    records = read_records(tmp_path / "results.jsonl")
    assert {r.candidate for r in records} == {"native", "polars", "duckdb"}
    values = {(r.candidate, r.metric): r.value for r in records}
    assert values["native", "rows_per_s"] > 0
    assert values["polars", "peak_anonymous"] > 20
    assert ("duckdb", "time_over_native") in values
    assert list(tmp_path.iterdir()) == [tmp_path / "results.jsonl"]


def test_the_reference_engine_agrees_too(tmp_path):
    assert run(tmp_path, "--rows=2003", "--candidates=reference,duckdb") == 0


def test_engines_beside_each_other(tmp_path):
    """The Spark and NVTabular engines take minutes; their commands are held by the next test."""
    assert run(tmp_path, "--rows=3003", "--engines=native,reference") == 0
    records = read_records(tmp_path / "results.jsonl")
    assert {r.benchmark for r in records} == {"preprocessing_engines"}
    values = {(r.candidate, r.metric): r.value for r in records}
    for name in ("native", "reference"):
        assert values[name, "start"] > 0
        assert (name, "rows_per_s_after_start") in values  # no figure where the machine is busy


@pytest.mark.parametrize("candidate", preprocessing.ENGINES)
def test_the_command_of_an_engine(candidate, tmp_path):
    settings = preprocessing.Settings(rows=1, threads=3, frequency_limit=4)
    command = settings.command(candidate, tmp_path / "in", tmp_path / "out")
    assert command[1:3] == ["-m", "preproc.criteo"]
    flags = define_flags()
    assert len(flags(command[2:])) == 1
    job = job_from_flags(flags)
    engine, _, mode = candidate.partition("-")
    assert job.engine == engine
    assert (job.input, job.output) == (tmp_path / "in", tmp_path / "out")
    assert (job.semantics.frequency_limit, job.format) == (4, ("split",))
    if engine == "spark":
        assert (job.spark.spark_mode, job.spark.master) == (mode, "local[3]")
        assert command[0] == str(preprocessing.SPARK_PYTHON)
    else:
        assert (job.threads, command[0]) == (3, sys.executable)


def test_spark_that_is_not_installed(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(preprocessing, "SPARK_PYTHON", tmp_path / "nowhere")
    assert run(tmp_path, "--rows=100", "--engines=native,spark-kernel") == 1
    assert "nowhere: not there; run `make spark`" in capsys.readouterr().err


def test_figures_and_versions(tmp_path):
    def usages(*walls: float) -> list[Usage]:
        return [Usage(wall, 2 * wall, 7, 0, "") for wall in walls]

    for engine in (
        {"name": "spark", "spark_version": "4.2"},
        {"name": "nvtabular", "version": "23"},
    ):
        (tmp_path / "manifest.json").write_text(json.dumps({"engine": engine}))
        assert preprocessing.foreign_versions(tmp_path) == {
            engine["name"]: list(engine.values())[1]
        }
    settings = preprocessing.Settings(rows=3000, candidates=("a", "b"), with_start=True)
    measured = preprocessing.Measured(
        {"a": usages(1, 2), "b": usages(8, 8)}, {"a": usages(0.5, 3), "b": usages(4, 6)}, {"x": "1"}
    )
    records = preprocessing.make_records("name", settings, measured, 9_000_000)
    values = {(r.candidate, r.metric): r.value for r in records}
    assert values["b", "time_over_a"] == 6
    assert values["b", "input_mb_per_s"] == 9 / 8
    assert values["b", "cpu_us_per_row"] == 16 / 3000 * 1e6
    assert values["b", "rows_per_s_after_start"] == (2000 / 4 + 2000 / 2) / 2
    after = next(r for r in records if (r.candidate, r.metric) == ("a", "rows_per_s_after_start"))
    assert (after.value, after.repeats, after.failed) == (4000, 2, 1)
    assert records[0].config["x"] == "1"


def test_differing_bytes_and_failures_stop_the_benchmark(tmp_path, capsys, monkeypatch):
    def command(self, candidate, raw, output):
        folder = f"import pathlib; p = pathlib.Path({str(output)!r})"
        write = (
            "[((p / s).mkdir(parents=True), [(p / s / f'{i}.bin').write_text(X) "
            "for i in range(28)]) for s in ('train', 'validation', 'test')]"
        )
        text = {"bad": "'1'", "good": "'0'", "short": "'0'"}.get(candidate)
        if text is None:
            return [sys.executable, "-c", "raise SystemExit('no luck')"]
        write = write.replace("28", "27") if candidate == "short" else write
        return [sys.executable, "-c", f"{folder}; X = {text}; {write}"]

    monkeypatch.setattr(preprocessing.Settings, "command", command)
    assert run(tmp_path, "--rows=100", "--candidates=good,bad") == 1
    assert "bad differs from good in 84 of 84 files" in capsys.readouterr().err
    assert run(tmp_path, "--rows=100", "--candidates=good,short") == 1
    assert "wrote 81 files" in capsys.readouterr().err
    assert run(tmp_path, "--rows=100", "--candidates=absent") == 1
    assert "no luck" in capsys.readouterr().err
    assert not (tmp_path / "results.jsonl").exists()


def test_a_missing_peer_names_the_extra(tmp_path, monkeypatch):
    from benchmark.peers import criteo_job, duckdb_criteo, polars_criteo

    generate(GeneratorConfig(output=tmp_path / "raw", rows=50, days=2))
    job = criteo_job.CriteoPeerJob(
        input=tmp_path / "raw", output=tmp_path / "out", threads=1, frequency_limit=1
    )
    for name, peer in (("polars", polars_criteo), ("duckdb", duckdb_criteo)):
        monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(ImportError, match=r"pip install -e \.\[benchmark\]"):
            peer.run(job)


def test_splits_cut_days_where_the_definition_says():
    from benchmark.peers.criteo_job import CriteoPeerJob

    job = CriteoPeerJob(input=Path(), output=Path(), threads=1, frequency_limit=1)
    assert job.split_ranges([5, 4, 7]) == [
        (0, "train", 0, 5),
        (1, "train", 0, 4),
        (2, "validation", 3, 7),
        (2, "test", 0, 3),
    ]
