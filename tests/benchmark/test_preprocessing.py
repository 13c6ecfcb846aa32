# SPDX-License-Identifier: Apache-2.0
import sys

import pytest

from benchmark import preprocessing
from benchmark.record import read_records
from preproc.generate_criteo import GeneratorConfig, generate

pytest.importorskip("polars")
pytest.importorskip("duckdb")


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
    from pathlib import Path

    from benchmark.peers.criteo_job import CriteoPeerJob

    job = CriteoPeerJob(input=Path(), output=Path(), threads=1, frequency_limit=1)
    assert job.parts([5, 4, 7]) == [
        (0, "train", 0, 5),
        (1, "train", 0, 4),
        (2, "validation", 3, 7),
        (2, "test", 0, 3),
    ]
