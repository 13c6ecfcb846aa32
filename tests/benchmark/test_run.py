# SPDX-License-Identifier: Apache-2.0
"""benchmark.run with real commands: metrics, failures, turns, two checkouts."""

import dataclasses
import json
import math
import re
import shlex
import shutil

import pytest

from benchmark import commands, run
from benchmark.case import Case, Group, Key
from benchmark.record import read_records
from tests.harness import assert_tells
from tests.repo.document_commands import check_program

PROGRAM = """\
import json, pathlib, sys
folder, seed = pathlib.Path(sys.argv[1]), int(sys.argv[2])
from speed import FACTOR
base = json.loads((pathlib.Path(sys.argv[3]) / "base.json").read_text())
held = bytearray(int(base["bytes"]))
line = {"step": [], "data": {"auc": base["auc"] + seed / 1e6, "rate": 100 * FACTOR}}
(folder / "log.json").write_text("DLLL " + json.dumps(line))
sys.exit(seed in base["failing"])
"""


@pytest.fixture
def checkout(tmp_path):
    """A folder with code to measure: a program that imports its speed."""

    def make(factor):
        folder = tmp_path / f"checkout-{factor}"
        (folder / "benchmark").mkdir(parents=True, exist_ok=True)
        (folder / "program.py").write_text(PROGRAM)
        (folder / "speed.py").write_text(f"FACTOR = {factor}")
        return folder

    return make


@pytest.fixture
def configuration(tmp_path):
    def make(failing=(), without=(), **changes):
        base = {"auc": 0.79, "bytes": 1 << 20, "failing": list(failing)}
        write = f"open('{{data}}/base.json', 'w').write('''{json.dumps(base)}''')"
        prepare = f"python -c {shlex.quote(write)}"
        settings = {
            "description": "a test",
            "prepare": [prepare],
            "run": "python program.py {run} {seed} {data}",
            "metrics": {
                "auc": {"source": "log", "key": "auc", "direction": "higher", "threshold": "0.001"},
                "rate": {"source": "log", "key": "rate", "unit": "rows/s", "direction": "higher",
                         "threshold": "3%"},
                "memory": {"source": "process", "key": "peak_anon_mib", "unit": "MiB",
                           "direction": "lower", "threshold": "30%"},
            },
        } | changes  # fmt: skip
        settings["metrics"] = {k: v for k, v in settings["metrics"].items() if k not in without}
        path = tmp_path / "small.yaml"
        path.write_text(json.dumps(settings))  # JSON is YAML
        return path

    return make


def call(*arguments):
    return run.main(["benchmark.run", *map(str, arguments)])


@pytest.fixture
def measured(tmp_path, checkout, monkeypatch, capsys):
    """Runs the command in checkouts of their own; returns exit status, output and records."""

    def measure(path, *flags, new=1.0, old=None, repeats=3):
        monkeypatch.setattr(commands, "HERE", checkout(new))
        beside = () if old is None else (f"--beside={checkout(old)}",)
        output = tmp_path / "out"
        shutil.rmtree(output, ignore_errors=True)
        status = call(path, f"--output={output}", f"--repeats={repeats}", *beside, *flags)
        records = output / "records.jsonl"
        return status, capsys.readouterr(), read_records(records) if records.is_file() else []

    return measure


def test_a_record_has_quality_speed_and_memory_of_every_seed(measured, configuration, tmp_path):
    status, printed, records = measured(configuration(), "--first_seed=5")
    assert status == 0
    auc, rate, memory = records
    assert auc.samples == pytest.approx([0.790005, 0.790006, 0.790007], abs=1e-9)
    assert auc.seeds == [5, 6, 7]
    assert (auc.benchmark, auc.candidate, auc.value) == ("small", "ours", auc.samples[1])
    assert (rate.value, rate.unit, rate.threshold) == (100.0, "rows/s", "3%")
    assert 3 < memory.value < 100
    assert memory.direction == "lower"
    assert re.search(r"^small +auc +0\.790006", printed.out, re.MULTILINE)
    assert (tmp_path / "out" / "small" / "new-7" / "output.txt").is_file()


def test_failed_runs_are_survived_and_counted(measured, configuration):
    status, printed, records = measured(configuration(failing=[2]))
    assert status == 0
    assert [(r.repeats, r.failed, r.seeds) for r in records] == [(3, 1, [1, 3])] * 3
    assert_tells(printed.out, "small new", "seed 2", 1)
    status, printed, records = measured(configuration(failing=[1, 2]))
    assert status == 1
    assert [record.failed for record in records] == [2] * 3
    assert "UNRELIABLE" in printed.out
    status, printed, _ = measured(configuration(failing=[1, 2, 3]))
    assert status == 1
    assert re.search(r"^small +auc +failed", printed.out, re.MULTILINE)


@pytest.mark.parametrize(
    ("changes", "status", "fact"),
    [
        (
            {"metrics": {"loss": {"source": "log", "key": "loss", "direction": "lower"}}},
            1,
            "'loss'",
        ),
        (
            {"run": """python -c "import time; time.sleep(600)" {run} {seed}""", "timeout_s": 0.5},
            1,
            -9,
        ),
        ({"requires": ["{recsys_data}/nothing_of_this_name"]}, 2, "nothing_of_this_name"),
    ],
)
def test_a_run_without_its_metric_its_end_or_its_data(
    measured, configuration, changes, status, fact
):
    done, printed, records = measured(configuration(**changes), repeats=1)
    assert done == status
    assert_tells(printed.out, fact)
    assert {record.value for record in records} == ({None} if status == 1 else set())


def test_data_are_prepared_once_and_anew_for_other_commands(
    configuration, tmp_path, monkeypatch, checkout, capsys
):
    path = configuration()
    monkeypatch.setattr(commands, "HERE", checkout(1.0))
    command = [path, f"--output={tmp_path / 'out'}", "--repeats=1"]
    counts = []
    for _ in range(2):
        assert call(*command) == 0
        counts.append(capsys.readouterr().out.count("small: python -c"))
    assert counts == [1, 0]
    configuration(failing=[9])
    assert call(*command) == 0
    assert capsys.readouterr().out.count("small: python -c") == 1
    configuration(prepare=["python -c 'raise SystemExit(3)'"])
    assert call(*command) == 2
    assert_tells(capsys.readouterr().err, 3)


def test_a_slower_checkout_is_worse_than_the_one_beside_it(measured, configuration):
    made = configuration(without=["memory"])  # which depends on when a short run is looked at
    status, printed, _ = measured(made, new=0.95, old=1.0)
    assert status == 1
    (line,) = (line for line in printed.out.splitlines() if line.startswith("worse"))
    assert line.split()[:4] == ["worse", "small", "new", "rate"]
    assert "-5.0%" in line
    status, printed, _ = measured(made, new=1.05, old=1.0001)
    assert status == 0
    assert "better" in printed.out
    status, printed, _ = measured(made, new=1.0001, old=1.00011)
    assert status == 0
    assert printed.out.count("balanced") == 2


@pytest.mark.parametrize(("most", "least_runs", "most_runs"), [(0, 2, 2), (4, 4, 4), (40, 5, 20)])
def test_noisy_runs_are_repeated_until_the_noise_is_below_the_thresholds(
    measured, configuration, tmp_path, most, least_runs, most_runs
):
    made = configuration(without=["memory"])  # as above
    noisy = "1 + {1: 0.03, 2: -0.03}.get(int(__import__('sys').argv[2]), 0)"  # by the seed
    flag = f"--most_repeats={most}"
    status, _, records = measured(made, flag, new=noisy, old=1.0, repeats=2)
    assert status == 0
    runs = len(list((tmp_path / "out" / "small").glob("new-*")))
    assert least_runs <= runs <= most_runs
    assert {record.repeats for record in records} == {runs}


@pytest.mark.parametrize(
    ("changes", "fact"),
    [
        ({"metrics": {}}, "metrics"),
        ({"metrics": {"a": {"source": "log", "key": "a", "direction": "up"}}}, "higher"),
        ({"metrics": {"a": {"source": "disk", "key": "a", "direction": "lower"}}}, "'disk'"),
        ({"metrics": {"a": {"source": "process", "key": "a", "direction": "lower"}}}, "wall_s"),
        ({"metrics": {"a": {"source": "log", "key": "a", "direction": "lower",
                            "threshold": "few"}}}, "threshold 'few'"),
        ({"processes": 0}, "processes 0"),
        ({"timeout_s": 0}, "timeout_s 0"),
        ({"rune": "x"}, "rune"),
    ],
)  # fmt: skip
def test_a_wrong_case_is_named(configuration, capsys, changes, fact):
    assert call(configuration(**changes)) == 2
    assert_tells(capsys.readouterr().err, "small.yaml", fact)


def test_wrong_arguments_are_refused(configuration, tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    for arguments, *facts in (
        ([configuration(), "--repeats=0"], "--repeats", 1, 0),
        ([configuration(), f"--beside={tmp_path}"], "--beside", tmp_path),
        ([tmp_path / "nothing"], tmp_path / "nothing", "dlrm_small"),
        ([tmp_path / "empty"], tmp_path / "empty", "*.yaml"),
        ([], "dlrm_small"),
        (["inference", "dlrm_small"], "inference"),
    ):
        assert call(*arguments) == 2
        assert_tells(capsys.readouterr().err, *facts)


def test_the_commands_of_the_project_are_valid_and_their_flags_exist(tmp_path):
    """Each command makes a job of its program; nothing is run."""
    cases = run.read_cases([str(run.CASES), str(run.CASES / "quality")])
    assert {"dlrm_small", "bert4rec_5m", "bert4rec_beauty"} <= {case.name for case in cases}
    for case in cases:
        for text in (*case.prepare, case.run):
            assert re.match(r"(python|\.venv-\w+/bin/python) -m ", text)
            words = case.command(text, tmp_path, tmp_path / "run", seed=1)
            start = len(words) - words[::-1].index("-m")  # behind torchrun, if it is there
            check_program(words[start], words[start + 1 :])


@pytest.mark.slow
def test_a_real_command_is_measured(tmp_path):
    source = run.CASES / "preprocessing_reference.yaml"
    path = tmp_path / "small.yaml"
    path.write_text(source.read_text().replace("--rows=200000", "--rows=4000"))
    assert call(path, "--repeats=2", f"--output={tmp_path / 'out'}") == 0
    records = read_records(tmp_path / "out" / "records.jsonl")
    assert {r.metric for r in records} == set(run.read_cases([str(source)])[0].metrics)
    assert all(r.repeats == 2 and not r.failed and r.value > 0 for r in records)


@dataclasses.dataclass(frozen=True)
class Toy(Case):
    """Candidates that note their calls."""

    calls: list[str]
    seeded = True

    def config(self):
        return {"calls": len(self.calls)}

    def groups(self, folder):
        def measure(name):
            def call(seed):
                self.calls.append(name)
                failed = name == "b" and seed == 2
                return {Key(name, "time", "ms"): math.nan if failed else float(seed)}

            return call

        def derive(values):
            (a,), (b,) = (of_one.values() for of_one in values.values())
            return {Key("b", "over a", "x"): b / a}

        yield Group(candidates={n: measure(n) for n in "ab"}, derive=derive, warmup=1)
        yield Group(candidates={"c": measure("c")}, once=True)


def test_candidates_take_turns_and_derived_values_are_those_of_a_round(tmp_path):
    toy = Toy([])
    records = run.run_case(toy, tmp_path, (1, 2, 3))
    assert toy.calls == [*"ab", *"ab", *"ba", *"ab", "c"]
    by_key = {(r.candidate, r.metric): r for r in records}
    assert by_key["a", "time"].samples == [1.0, 2.0, 3.0]
    assert (by_key["b", "time"].samples, by_key["b", "time"].failed) == ([1.0, 3.0], 1)
    assert by_key["b", "time"].seeds == [1, 3]
    assert by_key["b", "over a"].samples == [1.0, 1.0]
    assert by_key["c", "time"].samples == [1.0]
    assert (by_key["a", "time"].direction, by_key["b", "over a"].direction) == ("lower", "higher")
    assert {r.config["calls"] for r in records} == {9}
