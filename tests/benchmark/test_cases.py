# SPDX-License-Identifier: Apache-2.0
"""The cases that are modules, at sizes that take seconds: what they record, what they refuse."""

import sys

import pytest

from benchmark import run
from benchmark.cases.preprocessing import CANDIDATES, ENGINES, DifferingBytesError, Preprocessing
from benchmark.peers import criteo_job, duckdb_criteo, polars_criteo
from benchmark.peers.torchrec import has_torchrec
from benchmark.programs import FailedProgramError, run_training
from benchmark.record import read_records
from bert4rec.scripts.flags import PRESETS
from preproc.clicks.__main__ import define_flags, job_from_flags
from tests.harness import assert_tells, refusal
from tests.tools import needs

KERNELS = (
    *("--tables=3", "--rows=50", "--dims=16", "--batch_sizes=32", "--repeats=2", "--threads=1"),
    *("--matmul_size=64", "--copy_mib=1", "--allocator=default"),
)
STEPS = (
    *("--models=small", "--tables=3", "--rows=50", "--repeats=1", "--matmul_size=64"),
    *("--threads=1", "--allocator=default"),
)
SCALING = (
    *("--sizes=5m", "--table_size=5m", "--items=200", "--batch=4", "--steps=3", "--warmup=1"),
    *("--repeats=1", "--program_flags=--base_device=cpu --num_threads=1 --num_layers=1"),
)
TOP_ITEMS = ("--items=70000", "--dim=8", "--queries=70", "--repeats=2", "--threads=1")


@pytest.fixture
def measured(tmp_path):
    """Runs a case; returns {(row, metric): record}, none of which failed where it succeeds."""

    def measure(name, *flags, status=0, positive=True):
        path = tmp_path / "records.jsonl"
        path.unlink(missing_ok=True)
        done = run.main(["benchmark.run", name, *flags, f"--records={path}"])
        assert status in (None, done)
        records = read_records(path) if path.is_file() else []
        if status == 0:
            assert records
            assert all(r.value is not None and r.failed == 0 for r in records)
            assert not positive or all(r.value > 0 for r in records)
        return {(r.candidate, r.metric): r for r in records}

    return measure


@pytest.mark.parametrize(
    ("name", "flags"),
    [
        ("loader", ("--rows=40000", "--repeats=1")),
        *(
            pytest.param(name, flags, marks=pytest.mark.release)
            for name, flags in (
                ("train_step", (*STEPS, "--batch_sizes=2048", "--bfloat16")),
                ("inference", ("--repeats=1", "--steps=2", "--rows=8192")),
                ("precision", ("--repeats=1", "--rows=60000", "--nosample")),
            )
        ),
    ],
)
@needs("compiled cuda_ext kernels")
def test_a_case_is_measured_and_recorded(measured, name, flags):
    measured(name, *flags, positive=name != "precision")


@needs("compiled cuda_ext kernels")
@pytest.mark.parametrize(
    ("name", "rows", "metrics"),
    [
        ("interaction_kernels", ("forward", "forward + backward"), {"PyTorch", "operations"}),
        (
            "embedding_kernels",
            ("sgd, uniform", "sgd, zipf", "rowwise_adagrad, uniform", "rowwise_adagrad, zipf"),
            {"nn.EmbeddingBag"},
        ),
        (
            "sparse_step_kernels",
            ("uniform", "zipf"),
            {"ours, unfused", "nn.EmbeddingBag + PyTorch", "operations"},
        ),
    ],
)
def test_kernels_stand_beside_peers_and_limits(measured, name, rows, metrics):
    compiles = ("--nocompile",) if name == "interaction_kernels" else ()
    records = measured(name, *KERNELS, *compiles)
    assert {row for row, _ in records} == {f"{row}, D=16, B=32" for row in rows}
    names = {metric for _, metric in records}
    assert names >= {"ours", "ours, share of the floor", "copy", "matrix product", *metrics}
    assert any(metric.startswith("times as fast as") for metric in names) == has_torchrec()
    assert all(r.direction == "lower" for r in records.values() if r.unit == "ms")


@pytest.mark.parametrize(
    ("flags", "benchmark", "row"),
    [
        (("--batch_sizes=2048",), "train_step", "small, zipf, B=2,048"),
        (("--inference", "--batch_sizes=1,64"), "inference_step", "small, zipf, B=64"),
    ],
)
def test_a_step_is_compared_with_its_peers_and_its_ceiling(measured, flags, benchmark, row):
    records = measured("train_step", *STEPS, *flags)
    of_row = {metric: record for (case, metric), record in records.items() if case == row}
    assert of_row.keys() >= {
        *(
            "ours",
            "PyTorch",
            "times as fast as PyTorch",
            "our throughput",
            "ours, share of the ceiling",
        ),
        "matrix product",
    }
    assert ("TorchRec" in of_row) == has_torchrec()
    ours = of_row["ours"]
    assert (ours.benchmark, ours.config["allocator"]) == (benchmark, "default")
    batch_size = int(row.rpartition("=")[2].replace(",", ""))
    assert of_row["our throughput"].value == pytest.approx(batch_size / (ours.value / 1e3))
    ratio = of_row["PyTorch"].value / ours.value
    assert of_row["times as fast as PyTorch"].value == pytest.approx(ratio)


@needs("TorchRec")
@pytest.mark.multiprocess
@pytest.mark.release
def test_two_processes_train_beside_torchrec(measured):
    tiny = ("--models=small", "--tables=3", "--rows=5000", "--samples=1", "--repeats=2")
    records = measured("train_step_distributed", *tiny)
    assert {row for row, _ in records} == {"small, zipf, B=2,048"}
    by_metric = {metric: record for (_, metric), record in records.items()}
    assert by_metric["ours"].config["processes"] == 2
    assert "times as fast as TorchRec" in by_metric
    for name in ("ours", "TorchRec", "TorchRec, pipelined"):
        throughput = by_metric[f"{name}, throughput"].value
        assert throughput == pytest.approx(2048 / (by_metric[name].value / 1e3), rel=0.5)


def test_a_missing_environment_is_told_with_its_target(measured, capsys, monkeypatch):
    from benchmark.cases import preprocessing, train_step_distributed

    monkeypatch.setattr(train_step_distributed, "has_torchrec", lambda: False)
    monkeypatch.setattr(preprocessing.importlib.util, "find_spec", lambda _name: None)
    for name, flags, target in (
        ("train_step_distributed", (), "make torchrec"),
        ("preprocessing", ("--candidates=native,spark",), "make spark"),
    ):
        assert measured(name, *flags, status=2) == {}
        assert target in capsys.readouterr().err


def test_lists_of_a_large_catalogue_are_those_of_float64(measured, capsys, monkeypatch):
    from benchmark.cases import bert4rec_top_items

    records = measured("bert4rec_top_items", *TOP_ITEMS)
    for case in bert4rec_top_items.CASES:
        assert records[case, "identical to float64"].value == 70
        assert 0 < records[case, "multiplied"].value < 5
        assert records[case, "multiplied"].direction == "lower"
    right = bert4rec_top_items.exact_items
    monkeypatch.setattr(bert4rec_top_items, "exact_items", lambda *a: right(*a) + 1)
    measured("bert4rec_top_items", *TOP_ITEMS, status=1)
    assert_tells(capsys.readouterr().err, 140)


@pytest.mark.release
def test_sizes_and_options_are_rows(measured):
    from benchmark.cases.bert4rec_scaling import ADAPTERS, FIGURES, OPTIONS

    records = measured("bert4rec_scaling", *SCALING)
    rows = {"5m", *(f"5m {name}" for name in (*OPTIONS, *ADAPTERS))}
    metrics = {figure.metric for figure in FIGURES.values()}
    assert set(records) == {(row, metric) for row in rows for metric in metrics}
    parameters = {row: records[row, "parameters"].value for row in rows}
    assert parameters["5m"] == parameters["5m baseline"] == parameters["5m compile"] == 374_440
    assert parameters["5m LoRA"] > 374_440


def test_every_size_is_a_preset(capsys):
    from benchmark.cases import bert4rec_scaling

    assert set(bert4rec_scaling.PRESETS.values()) <= set(PRESETS.names())
    assert run.main(["", "bert4rec_scaling", "--sizes=7m"]) == 2
    assert_tells(capsys.readouterr().err, "7m", "5m")


def test_native_and_both_peers_give_the_same_bytes(measured):
    # 4,006 rows: days of unequal sizes and an odd last day.
    flags = ("--rows=4006", "--repeats=1", "--frequency_limit=3")
    records = measured("preprocessing", *flags, positive=False)
    assert {row for row, _ in records} == set(CANDIDATES)
    assert records["polars", "peak_anonymous"].value > 20
    native, duckdb = (records[c, "rows_per_s"].value for c in ("native", "duckdb"))
    assert records["duckdb", "time_over_native"].value == pytest.approx(native / duckdb)


def test_polars_gives_the_bytes_of_a_typed_log(measured):
    flags = ("--rows=4006", "--repeats=1", "--log=typed")
    records = measured("preprocessing", *flags, positive=False)
    assert {r.benchmark for r in records.values()} == {"preprocessing_typed"}
    assert {row for row, _ in records} == {"native", "polars"}


def test_polars_gives_the_sequences_of_ratings(measured):
    flags = ("--rows=4006", "--repeats=1", "--log=ratings")
    records = measured("preprocessing", *flags, positive=False)
    assert {r.benchmark for r in records.values()} == {"preprocessing_ratings"}
    assert {row for row, _ in records} == {"pyarrow", "polars"}


@pytest.mark.release
def test_engines_beside_each_other(measured):
    """The Spark and NVTabular engines take minutes; their commands are held by the next test."""
    flags = ("--rows=3003", "--repeats=1", "--engines", "--candidates=native,reference")
    records = measured("preprocessing", *flags, status=None)
    assert {r.benchmark for r in records.values()} == {"preprocessing_engines"}
    for name in ("native", "reference"):
        assert records[name, "start"].value > 0
        assert (name, "rows_per_s_after_start") in records  # no figure where the machine is busy


@pytest.mark.parametrize("candidate", ENGINES)
def test_the_command_of_an_engine(candidate, tmp_path):
    settings = Preprocessing(rows=1, threads=3, frequency_limit=4)
    command = settings.command(candidate, tmp_path / "in", tmp_path / "out")
    assert command[1:3] == ["-m", "preproc.clicks"]
    flags = define_flags()
    assert len(flags(command[2:])) == 1
    job = job_from_flags(flags)
    assert (job.engine, command[0]) == (candidate, sys.executable)
    assert (job.input, job.output) == (tmp_path / "in", tmp_path / "out")
    assert (job.semantics.frequency_limit, job.format) == (4, ("split",))
    if candidate == "spark":
        assert job.spark.master == "local[3]"
    else:
        assert job.threads == 3


def test_differing_bytes_and_failures_stop_the_benchmark(tmp_path, monkeypatch):
    program = """
import json, pathlib, sys
candidate, output = sys.argv[1], pathlib.Path(sys.argv[2])
if candidate == "absent":
    raise SystemExit("no luck")
for split in ("train", "validation", "test"):
    (output / split).mkdir(parents=True)
    for i in range(27 if candidate == "short" else 28):
        (output / split / f"{i}.bin").write_text("1" if candidate == "bad" else "0")
manifest = {"engine": {"name": "spark", "spark_version": "4.2"}}
(output / "manifest.json").write_text(json.dumps(manifest))
"""

    def command(self, candidate, raw, output):
        return [sys.executable, "-c", program, candidate, str(output)]

    monkeypatch.setattr(Preprocessing, "command", command)
    case, expected = Preprocessing(candidates=("good", "bad")), {}
    assert case.run_once("good", tmp_path, tmp_path, expected).wall_s > 0
    for candidate, facts in (("bad", ("good", "84 of 84")), ("short", (81, 84)), ("absent", ())):
        with refusal(candidate, *facts, kind=DifferingBytesError):
            case.run_once(candidate, tmp_path, tmp_path, expected)
    assert case.config()["spark"] == "4.2"


def test_a_missing_peer_names_the_extra(tmp_path, monkeypatch):
    job = criteo_job.CriteoPeerJob(
        input=tmp_path / "raw", output=tmp_path / "out", threads=1, frequency_limit=1
    )
    for name, peer in (("polars", polars_criteo), ("duckdb", duckdb_criteo)):
        monkeypatch.setitem(sys.modules, name, None)
        with refusal(".[benchmark]", kind=ImportError):
            peer.run(job)


PROGRAM = """
import sys
log = next(word for word in sys.argv if word.startswith("--log_path=")).partition("=")[2]
lines = (
    '{"step": "PARAMETER", "elapsedtime": 0, "data": {"benchmark_steps": 5, "lr": 1}}',
    '{"step": [0, 1], "elapsedtime": 1, "data": {"auc": 0.5}}',
    '{"step": [0, 2], "elapsedtime": 2, "data": {"auc": 0.75, "benchmark_steps": 1}}',
)
with open(log, "w") as file:
    file.writelines(f"DLLL {line}\\n" for line in lines)
print("12 parameters on the CPU")
sys.exit("no luck" if "--fail" in sys.argv else 0)
"""


def test_the_log_of_a_program_is_read_and_its_failures_are_told(tmp_path, monkeypatch):
    (tmp_path / "writes_a_log.py").write_text(PROGRAM)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    figures = {"auc": 0.75, "benchmark_steps": 1, "parameters": 12}
    assert run_training("writes_a_log", "--benchmark_steps=1") == figures
    for flag, *facts in (
        ("--fail", "no luck"),
        ("--benchmark_steps=5", "1 of 5"),
        ("--run_profiler",),
    ):
        with refusal("writes_a_log", *facts, kind=FailedProgramError):
            run_training("writes_a_log", flag)
